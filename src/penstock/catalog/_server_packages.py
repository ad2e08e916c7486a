"""Without the packages of `penstock[server]` this module cannot be imported; what needs them imports it first."""

from importlib import import_module

from penstock.errors import InvalidInputError

_PACKAGES = ("alembic", "prometheus_client", "psycopg", "pydantic", "sqlalchemy", "starlette", "uvicorn")

for _package in _PACKAGES:
    try:
        import_module(_package)
    except ImportError as error:
        raise InvalidInputError(
            f"a server needs {_package}, which cannot be imported ({error}): pip install 'penstock[server]'"
        ) from error
