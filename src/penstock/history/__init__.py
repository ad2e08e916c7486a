"""Metadata only: commits and their log, the tree of manifests, row ids, and what conflicts with what."""

from penstock.history._changes import (
    AddField,
    Changes,
    DropField,
    Edit,
    ExtendLabel,
    LoosenField,
    RenameField,
    with_sources,
)
from penstock.history._difference import Difference, difference
from penstock.history._find import find_time, find_version, merge_base
from penstock.history._ids import RowIds
from penstock.history._leases import Noticeboard, lease, store_time
from penstock.history._log import discard, expired, history, newest_commit, publish, read_commit
from penstock.history._refs import MAIN, Family, Refs
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
from penstock.history._vacuum import Vacuum, Vacuumed, check_not_condemned, condemned, holding

__all__ = [
    "MAIN",
    "AddField",
    "Changes",
    "Difference",
    "DropField",
    "Edit",
    "ExtendLabel",
    "Family",
    "LoosenField",
    "Note",
    "Noticeboard",
    "Refs",
    "RenameField",
    "RowIds",
    "Tree",
    "Vacuum",
    "Vacuumed",
    "Version",
    "check_not_condemned",
    "commit_changes",
    "commit_reset",
    "condemned",
    "create_branch",
    "create_table",
    "difference",
    "discard",
    "expired",
    "find_time",
    "find_version",
    "history",
    "holding",
    "lease",
    "merge_base",
    "newest_commit",
    "open_table",
    "open_version",
    "publish",
    "read_commit",
    "read_snapshot",
    "store_time",
    "with_sources",
]
