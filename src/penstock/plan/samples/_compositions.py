"""Samples that are composed of several rows: windows of consecutive rows, and sequences of packed tokens."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from penstock.plan._grouping import flat_ranges, take_positions
from penstock.plan.samples._packing import Packing
from penstock.plan.samples._windows import Windows
from penstock.types import cached_property

Int64Array = npt.NDArray[np.int64]

SEGMENT_IDS, POSITION_IDS, CU_SEQLENS = "segment_ids", "position_ids", "cu_seqlens"


class Draws(NamedTuple):
    """The rows that some samples draw."""

    positions: Int64Array
    """Positions in the table, sample after sample."""
    offsets: Int64Array
    """Where the rows of each sample start, and the end."""


class Composition(Protocol):
    """How samples are composed of the rows of a table."""

    rows: range | Int64Array
    """The positions of the rows that samples may draw."""
    anchor: int | None
    """The draw that stands for a sample, whose row id is the sample's; None if there is none."""
    videos: frozenset[str]
    """The columns of which samples hold frames."""

    def __len__(self) -> int:
        """The number of samples."""

    @property
    def digest(self) -> str:
        """A digest of everything that determines the samples."""

    @property
    def rows_per_sample(self) -> float:
        """Rows of the table for each sample: about one for windows of any length that start one row apart."""
        return len(self.rows) / max(1, len(self))

    @property
    def boundaries(self) -> Int64Array | None:
        """Numbers of samples that share no rows with the later ones, the number of all included; None for any."""

    def stored_columns(self, names: Sequence[str]) -> tuple[str, ...]:
        """The columns of the table that the columns `names` of samples need."""
        return tuple(names)

    def draw(self, samples: Int64Array) -> Draws:
        """The rows of some samples."""

    def values_per_sample(self, name: str) -> float:  # noqa: ARG002
        """How many values of a stored column a sample has, on average."""
        return self.rows_per_sample

    def draws_of(self, names: Sequence[str]) -> Int64Array | None:  # noqa: ARG002
        """Which draws of each sample some stored columns need; None for all."""
        return None


class GroupNames(NamedTuple):
    """The values of a column that tell groups apart."""

    column: str
    values: npt.NDArray[Any]
    """The value of each group."""


@dataclass(frozen=True, eq=False)
class WindowSamples(Composition):
    """Windows of consecutive rows of a group."""

    windows: Windows
    """Of indices of `rows`."""
    rows: range | Int64Array
    columns: Mapping[str, Int64Array]
    """The draws of each column that has a time axis; other columns have the row at the anchor."""
    anchor: int
    pads: bool
    """Whether draws beyond a group repeat its first or last row, flagged in `<column>_pad`."""
    videos: frozenset[str] = frozenset()
    """Those of the columns that hold the video of a group in its first row, a frame for each row of the group."""
    group_names: GroupNames | None = None
    """Names of the groups for messages; None if all rows are one group."""

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def digest(self) -> str:
        windows, grouped = self.windows, self.windows.grouped
        return digest_of(
            "windows", self.rows, grouped.sequence, grouped.bounds, windows.anchors, windows.offsets, windows.offsets_s,
            windows.tolerance_s, self.pads, sorted((name, draws.tolist()) for name, draws in self.columns.items()),
        )  # fmt: skip

    @property
    def boundaries(self) -> Int64Array | None:
        if not self.videos:
            return None
        groups = np.searchsorted(self.windows.grouped.bounds, self.windows.anchors, side="right")
        return np.append(np.flatnonzero(np.diff(groups)) + 1, len(self))

    def draw(self, samples: Int64Array) -> Draws:
        """The rows of some samples; with videos, the first row of its group is the last draw of each."""
        drawn, _ = self.windows.draw(samples)
        if self.videos:
            drawn = np.hstack([drawn, self.windows.draw_groups(samples).first_rows[:, None]])
        offsets = np.arange(len(samples) + 1) * drawn.shape[1]
        return Draws(take_positions(self.rows, drawn.reshape(-1)), offsets)

    def column_draws(self, name: str) -> Int64Array:
        """The draws whose rows hold the values of a column: of shape (time,), or () without a time axis."""
        if name in self.videos:
            return np.array(self.windows.draws)
        return self.columns.get(name, np.array(self.anchor))

    def group_name(self, group: int) -> str:
        """A group in a message."""
        if self.group_names is None:
            return "the view"
        return f"the group {self.group_names.column} = {self.group_names.values[group]}"

    def padding(self, samples: Int64Array) -> npt.NDArray[np.bool_]:
        """Which draws of some samples are padding, of shape (samples, draws)."""
        return self.windows.draw(samples)[1]

    def values_per_sample(self, name: str) -> float:
        return len(self.columns[name]) if name in self.columns else 1.0

    def draws_of(self, names: Sequence[str]) -> Int64Array | None:
        return np.unique(np.concatenate([self.column_draws(name).reshape(-1) for name in names]))

    def reach(self, name: str) -> int:
        """The number of rows from the first to the last draw of a column; an estimate for offsets in seconds."""
        draws = self.columns.get(name)
        if draws is None:
            return 1
        offsets = self.windows.offsets
        inside = draws[draws < len(offsets)]
        return max(len(draws), int(np.ptp(offsets[inside])) + 1 if len(inside) else 1)


@dataclass(frozen=True, eq=False)
class PackedSamples(Composition):
    """Sequences of a fixed number of tokens, packed from documents of any length."""

    packing: Packing
    """Of indices of `rows`; an end-of-sequence token counts as the last token of its document."""
    rows: range | Int64Array
    column: str
    dtype: np.dtype[Any]
    eos: int | None
    document_tokens: Int64Array
    """The number of tokens of each row, without the end-of-sequence token."""
    anchor, videos = None, frozenset()

    def __len__(self) -> int:
        return len(self.packing.offsets) - 1

    @property
    def digest(self) -> str:
        packing = self.packing
        return digest_of(
            "packed", self.rows, packing.length, packing.offsets, packing.documents, packing.starts, packing.lengths,
            self.column, self.eos,
        )  # fmt: skip

    @cached_property
    def most_segments(self) -> int:
        """The largest number of documents in a sequence."""
        return int(np.diff(self.packing.offsets).max(initial=1))

    def shapes(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """The columns of sequences."""
        tokens, ids = (self.packing.length,), np.dtype(np.int32)
        return {
            self.column: (self.dtype, tokens),
            SEGMENT_IDS: (ids, tokens),
            POSITION_IDS: (ids, tokens),
            CU_SEQLENS: (ids, (self.most_segments + 1,)),
        }

    @property
    def boundaries(self) -> Int64Array | None:
        if not len(self):
            return None
        offsets, documents = self.packing.offsets, self.packing.documents
        first, last = documents[offsets[:-1]], documents[offsets[1:] - 1]
        later = np.minimum.accumulate(first[::-1])[::-1]
        return np.append(np.flatnonzero(np.maximum.accumulate(last)[:-1] <= later[1:]) + 1, len(self))

    def stored_columns(self, names: Sequence[str]) -> tuple[str, ...]:  # noqa: ARG002
        return (self.column,)

    def pieces(self, samples: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Indices of the pieces of some sequences, and where those of each sequence start, with the end."""
        starts = self.packing.offsets[samples]
        return flat_ranges(starts, self.packing.offsets[samples + 1] - starts)

    def draw(self, samples: Int64Array) -> Draws:
        pieces, offsets = self.pieces(samples)
        return Draws(take_positions(self.rows, self.packing.documents[pieces]), offsets)


@dataclass(frozen=True, eq=False)
class ComposedRows:
    """Some samples of a composition; takes the place of the rows of a selection."""

    composition: Composition
    samples: range | Int64Array

    def __len__(self) -> int:
        return len(self.samples)


Rows = range | Int64Array | ComposedRows
"""What a loader reads: rows by their positions in the table, or samples that are composed of rows."""


def digest_of(*parts: Any) -> str:
    """A digest of some values and arrays."""
    seen = hashlib.blake2b(digest_size=16)
    for part in parts:
        if isinstance(part, np.ndarray):
            seen.update(f"{part.dtype}{part.shape}".encode())
            seen.update(np.ascontiguousarray(part).data)
        else:
            seen.update(repr(part).encode())
        seen.update(b"\0")
    return seen.hexdigest()
