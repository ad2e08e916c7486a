"""A server without the packages of `penstock[server]`: a sentence that names them."""

import subprocess
import sys

import pytest

_HIDDEN = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {package!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""
_IMPORT = """
import penstock
try:
    import {module}
except penstock.errors.InvalidInputError as error:
    print(error)
"""
_SERVE = """
from penstock.cli import main
sys.exit(main(["serve", "--port", "0"]))
"""


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("penstock.catalog.registry", "alembic"),
        ("penstock.catalog.registry", "psycopg"),
        ("penstock.catalog.registry", "sqlalchemy"),
        ("penstock.server", "pydantic"),
        ("penstock.server", "sqlalchemy"),
        ("penstock.server", "starlette"),
        ("penstock.server", "uvicorn"),
    ],
)
def test_importing_without_the_extra_names_it(module: str, package: str) -> None:
    program = _HIDDEN.format(package=package) + _IMPORT.format(module=module)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stderr) == (0, "")
    assert package in done.stdout
    assert "pip install 'penstock[server]'" in done.stdout


@pytest.mark.parametrize("package", ["sqlalchemy", "prometheus_client"])
def test_serving_without_the_extra_names_it(package: str) -> None:
    program = _HIDDEN.format(package=package) + _SERVE
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert (done.returncode, done.stdout) == (2, "")
    assert package in done.stderr
    assert "pip install 'penstock[server]'" in done.stderr
    assert "Traceback" not in done.stderr
