"""What scans did, or would do, for one question."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

from penstock.table import PruneCounts


@dataclass
class RelationTrace:
    """The scans of one relation, added up."""

    counts: PruneCounts = field(default_factory=PruneCounts)
    scans: int = 0
    bytes_to_read: int = 0
    """Bytes of pages that were read, or in a dry run an upper bound of them."""
    columns: list[str] = field(default_factory=list)
    """The columns that are read, in the order of their first use."""
    indexes: list[str] = field(default_factory=list)
    """The names of the scalar indexes that answer filters."""
    _lock: Lock = field(default_factory=Lock, repr=False)

    def add_bytes(self, count: int) -> None:
        """Count bytes; called by the threads of a scan."""
        with self._lock:
            self.bytes_to_read += count

    def add_indexes(self, names: Sequence[str]) -> None:
        """Note the indexes of a scan."""
        self.indexes += [name for name in names if name not in self.indexes]

    def add_columns(self, names: list[str]) -> None:
        """Note the columns of a scan."""
        self.columns += [name for name in names if name not in self.columns]


@dataclass
class ScanTrace:
    """The scans of a question, by the name of the relation; a dry one plans and reads no rows."""

    dry: bool = False
    relations: dict[str, RelationTrace] = field(default_factory=dict)

    def of(self, name: str) -> RelationTrace:
        """The trace of one relation."""
        return self.relations.setdefault(name, RelationTrace())
