"""Metadata only: commits and their log, the tree of manifests, row ids, and what conflicts with what."""

from penstock.history._changes import AddField, Changes, DropField, RenameField
from penstock.history._difference import Difference, difference
from penstock.history._find import find_time, find_version, merge_base
from penstock.history._ids import RowIds
from penstock.history._log import discard, history, newest_commit, publish, read_commit
from penstock.history._refs import MAIN, Refs, check_ref_name
from penstock.history._table import (
    Note,
    Version,
    commit_changes,
    commit_reset,
    create_branch,
    create_table,
    open_table,
    open_version,
    read_snapshot,
)
from penstock.history._tree import Tree

__all__ = [
    "MAIN",
    "AddField",
    "Changes",
    "Difference",
    "DropField",
    "Note",
    "Refs",
    "RenameField",
    "RowIds",
    "Tree",
    "Version",
    "check_ref_name",
    "commit_changes",
    "commit_reset",
    "create_branch",
    "create_table",
    "difference",
    "discard",
    "find_time",
    "find_version",
    "history",
    "merge_base",
    "newest_commit",
    "open_table",
    "open_version",
    "publish",
    "read_commit",
    "read_snapshot",
]
