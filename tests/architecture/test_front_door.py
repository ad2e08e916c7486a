"""The package imports what is used, and nothing before."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import penstock

HEAVY = ("awscrt", "duckdb", "ml_dtypes", "numpy", "obstore", "PIL", "pyarrow", "simplejpeg", "sqlalchemy", "torch")


def run(program: str) -> str:
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False)
    assert child.stderr == ""
    return child.stdout


def imported_by(statement: str) -> list[str]:
    """The heavy modules that a statement imports."""
    return (
        run(f"import sys\n{statement}\nprint('\\n', *(n for n in {HEAVY} if n in sys.modules))").split("\n")[-2].split()
    )


@pytest.mark.parametrize(
    "statement",
    ["import penstock", "import penstock; dir(penstock); penstock.__version__; penstock.errors.NotFoundError"]
    + [f"from penstock.cli import main; main({words})" for words in (["--version"], ["--help"], [])],
)
def test_nothing_heavy_is_imported_before_it_is_needed(statement: str) -> None:
    assert imported_by(statement) == []


def test_a_process_that_computes_does_not_import_pyarrow_first() -> None:
    assert "pyarrow" not in imported_by("import penstock.runners._worker")


def test_every_name_is_found() -> None:
    names = {name: getattr(penstock, name) for name in penstock.__all__}
    assert set(names) <= set(dir(penstock))
    program = "from penstock import *; print(len([n for n in dir() if not n.startswith('__')]), Dataset.__module__)"
    assert run(program).split() == [str(len(names) - 1), "penstock.dataset._dataset"]
    with pytest.raises(AttributeError, match="module 'penstock' has no attribute 'Datset'"):
        penstock.Datset  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("first", ["penstock.ingest", "penstock.dataset", "penstock.cli", "penstock.testing"])
def test_a_function_with_the_name_of_a_submodule_stays_a_function(first: str) -> None:
    assert run(f"import {first}, penstock; print(type(penstock.ingest).__name__)") == "function\n"


def test_the_stub_lists_what_is_public() -> None:
    tree = ast.parse(Path(str(penstock.__file__)).with_suffix(".pyi").read_text())
    [listed] = [ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)]
    assert listed == penstock.__all__
