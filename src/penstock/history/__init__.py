"""Table metadata: commits and their log, refs, the tree of manifests, row ids, conflicts, leases and vacuum."""

from penstock.history._changes import Changes, merge_sources
from penstock.history._difference import Difference, difference
from penstock.history._ids import RowIds
from penstock.history._leases import HeldLease, Intent, Lease, WriteIntent, lease, store_time
from penstock.history._listing import list_objects
from penstock.history._log import (
    check_older,
    discard,
    expired_error,
    iter_commits,
    newest_commit,
    publish,
    read_commit,
    was_published,
)
from penstock.history._lookup import find_commit_at, find_version, merge_bases
from penstock.history._refs import MAIN, Ref, Refs, RefType, ViewRef
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
from penstock.history._vacuum import Vacuum, VacuumRecord, VacuumResult, check_not_expired, protect_versions
from penstock.history._version_names import branch_name, format_version

__all__ = [
    "MAIN",
    "Changes",
    "CommitInfo",
    "Difference",
    "HeldLease",
    "Intent",
    "Lease",
    "Ref",
    "RefType",
    "Refs",
    "RowIds",
    "Tree",
    "Vacuum",
    "VacuumRecord",
    "VacuumResult",
    "Version",
    "ViewRef",
    "WriteIntent",
    "branch_name",
    "check_not_expired",
    "check_older",
    "commit_changes",
    "commit_reset",
    "create_branch",
    "create_table",
    "difference",
    "discard",
    "expired_error",
    "find_commit_at",
    "find_version",
    "format_version",
    "iter_commits",
    "lease",
    "list_objects",
    "merge_bases",
    "merge_sources",
    "newest_commit",
    "open_table",
    "open_version",
    "protect_versions",
    "publish",
    "read_commit",
    "read_snapshot",
    "store_time",
    "was_published",
]
