"""Table metadata: commits and their log, refs, the tree of manifests, row ids, conflicts, leases and vacuum."""

from penstock.history._changes import (
    AddField,
    Changes,
    DropField,
    Edit,
    ExtendLabel,
    MakeNullable,
    RenameField,
    merge_sources,
)
from penstock.history._difference import Difference, difference
from penstock.history._ids import RowIds
from penstock.history._leases import HeldLease, WriteIntent, lease, store_time
from penstock.history._log import discard, expired_error, iter_commits, newest_commit, publish, read_commit
from penstock.history._lookup import find_commit_at, find_version, merge_base
from penstock.history._refs import MAIN, Refs, RefType
from penstock.history._table import (
    CommitInfo,
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
from penstock.history._vacuum import Vacuum, VacuumResult, check_not_expired, expired_snapshots, temporary_lease
from penstock.history._version_names import branch_name, format_version

__all__ = [
    "MAIN",
    "AddField",
    "Changes",
    "CommitInfo",
    "Difference",
    "DropField",
    "Edit",
    "ExtendLabel",
    "HeldLease",
    "MakeNullable",
    "RefType",
    "Refs",
    "RenameField",
    "RowIds",
    "Tree",
    "Vacuum",
    "VacuumResult",
    "Version",
    "WriteIntent",
    "branch_name",
    "check_not_expired",
    "commit_changes",
    "commit_reset",
    "create_branch",
    "create_table",
    "difference",
    "discard",
    "expired_error",
    "expired_snapshots",
    "find_commit_at",
    "find_version",
    "format_version",
    "iter_commits",
    "lease",
    "merge_base",
    "merge_sources",
    "newest_commit",
    "open_table",
    "open_version",
    "publish",
    "read_commit",
    "read_snapshot",
    "store_time",
    "temporary_lease",
]
