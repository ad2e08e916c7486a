"""The command line: one verb per file."""

from penstock.cli._app import main

__all__ = ["main"]
