"""What a writer staged since its base version, beside the staged snapshot itself."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from penstock.format import Fragment, IngestManifest


@dataclass
class Changes:
    """What a commit needs to know of the staged operations, and cannot tell from the two snapshots."""

    compacted: list[tuple[tuple[Fragment, ...], tuple[Fragment, ...]]] = field(default_factory=list)
    """Consecutive fragments, and the fragments that replace them."""
    computed: list[str] = field(default_factory=list)
    """Names of added columns whose values were computed from the rows of the base."""
    containers: dict[str, str] = field(default_factory=dict)
    sources: dict[str, tuple[IngestManifest, ...]] = field(default_factory=dict)
    """Ingest manifests, by source URI."""
    operations: list[str] = field(default_factory=list)
    """Operations in order, without repeats, for the log."""
    counts: dict[str, int] = field(default_factory=dict)
    """Rows added, updated and deleted, for the log."""
    pid: int = field(default_factory=os.getpid)
    """The process that staged them."""

    def __bool__(self) -> bool:
        return bool(self.operations or self.containers or self.sources)

    def record(self, operation: str, **counts: int) -> None:
        """Add an operation and its row counts to the log entry."""
        if operation not in self.operations:
            self.operations.append(operation)
        for name, count in counts.items():
            self.counts[name] = self.counts.get(name, 0) + count


def merge_sources(
    known: Mapping[str, tuple[IngestManifest, ...]], more: Mapping[str, tuple[IngestManifest, ...]]
) -> dict[str, tuple[IngestManifest, ...]]:
    """The ingest manifests of both, by source URI, each once."""
    return {uri: tuple(dict.fromkeys((*known.get(uri, ()), *more.get(uri, ())))) for uri in {**known, **more}}
