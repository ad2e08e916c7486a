"""Import rules: packages import only lower ones, by their `__init__`; a heavy dependency is imported in one place."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock

ROOT = Path(penstock.__file__).parent
LEVELS = [
    {"_front_door", "_version", "errors"},
    {"types"},
    {"device"},
    {"codecs", "storage", "plan", "runners"},
    {"format"},
    {"history"},
    {"table"},
    {"query"},
    {"engine"},
    {"ingest"},
    {"adapters", "catalog"},
    {"dataset"},
    {"client"},
    {"server"},
    {"cli"},
    {"__main__"},
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
IMPORTERS = {
    "obstore": ("storage/",),
    "azure": ("catalog/vending/_azure.py",),
    "boto3": ("storage/_aws_credentials.py", "catalog/vending/_s3.py"),
    "botocore": ("storage/_aws_credentials.py", "catalog/vending/_s3.py"),
    "google.auth": ("catalog/vending/_gcs.py",),
    "torch": ("device/", "adapters/torch.py", "adapters/torch_rows.py", "ingest/sources/_torch_files.py"),
    "jax": ("adapters/jax.py",),
    "tensorflow": ("adapters/tensorflow.py",),
    "duckdb": ("query/",),
    "ray": ("ingest/ray.py", "adapters/ray.py"),
    "alembic": ("catalog/",),
    "psycopg": ("catalog/",),
    "sqlalchemy": ("catalog/",),
    "PIL": ("codecs/", "format/"),
    "simplejpeg": ("codecs/",),
    "soundfile": ("codecs/_audio.py",),
    "av": ("codecs/_video.py", "codecs/_video_frames.py"),
    "typer": ("cli/",),
    "starlette": ("server/",),
    "uvicorn": ("server/",),
    "pydantic": ("server/",),
    "prometheus_client": ("server/",),
}
FILES = sorted(path for path in ROOT.rglob("*.py"))
ROOMS = sorted({path.relative_to(ROOT).parts[0].removesuffix(".py") for path in FILES} - {"__init__"})


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> Iterator[str]:
    """Every module a file imports, lazy and type-only imports included."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} has a relative import"
            module = node.module or ""
            yield from (f"{module}.{name.name}" for name in node.names)


def own_parts(module: str) -> list[str]:
    """The parts of a module name after `penstock`; empty for other packages."""
    head, *rest = module.split(".")
    return rest if head == "penstock" else []


def test_every_room_has_a_level() -> None:
    assert set(ROOMS) - {"testing"} <= set(LEVEL)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down_and_use_the_public_names_of_a_room(path: Path) -> None:
    here = room_of(path)
    for module in imports(path):
        parts = own_parts(module)
        if not parts or here in ("__init__", "testing") or parts[0] == here:
            continue
        assert parts[0] != "testing", f"{path} imports the testing kit"
        assert parts[0] in LEVEL, f"{path} imports {module}, which is not a room"
        assert LEVEL[parts[0]] < LEVEL[here], f"{here} imports {parts[0]}, which is not lower"
        assert not any(part.startswith("_") for part in parts[1:-1]), f"{path} imports {module}, a private file"


FOLDER_LEVELS = {
    "engine": ["planning", "window", "assembly", "sources", "workers"],
    "query": ["indexes", "search", "scan", "sql"],
}


def folder_of(path: Path) -> tuple[str, str] | None:
    """The room and the folder of a file, if the folders of its room have levels."""
    room, *inner = path.relative_to(ROOT).parts
    return (room, inner[0]) if room in FOLDER_LEVELS and len(inner) > 1 else None


@pytest.mark.parametrize("path", [path for path in FILES if folder_of(path)], ids=str)
def test_folders_of_a_room_import_only_lower_ones(path: Path) -> None:
    room, folder = folder_of(path) or ("", "")
    levels = FOLDER_LEVELS[room]
    for module in imports(path):
        parts = own_parts(module)
        if parts[:1] == [room] and parts[1] in levels and parts[1] != folder:
            assert levels.index(parts[1]) < levels.index(folder), f"{path} imports {module}, which is not lower"
            assert not any(part.startswith("_") for part in parts[2:-1]), f"{path} imports {module}, a private file"


MODULES = {path.relative_to(ROOT.parent).with_suffix("").as_posix().replace("/", "."): path for path in FILES}


def test_files_do_not_import_each_other_in_circles() -> None:
    """Imports for type checkers alone count: a file is read from the top down, and tested by itself."""
    imported = {
        name: {found for module in imports(path) if (found := module.rpartition(".")[0]) in MODULES}
        | {module for module in imports(path) if module in MODULES}
        for name, path in MODULES.items()
    }
    reached = {name: set(below) for name, below in imported.items()}
    for middle in MODULES:
        for name, below in reached.items():
            if middle in below:
                reached[name] = below | reached[middle]
    circle = sorted(name for name, below in reached.items() if name in below)
    assert not circle, circle


@pytest.mark.parametrize("dependency", IMPORTERS)
def test_a_heavy_dependency_is_imported_in_one_place(dependency: str) -> None:
    for path in FILES:
        place = path.relative_to(ROOT).as_posix()
        if place.startswith(("testing/", *IMPORTERS[dependency])):
            continue
        assert not any(f"{module}.".startswith(f"{dependency}.") for module in imports(path)), (
            f"{place} imports {dependency}"
        )


def packages() -> list[str]:
    found = [info.name for info in pkgutil.walk_packages([str(ROOT)], "penstock.") if info.ispkg]
    return ["penstock", *found]


@pytest.mark.parametrize("name", packages())
def test_all_is_the_public_surface(name: str) -> None:
    module = importlib.import_module(name)
    file = Path(str(module.__file__))
    tree = ast.parse((file.with_suffix(".pyi") if name == "penstock" else file).read_text())
    imported = {
        alias.asname or alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert sorted(module.__all__) == sorted(imported)
    for node in tree.body:
        plain = isinstance(node, ast.ImportFrom | ast.Expr) or (
            isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__"
        )
        assert plain, f"{name}/__init__.py contains more than imports"


def test_no_event_loop() -> None:
    for path in FILES:
        if room_of(path) != "server":
            assert "asyncio" not in list(imports(path)), f"{path} imports asyncio"


def test_importing_the_package_imports_no_framework() -> None:
    """Some take seconds, and worker processes would take them too."""
    heavy = ("av", "azure", "boto3", "google.auth", "jax", "pandas", "soundfile", "tensorflow", "torch")
    program = f"import sys, penstock; print(*(name for name in {heavy} if name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "\n"
