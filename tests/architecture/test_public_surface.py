"""The public surface is closed: what public signatures and error messages name can be imported from `penstock`.

The surface is `penstock.__all__`, and the public names of the modules in it. Annotations are evaluated with the imports
that a module makes for type checkers alone; type aliases count as what they stand for.
"""

import ast
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import penstock

ROOT = Path(penstock.__file__).parent
CALLED = ("__init__", "__call__", "__getitem__", "__iter__", "__next__", "__enter__")
NOT_CONSTRUCTED = (
    "Branches",
    "ColumnView",
    "Dataset",
    "EpochView",
    "IngestProgress",
    "Loader",
    "SampleView",
    "SavedViews",
    "TableDiff",
    "Tags",
    "View",
    "storage.MemoryStore",
    "storage.ObjectStore",
)
"""Classes whose objects functions return: their constructors are private."""
NOT_FOR_USERS = ("cli", "testing")
"""Rooms whose errors do not reach a caller of the library."""


def surface() -> dict[str, Any]:
    """Everything public, by the name it is imported as: names of `penstock`, and of the modules among them."""
    found = {}
    for name in penstock.__all__:
        value = found[name] = getattr(penstock, name)
        if isinstance(value, types.ModuleType):
            names = getattr(value, "__all__", [each for each in vars(value) if not each.startswith("_")])
            found |= {f"{name}.{each}": getattr(value, each) for each in names}
    return found


def is_ours(value: Any) -> bool:
    return getattr(value, "__module__", "").split(".")[0] == "penstock"


@cache
def namespace(module: str) -> Mapping[str, Any]:
    """The globals of a module, and what it imports under `if TYPE_CHECKING`."""
    names = dict(vars(sys.modules[module]))
    tree = ast.parse(Path(str(sys.modules[module].__file__)).read_text())
    for node in tree.body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for statement in node.body:
                try:
                    exec(compile(ast.Module([statement], []), module, "exec"), names)
                except ImportError:  # a name that exists for type checkers alone
                    assert isinstance(statement, ast.ImportFrom)
                    assert not (statement.module or "").startswith("penstock")
                    names |= {alias.asname or alias.name: Any for alias in statement.names}
    return names


def hints(value: Any) -> dict[str, Any]:
    return typing.get_type_hints(value, dict(namespace(value.__module__)))


def functions(member: Any) -> Iterator[Callable[..., Any]]:
    """The functions behind a member of a class or a module: those of a property, overloads."""
    if isinstance(member, classmethod | staticmethod):
        member = member.__func__
    if isinstance(member, property):
        yield from (each for each in (member.fget, member.fset) if each is not None)
    elif isinstance(member, cached_property):
        yield member.func
    elif inspect.isfunction(member):
        yield from typing.get_overloads(member) or [member]


def members(owner: type) -> Iterator[tuple[str, Any]]:
    """Public members of a class, those of its bases in `penstock` included."""
    seen = set()
    for base in owner.__mro__:
        for name, member in vars(base).items() if is_ours(base) else ():
            if name not in seen and (not name.startswith("_") or name in CALLED):
                seen.add(name)
                yield name, member


def classes(hint: Any) -> Iterator[type]:
    """The classes of `penstock` in a type; a dictionary of keyword arguments counts as its values."""
    if isinstance(hint, list | tuple):
        for each in hint:
            yield from classes(each)
    elif typing.is_typeddict(hint):
        yield from classes(list(hints(hint).values()))
    elif isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        if is_ours(hint):
            yield hint
    else:
        yield from classes([typing.get_origin(hint), *typing.get_args(hint)] if typing.get_args(hint) else [])


def named(public: Mapping[str, Any]) -> Iterator[tuple[str, type]]:
    """Each place in a public signature that names a class of `penstock`: the place and the class."""
    for name, value in public.items():
        if isinstance(value, type) and is_ours(value) and not issubclass(value, BaseException):
            own = {key: hint for key, hint in hints(value).items() if not key.startswith("_")}
            for attribute, hint in own.items():
                yield from ((f"{name}.{attribute}", each) for each in classes(hint))
            callables = [
                (f"{name}.{member}", function)
                for member, found in members(value)
                if member != "__init__" or name not in NOT_CONSTRUCTED
                for function in functions(found)
            ]
        else:
            callables = [(name, each) for each in functions(value)]
        for place, function in callables:
            if is_ours(function):  # methods that a dataclass gets are made elsewhere
                yield from ((place, each) for each in classes(list(hints(function).values())))


def test_classes_in_public_signatures_are_public() -> None:
    public = surface()
    missing: dict[str, set[str]] = {}
    for place, found in named(public):
        if found.__module__.startswith("penstock.adapters."):  # imported from there, with the framework
            continue
        if not any(found is value for value in public.values()):
            missing.setdefault(f"{found.__module__}.{found.__qualname__}", set()).add(place)
    report = [f"{name}: in {', '.join(sorted(places))}" for name, places in sorted(missing.items())]
    assert not report, "not in penstock.__all__, but in public signatures:\n" + "\n".join(report)


def messages() -> Iterator[tuple[str, str]]:
    """The texts in `raise` statements that can reach a caller of the library, and where they are."""
    for path in sorted(ROOT.rglob("*.py")):
        place = path.relative_to(ROOT).as_posix()
        if not place.startswith(NOT_FOR_USERS):
            for node in ast.walk(ast.parse(path.read_text())):
                for each in ast.walk(node) if isinstance(node, ast.Raise) else ():
                    if isinstance(each, ast.Constant) and isinstance(each.value, str):
                        yield f"{place}:{each.lineno}", each.value


def resolves(path: str, public: Mapping[str, Any]) -> bool:
    """Whether a dotted name such as `penstock.errors.NotFoundError` or `Dataset.load` is on the public surface."""
    head, *rest = path.removeprefix("penstock.").split(".")
    value = public.get(head)
    for name in rest:
        value = getattr(value, name, None)
    return value is not None


def test_names_in_error_messages_are_public() -> None:
    public = surface()
    exported = {name.rpartition(".")[2] for name in public}
    ours = {
        node.name
        for path in ROOT.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }
    report = []
    for place, text in messages():
        report += [
            f"{place}: {path}" for path in re.findall(r"\bpenstock(?:\.\w+)+", text) if not resolves(path, public)
        ]
        report += [f"{place}: {name}" for name in re.findall(r"\b[A-Z]\w+", text) if name in ours - exported]
    assert not report, "not in penstock.__all__, but in error messages:\n" + "\n".join(report)


def test_public_classes_and_functions_have_docstrings() -> None:
    missing = []
    for name, value in surface().items():
        if not is_ours(value) and not isinstance(value, types.ModuleType):
            continue
        if not (value.__dict__.get("__doc__") if isinstance(value, type) else inspect.getdoc(value)):
            missing.append(name)
        for member, found in members(value) if isinstance(value, type) else ():
            own = [each for each in functions(found) if is_ours(each)]
            if own and not member.startswith("_") and not inspect.getdoc(getattr(value, member)):
                missing.append(f"{name}.{member}")
    assert not missing, "without a docstring:\n" + "\n".join(missing)


def test_the_check_sees_what_signatures_name() -> None:
    """The walk itself: overloads, properties, fields and containers."""
    places = {place for place, _ in named(surface())}
    assert {"load", "Dataset.pytorch", "Dataset.schema", "Schema.fields", "Dataset.log"} <= places
    assert list(classes(dict[str, list[penstock.Dataset] | None])) == [penstock.Dataset]
