"""Three-way merges: of branches, and of staged changes with other writers' commits."""

from penstock.table.merging._conflicts import Conflict, OnConflict
from penstock.table.merging._merge import merge, rebase

__all__ = ["Conflict", "OnConflict", "merge", "rebase"]
