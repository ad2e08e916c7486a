"""Fragments: runs of rows, with their data files, pages and checksums."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from operator import attrgetter

import numpy as np
import numpy.typing as npt

from penstock.format._layout import corrupt_error, data_key
from penstock.format._statistics import FilePageBounds, PageBounds, Statistics
from penstock.types import ByteRange, RowRange, cached_property


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """The rows of a field that differ from an earlier file, which this file replaces directly or indirectly.

    A field without an entry for a base is unchanged since that base.
    """

    base: str
    """Id of the replaced file; empty if the field had its fill value."""
    field: int
    """The changed field; 0 if no field changed."""
    rows: bytes
    """Bitmap over the file's rows, least significant bit first; empty if no row changed."""


@dataclass(frozen=True, slots=True)
class BlobUse:
    """A blob that a file refers to, listed so that pages need not be read."""

    id: str
    length: int


class DensePages:
    """Pages that consist of a header and fixed-width values: bounds of all headers, and of all values, concatenated.

    Many are cached, so their numbers are in tuples, which the garbage collector does not visit.
    """

    __slots__ = ("header_bounds", "value_bounds", "values_crc")

    def __init__(self, header_sizes: npt.NDArray[np.int64], value_sizes: npt.NDArray[np.int64]) -> None:
        self.header_bounds: tuple[int, ...] = (0, *np.cumsum(header_sizes).tolist())
        self.value_bounds: tuple[int, ...] = (0, *np.cumsum(value_sizes).tolist())
        self.values_crc: int | None = None
        """The checksum of the values, cached after they are first verified."""


@dataclass(frozen=True, eq=False)
class DataFile:
    """One data file: some columns of a range of a fragment's rows."""

    id: str
    length: int
    frame_crc: int
    """Checksum of the bytes before the first page and after the last."""
    fields: tuple[int, ...]
    """The field id of each Arrow column; negative for the references to that field's blobs."""
    row_start: int
    """First row, relative to the fragment."""
    rows: int
    page_rows: npt.NDArray[np.int32]
    page_offsets: npt.NDArray[np.int64]
    """The start of each page, and the end of the last."""
    page_crcs: npt.NDArray[np.uint32]
    value_starts: npt.NDArray[np.int32]
    """Offset of the values in the page, by page and column; -1 if the page must be parsed."""
    changed: tuple[ChangedRows, ...] = ()
    blobs: tuple[BlobUse, ...] = ()
    bounds: FilePageBounds | None = None
    """Bounds of the values in each page; None if unknown."""
    decoded_bytes: tuple[int | None, ...] = ()
    """For each Arrow column the approximate bytes of its decoded images; None for other columns; empty if unknown."""

    def page_bounds(self, field_id: int) -> PageBounds | None:
        """The bounds of a field in each page; None if unknown."""
        return None if self.bounds is None else self.bounds.by_field.get(field_id)

    @property
    def key(self) -> str:
        return data_key(self.id)

    @property
    def row_end(self) -> int:
        return self.row_start + self.rows

    @cached_property
    def page_ends(self) -> npt.NDArray[np.int64]:
        """End row of each page, relative to the file."""
        return np.cumsum(self.page_rows, dtype=np.int64)

    @cached_property
    def offsets(self) -> list[int]:
        """`page_offsets` as Python integers, for loops over pages."""
        offsets: list[int] = self.page_offsets.tolist()
        return offsets

    @cached_property
    def row_ends(self) -> list[int]:
        """`page_ends` as Python integers, for loops over pages."""
        ends: list[int] = self.page_ends.tolist()
        return ends

    @cached_property
    def changes_since(self) -> dict[str, dict[int, ChangedRows]]:
        """The entries of `changed` by base and field."""
        found: dict[str, dict[int, ChangedRows]] = {}
        for change in self.changed:
            found.setdefault(change.base, {}).setdefault(change.field, change)
        return found

    @cached_property
    def column_of(self) -> dict[int, int]:
        """The index of the Arrow column of each entry of `fields`."""
        return {id: column for column, id in enumerate(self.fields)}

    def values_at(self, field_id: int, row_bytes: int) -> list[int]:
        """The column of `value_starts` of a fixed-width field; raises `CorruptError` if values exceed their page.

        Checked once, so that a read never leaves the bytes that a page's checksum covers.
        """
        key = field_id, row_bytes
        if key not in self._values_at:
            starts = self.value_starts[:, self.column_of[field_id]].astype(np.int64)
            ends = starts + self.page_rows.astype(np.int64) * row_bytes
            if ((starts >= 0) & (ends > np.diff(self.page_offsets))).any():
                raise corrupt_error(self.key, "its manifest places values outside their page")
            self._values_at[key] = starts.tolist()
        return self._values_at[key]

    @cached_property
    def _values_at(self) -> dict[tuple[int, int], list[int]]:
        return {}

    @cached_property
    def dense_row_bytes(self) -> int | None:
        """Bytes per row if the file has one column and all its pages are dense, else None."""
        if len(self.fields) != 1 or not len(self.page_rows) or (self.value_starts < 0).any():
            return None
        sizes = np.diff(self.page_offsets) - self.value_starts[:, 0]
        width = int(sizes[0]) // max(1, int(self.page_rows[0]))
        return width if (sizes == self.page_rows.astype(np.int64) * width).all() else None

    @cached_property
    def _dense_pages(self) -> dict[tuple[int, int], "DensePages"]:
        return {}

    def dense_pages(self, first: int, end: int) -> "DensePages":
        """A range of dense pages; cached, because every epoch reads the same ranges."""
        pages = self._dense_pages.get((first, end))
        if pages is None:
            sizes: npt.NDArray[np.int64] = np.diff(self.page_offsets[first : end + 1])
            headers = self.value_starts[first:end, 0].astype(np.int64)
            pages = self._dense_pages[first, end] = DensePages(headers, sizes - headers)
        return pages

    def page_range(self, page: int) -> ByteRange:
        return ByteRange(self.offsets[page], self.offsets[page + 1])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DataFile) and (self.id, self.row_start) == (other.id, other.row_start)

    def __hash__(self) -> int:
        return hash(self.id)


_row_start, _row_end = attrgetter("row_start"), attrgetter("row_end")


@dataclass(frozen=True)
class Fragment:
    """A run of rows. The files of a field cover all rows exactly once, or no file holds it (see `Field.fill`)."""

    id: int
    rows: int
    """Rows in the files, including deleted ones."""
    row_ids: tuple[RowRange, ...]
    """Ids of the rows in order, as ranges."""
    files: tuple[DataFile, ...]
    deleted: bytes | None = None
    """Bitmap over the rows, least significant bit first; None if no row is deleted."""
    live: int = -1
    statistics: tuple[Statistics, ...] = ()

    def __post_init__(self) -> None:
        if self.live < 0:
            object.__setattr__(self, "live", self.rows - int(self.deleted_rows.sum()))

    @property
    def deleted_rows(self) -> npt.NDArray[np.bool_]:
        if self.deleted is None:
            return np.zeros(self.rows, bool)
        return unpack_bitmap(self.deleted, self.rows)

    @cached_property
    def live_rows(self) -> npt.NDArray[np.int64]:
        """Indices of the rows that are not deleted."""
        return np.arange(self.rows) if self.deleted is None else np.flatnonzero(~self.deleted_rows)

    def stored_rows(self, live: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Rows by their index among those that are not deleted."""
        return live if self.deleted is None else self.live_rows[live]

    @property
    def all_row_ids(self) -> npt.NDArray[np.int64]:
        """The id of every row, including deleted ones."""
        parts = [np.arange(run.start, run.end, dtype=np.int64) for run in self.row_ids]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    @property
    def bytes(self) -> int:
        """Bytes of all files and of the blobs they refer to."""
        return sum(file.length + sum(blob.length for blob in file.blobs) for file in self.files)

    def row_ids_at(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The ids of rows, by index."""
        starts = np.array([run.start for run in self.row_ids], np.int64)
        ends = np.cumsum([run.count for run in self.row_ids], dtype=np.int64)
        runs = np.searchsorted(ends, rows, side="right")
        before = np.concatenate([[0], ends[:-1]])
        return np.asarray(starts[runs] + rows - before[runs], np.int64) if len(rows) else np.zeros(0, np.int64)

    def rows_of_ids(self, ids: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Which of some ascending ids its rows have, by index, and those rows; deleted ones count."""
        if len(self.row_ids) == 1:
            [run] = self.row_ids
            first, last = np.searchsorted(ids, (run.start, run.end)).tolist()
            return np.arange(first, last), ids[first:last] - run.start
        runs = sorted(zip(self.row_ids, np.cumsum([0, *(run.count for run in self.row_ids)]).tolist(), strict=False),
                      key=lambda run: run[0].start)  # fmt: skip
        starts, ends = (np.array([getattr(run, name) for run, _ in runs], np.int64) for name in ("start", "end"))
        first, last = np.searchsorted(ids, (starts[0], ends.max())).tolist() if runs else (0, 0)
        inside = ids[first:last]
        at = np.searchsorted(starts, inside, side="right") - 1
        known = inside < ends[at]
        before = np.array([row for _, row in runs], np.int64)
        rows = before[at] + inside - starts[at]
        return np.flatnonzero(known) + first, rows[known]

    def files_of(self, field_id: int) -> tuple[DataFile, ...]:
        """The files that hold a field, in row order."""
        return self._by_field.get(field_id, ())

    def files_between(self, field_id: int, start: int, end: int) -> tuple[DataFile, ...]:
        """The files that hold a field for rows [start, end), in row order."""
        files = self.files_of(field_id)
        first = bisect_right(files, start, key=_row_end)
        return files[first : bisect_left(files, end, lo=first, key=_row_start)]

    @cached_property
    def _by_field(self) -> dict[int, tuple[DataFile, ...]]:
        found: dict[int, list[DataFile]] = {}
        for file in sorted(self.files, key=lambda file: file.row_start):
            for field_id in file.fields:
                found.setdefault(field_id, []).append(file)
        return {field_id: tuple(files) for field_id, files in found.items()}

    def without_rows(self, mask: npt.NDArray[np.bool_]) -> "Fragment":
        """This fragment with the masked rows deleted too."""
        return replace(self, deleted=pack_bitmap(self.deleted_rows | mask), live=-1)


def pack_bitmap(rows: npt.NDArray[np.bool_]) -> bytes:
    """Encode a mask as a bitmap, least significant bit first."""
    return np.packbits(rows, bitorder="little").tobytes()


def unpack_bitmap(bits: bytes, count: int) -> npt.NDArray[np.bool_]:
    """Inverse of `pack_bitmap`; empty bytes mean that no bit is set."""
    if not bits:
        return np.zeros(count, bool)
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=count, bitorder="little").view(bool)
