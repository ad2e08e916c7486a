"""The public names of the package, each imported on first use: `import penstock` itself costs milliseconds.

The names and where they come from are in `__init__.pyi`, which type checkers read as well.
"""

import ast
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any


class _FrontDoor(ModuleType):
    """A package whose names are imported when they are used."""

    def __getattr__(self, name: str) -> Any:
        module = self.__dict__["_sources"].get(name)
        if module is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name, obj=self)
        value = import_module(f"{module}.{name}") if module == self.__name__ else getattr(import_module(module), name)
        self.__dict__[name] = value
        return value

    def __setattr__(self, name: str, value: Any) -> None:
        """Python sets each imported submodule; `ingest` is a function here, and also the name of a submodule."""
        if isinstance(value, ModuleType) and self.__dict__["_sources"].get(name, self.__name__) != self.__name__:
            return
        super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted({*self.__dict__, *self.__dict__["_sources"]})


def install(package: str) -> None:
    """Make the names in the stub of a package its attributes."""
    module = sys.modules[package]
    stub = ast.parse(Path(str(module.__file__)).with_suffix(".pyi").read_text())
    sources = {
        alias.name: node.module for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    module.__dict__.update(_sources=sources, __all__=sorted(sources))
    module.__class__ = _FrontDoor
