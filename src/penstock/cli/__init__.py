"""The command line: one command per file."""

from penstock.cli._app import main

__all__ = ["main"]
