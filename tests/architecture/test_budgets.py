"""Size budgets of the source: lines of files and functions, methods of classes, parameters, files of folders.

A budget is exceeded only with a reason in `EXCEPTIONS`; an exception that is no longer needed fails as well.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import penstock

ROOT = Path(penstock.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 60
MAX_METHODS = 20
MAX_PARAMETERS = 8
MAX_FOLDER_FILES = 12

EXCEPTIONS: dict[str, tuple[int, str]] = {
    "cli/ files": (34, "one command per file, as a user finds it in `penstock --help`"),
    "ingest/sources/ files": (28, "one source format per file"),
    "format/ files": (17, "one object of the format per file"),
    "storage/ files": (23, "one store, or one concern of obstore clients or of concurrent requests, per file"),
    "storage/_retry.py retry parameters": (9, "three are the clock, the sleep and the jitter that tests replace"),
    "dataset/ files": (26, "one noun or verb of the front door per file"),
    "table/ files": (33, "one operation on rows or columns, or one concern of reading a version, per file"),
    "engine/workers/_reading.py SpanReader methods": (21, "the scheduler: every method runs under its one lock"),
    "engine/assembly/_formatter.py BatchFormatter methods": (24, "what adapters override, each a few lines"),
    "testing/_stores.py StoreTests methods": (27, "one method per rule of the store contract"),
    "format/kinds/_tensor.py Tensor methods": (22, "the column type contract, for fixed and for ragged shapes"),
    "device/_image_kernel.py image_kernel parameters": (17, "a GPU kernel takes pointers and scalars, not objects"),
    "dataset/_streaming.py Streaming.pytorch parameters": (16, "the front door: one parameter per loader option"),
    "dataset/_streaming.py Streaming.pytorch lines": (86, "the front door: the docstring describes each option"),
    "dataset/_ingest.py ingest parameters": (12, "the front door: one parameter per option of a run"),
    "dataset/_ingest.py sync parameters": (10, "the front door: one parameter per option of a run"),
    "cli/_create.py create parameters": (21, "typer derives one command-line option from each parameter"),
    "cli/_create.py create lines": (78, "typer derives one command-line option from each parameter"),
    "cli/_ingest.py sync parameters": (10, "typer derives one command-line option from each parameter"),
    "cli/_head.py head parameters": (9, "typer derives one command-line option from each parameter"),
    "cli/_index.py create_index parameters": (10, "typer derives one command-line option from each parameter"),
    "cli/_query.py query parameters": (14, "typer derives one command-line option from each parameter"),
    "cli/_serve.py serve parameters": (17, "typer derives one command-line option from each parameter"),
    "cli/_serve.py serve lines": (95, "typer derives one command-line option from each parameter"),
    "cli/_search.py search parameters": (21, "typer derives one command-line option from each parameter"),
    "dataset/_view.py View.search parameters": (12, "the front door: one parameter per option of a search"),
}
"""What may exceed its budget: the size it may have, and the reason; keys as `violations` writes them."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def parameters(function: Function) -> int:
    """The number of explicit parameters; `self` and `cls` do not count, `*args` and `**kwargs` do."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    if positional and positional[0].arg in ("self", "cls"):
        positional = positional[1:]
    return len(positional) + len(arguments.kwonlyargs) + bool(arguments.vararg) + bool(arguments.kwarg)


def methods(node: ast.ClassDef) -> int:
    """The number of distinct methods; overloads and setters share the name of what they belong to."""
    return len({each.name for each in node.body if isinstance(each, Function)})


def definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, ast.ClassDef | Function]]:
    """Every class and function below a node, nested ones included, with its qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | Function):
            yield f"{prefix}{child.name}", child
            yield from definitions(child, f"{prefix}{child.name}.")
        else:
            yield from definitions(child, prefix)


def sizes_of_file(path: Path) -> Iterator[tuple[str, int, int]]:
    """Each measured thing of a file: its key, its size and the budget."""
    name, text = path.relative_to(ROOT).as_posix(), path.read_text()
    yield f"{name} lines", len(text.splitlines()), MAX_FILE_LINES
    for qualified, node in definitions(ast.parse(text), ""):
        if isinstance(node, ast.ClassDef):
            yield f"{name} {qualified} methods", methods(node), MAX_METHODS
        else:
            yield f"{name} {qualified} lines", (node.end_lineno or 0) - node.lineno + 1, MAX_FUNCTION_LINES
            yield f"{name} {qualified} parameters", parameters(node), MAX_PARAMETERS


def violations() -> dict[str, tuple[int, int]]:
    """Everything over its budget: its size and the budget."""
    sizes = sorted(size for path in FILES for size in sizes_of_file(path))  # of equal keys, the largest is last
    found = {key: (size, budget) for key, size, budget in sizes if size > budget}
    for folder in sorted({path.parent for path in FILES}):
        files = sum(path.parent == folder and path.name != "__init__.py" for path in FILES)
        if files > MAX_FOLDER_FILES:
            found[f"{folder.relative_to(ROOT).as_posix()}/ files"] = (files, MAX_FOLDER_FILES)
    return found


def test_sizes_are_within_budget() -> None:
    found = {key: (size, EXCEPTIONS.get(key, (budget,))[0]) for key, (size, budget) in violations().items()}
    report = [f"{key}: {size}, allowed {allowed}" for key, (size, allowed) in found.items() if size > allowed]
    assert not report, "over budget; split it, or give a reason in EXCEPTIONS:\n" + "\n".join(report)


def test_exceptions_are_needed() -> None:
    stale = sorted(EXCEPTIONS.keys() - violations().keys())
    assert not stale, "within budget now; delete from EXCEPTIONS:\n" + "\n".join(stale)
