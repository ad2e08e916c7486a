"""Metadata only: commits and their log, the tree of manifests, row ids, and what conflicts with what."""

from penstock.history._changes import AddField, Changes, DropField, RenameField
from penstock.history._ids import RowIds
from penstock.history._log import discard, history, newest_commit, publish, read_commit
from penstock.history._table import (
    Note,
    Version,
    commit_changes,
    create_table,
    open_table,
    open_version,
    read_snapshot,
)
from penstock.history._tree import Tree

__all__ = [
    "AddField",
    "Changes",
    "DropField",
    "Note",
    "RenameField",
    "RowIds",
    "Tree",
    "Version",
    "commit_changes",
    "create_table",
    "discard",
    "history",
    "newest_commit",
    "open_table",
    "open_version",
    "publish",
    "read_commit",
    "read_snapshot",
]
