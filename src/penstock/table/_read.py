"""Read rows of a snapshot: any rows in any order, or many in sequence with read-ahead."""

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO, RawIOBase
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import AccessDenied, CorruptError, InvalidInputError, NotFoundError, SampleError, SnapshotExpired
from penstock.format import Commit, Field, Fragment, Snapshot, linked_kind
from penstock.format.kinds import Kind, Linked, Place, Tensor, Values
from penstock.history import Tree, check_not_condemned, expired, lease
from penstock.storage import Store
from penstock.table._blobs import BlobReader, LinkReader, as_blob, read_blob
from penstock.table._links import Containers
from penstock.table._pages import (
    Cells,
    Rows,
    Wanted,
    by_fragment,
    fetch,
    gather,
    number_pieces,
    references_in,
)

ROW_ID = "_row_id"
"""The column that every table has and no file holds."""

T = TypeVar("T")

_RANDOM_READERS = 16
_AHEAD = 4
_JOB_BYTES = 8 << 20


@dataclass(frozen=True)
class Reader:
    """Reads one snapshot."""

    store: Store
    tree: Tree
    containers: Containers
    snapshot: Snapshot
    commit: Commit
    """The version that this is, or is based on."""
    name: str = ""
    """What people call that version: `main@7`."""

    def cells(
        self,
        fields: Sequence[Field],
        positions: Sequence[Rows],
        *,
        parse: bool = False,
        max_workers: int = _RANDOM_READERS,
    ) -> list[dict[str, Cells]]:
        """Columns of several groups of rows, each in rising order; a page that two groups need is read once."""
        ids = [field.id for field in fields]
        groups = [self.wanted(rows) for rows in positions]
        with self.explained():
            pages = fetch(self.store, [want for group in groups for want in group], ids, max_workers=max_workers)
        return [
            {field.name: gather(self.snapshot.schema, field, group, pages, parse=parse) for field in fields}
            for group in groups
        ]

    def wanted(self, positions: Rows) -> list[Wanted]:
        """Where rows are, given in rising order of position."""
        with self.explained():
            return by_fragment(self.tree.at(self.snapshot.nodes, positions))

    def columns(
        self, names: Sequence[str], positions: Sequence[Rows], *, max_workers: int = _RANDOM_READERS
    ) -> list[dict[str, "Filled"]]:
        """Values of several groups of rows in any order."""
        fields = [self.snapshot.schema[name] for name in names if name != ROW_ID]
        ordered = [_ordered(rows) for rows in positions]
        groups = self.cells(fields, [rows for rows, _ in ordered], max_workers=max_workers)
        found = []
        for cells, (rows, inverse) in zip(groups, ordered, strict=True):
            columns = {}
            for name in names:
                if name == ROW_ID:
                    columns[name] = Filled(self.row_ids(rows), None).reordered(inverse)
                else:
                    columns[name] = self.values(self.snapshot.schema[name], cells[name]).reordered(inverse)
            found.append(columns)
        return found

    def values(self, field: Field, cells: Cells) -> "Filled":
        """What a user sees of some cells: decoded, blobs and links followed."""
        if cells.numbers is not None:
            return Filled(cells.numbers, np.ones(len(cells.numbers), bool) if field.nullable else None)
        array = cells.array
        assert array is not None
        kind = linked_kind(field.kind)
        try:
            values = self._decode(field, kind, array, cells)
        except SampleError as error:
            raise SampleError(f"column {field.name!r}: {error}") from error
        nullable = field.nullable and isinstance(values, np.ndarray)
        return Filled(values, np.asarray(array.is_valid()) if nullable else None)

    def _decode(self, field: Field, kind: Kind, array: pa.Array, cells: Cells) -> Values:
        try:
            return kind.to_values(self.resolved(field, array, cells))
        except (pa.ArrowInvalid, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise SampleError(f"the bytes are no {kind}: {error}") from error

    def resolved(self, field: Field, array: pa.Array, cells: Cells) -> pa.Array:
        """An array with the bytes that links and references stand for in their places."""
        if isinstance(field.kind, Linked) and array.type == field.kind.arrow_type:
            found = pa.array(self.containers.read(field.kind.to_values(array)), pa.large_binary())
            return found if field.kind.to.arrow_type == pa.binary() else found.cast(pa.large_string())
        blobs = references_in(cells)
        if not blobs:
            return array
        values = array.to_pylist()
        for row, reference in blobs.items():
            values[row] = read_blob(self.store, as_blob(reference))
        return pa.array(values, pa.large_binary())

    def arrow(self, names: Sequence[str], positions: Rows) -> pa.Table:
        """Rows in any order as an Arrow table; media stay encoded, blobs and links become the bytes they stand for."""
        rows, inverse = _ordered(positions)
        fields = [self.snapshot.schema[name] for name in names if name != ROW_ID]
        cells = self.cells(fields, [rows], parse=True)[0]
        columns = {}
        for name in names:
            if name == ROW_ID:
                columns[name] = pa.array(self.row_ids(rows))
            else:
                columns[name] = self._arrow_column(self.snapshot.schema[name], cells[name])
        table = pa.table(columns)
        return table if inverse is None else table.take(pa.array(inverse))

    def _arrow_column(self, field: Field, cells: Cells) -> pa.Array:
        array = plain(field, self.resolved(field, cells.array, cells))
        return array.cast(pa.large_binary()) if array.type == pa.binary() else array  # a group may hold blobs, or not

    def open(self, field: Field, position: int) -> RawIOBase | BytesIO:
        """One value of bytes as a file that fetches only what is read."""
        if linked_kind(field.kind).arrow_type != pa.binary():
            raise InvalidInputError(
                f"column {field.name!r} holds {field.kind} and not bytes: it cannot be opened as a file"
            )
        cells = self.cells([field], [np.array([position])], parse=True)[0][field.name]
        assert cells.array is not None
        for reference in references_in(cells).values():
            return BlobReader(self.store, as_blob(reference))
        [value] = field.kind.to_values(cells.array) if isinstance(field.kind, Linked) else cells.array.to_pylist()
        if value is None:
            raise NotFoundError(f"column {field.name!r} has no value in row {position}")
        return LinkReader(self.containers.store(value.container), value) if isinstance(value, Place) else BytesIO(value)

    def row_ids(self, positions: Rows) -> Rows:
        """Ids of rows in rising order of position."""
        parts = [want.fragment.all_row_ids[want.rows] for want in self.wanted(positions)]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def positions_of(self, row_ids: Rows) -> Rows:
        """Positions of rows by their ids, in the order asked; -1 for ids that no row has."""
        wanted, inverse = np.unique(row_ids, return_inverse=True)
        positions = np.full(len(wanted), -1, np.int64)
        for fragment, start in self.tree.with_ids(self.snapshot.nodes, wanted):
            live = fragment.all_row_ids[fragment.live_rows]
            _, here, there = np.intersect1d(wanted, live, return_indices=True)
            positions[here] = start + there
        return positions[inverse]

    def batches(self, names: Sequence[str], groups: Iterator[Rows]) -> Iterator[dict[str, "Filled"]]:
        """Values of many groups of rows, one after the other, read ahead in a few threads."""
        fields = [self.snapshot.schema[name] for name in names if name != ROW_ID]
        jobs = _jobs(groups, max(1, _JOB_BYTES // max(1, self._row_bytes(fields))))
        return read_ahead(lambda job: self.columns(names, job, max_workers=2), jobs, threads=_AHEAD)

    def pages(self, names: Sequence[str], start: int, end: int) -> Iterator[dict[str, Values]]:
        """Batches of consecutive rows, cut where pages of the heaviest column end, so that its arrays are views."""
        jobs = self._page_jobs(names, start, end)
        return read_ahead(lambda job: self._page_batches(names, job), jobs, threads=_AHEAD)

    def _page_jobs(self, names: Sequence[str], start: int, end: int) -> Iterator["_PageJob"]:
        """A job for each file of the heaviest column."""
        fields = [self.snapshot.schema[name] for name in names if name != ROW_ID]
        position = 0
        for fragment in self.tree.fragments(self.snapshot.nodes):
            first, last = max(start - position, 0), min(end - position, fragment.live)
            position += fragment.live
            if first >= last:
                continue
            rows = fragment.live_rows[first:last]
            heavy = max(fields, key=lambda field: _file_bytes(fragment, field), default=None)
            files = () if heavy is None else fragment.files_of(heavy.id)
            if heavy is None or not files:
                yield _PageJob(Wanted(fragment, rows), None)
            for file in files:
                inside = rows[slice(*np.searchsorted(rows, (file.row_start, file.row_end)))]
                if len(inside):
                    yield _PageJob(Wanted(fragment, inside), heavy)

    def _page_batches(self, names: Sequence[str], job: "_PageJob") -> list[dict[str, Values]]:
        """The batches of one job; there are thousands a second, so each is nothing but a dictionary."""
        fields = {name: self.snapshot.schema[name] for name in names if name != ROW_ID}
        with self.explained():
            pages = fetch(self.store, [job.want], [field.id for field in fields.values()], max_workers=1)
        pieces = None if job.heavy is None else number_pieces(job.heavy, job.want, pages)
        counts = [len(job.want.rows)]
        if job.heavy is not None:
            counts = [_count(part.rows) for part in job.want.parts(job.heavy.id)]
        columns: dict[str, list[Any]] = {}
        for name in names:
            if pieces is not None and name != ROW_ID and fields[name] is job.heavy:
                columns[name] = pieces
                if fields[name].nullable:
                    columns[f"{name}_mask"] = [np.ones(count, bool) for count in counts]
                continue
            if name == ROW_ID:
                column = Filled(job.want.fragment.all_row_ids[job.want.rows], None)
            else:
                column = self.values(fields[name], gather(self.snapshot.schema, fields[name], [job.want], pages))
            for label, values in as_batch({name: column}).items():
                columns[label] = _split(values, counts)
        return [dict(zip(columns, batch, strict=True)) for batch in zip(*columns.values(), strict=True)]

    @contextmanager
    def lease(self, seconds: float) -> Iterator[bool]:
        """Keep this version from vacuum; yields False, instead of failing, where this user may not write."""
        held = lease(self.store, self.commit, seconds=seconds)
        try:
            held.__enter__()
        except AccessDenied:
            yield False
            return
        try:
            check_not_condemned(self.store, self.commit)
            yield True
        finally:
            held.__exit__(None, None, None)

    @property
    def without_lease(self) -> str:
        """What to tell whoever reads this version without keeping it."""
        return (
            f"{self.store.uri} cannot be written by this user, so nothing keeps this version from vacuum "
            "while it is read; if it is removed, reading raises SnapshotExpired"
        )

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Say why an object of this version is missing: vacuum has removed the version, or somebody the object."""
        try:
            with self.unless_expired():
                yield
        except SnapshotExpired:
            raise
        except NotFoundError as error:
            raise CorruptError(f"an object that this version needs is missing: {error}") from error

    @contextmanager
    def unless_expired(self) -> Iterator[None]:
        """If something is not found, and vacuum has removed this version, then that is why."""
        try:
            yield
        except NotFoundError as error:
            try:
                self.store.head(self.commit.snapshot.key)
            except NotFoundError:
                raise expired(self.store, self.commit) from error
            raise

    def _row_bytes(self, fields: Sequence[Field]) -> int:
        """About how many bytes a row of these columns takes, judged by the first fragment."""
        first = next(iter(self.tree.fragments(self.snapshot.nodes)), None)
        if first is None:
            return 1
        files = {file for field in fields for file in first.files_of(field.id)}
        return sum(file.length for file in files) // max(1, first.rows)


@dataclass(slots=True)
class Filled:
    """A column's values, and where the column is nullable and an array, which of them are there."""

    values: Values
    mask: npt.NDArray[np.bool_] | None

    def reordered(self, inverse: Rows | None) -> "Filled":
        if inverse is None:
            return self
        mask = None if self.mask is None else self.mask[inverse]
        if isinstance(self.values, np.ndarray):
            return Filled(self.values[inverse], mask)
        return Filled([self.values[index] for index in inverse], mask)

    def item(self, index: int) -> Any:
        """One value; None where it is missing, and a plain number where it is one."""
        if self.mask is not None and not self.mask[index]:
            return None
        return self.values[index]


def as_batch(columns: Mapping[str, Filled]) -> dict[str, Values]:
    """Columns as a user gets them: `col`, and `col_mask` where the column is nullable and an array."""
    batch: dict[str, Values] = {}
    for name, column in columns.items():
        batch[name] = column.values
        if column.mask is not None:
            batch[f"{name}_mask"] = column.mask
    return batch


def plain(field: Field, array: pa.Array) -> pa.Array:
    """A column as a user of Arrow expects it: true and false, and times, as Arrow's own types."""
    if isinstance(field.kind, Tensor) and field.kind.shape == ():
        if field.kind.dtype == "bool":
            return array.cast(pa.bool_())
        if field.kind.element.logical.kind in "Mm":
            unit = field.kind.dtype.partition("[")[2].rstrip("]")
            return array.view(pa.timestamp(unit) if field.kind.element.logical.kind == "M" else pa.duration(unit))
    return array


def _ordered(rows: Rows) -> tuple[Rows, Rows | None]:
    """Rows in rising order without repeats, and how to get back; None where they were so already."""
    if len(rows) < 2 or (np.diff(rows) > 0).all():
        return rows, None
    return np.unique(rows, return_inverse=True)


@dataclass(frozen=True)
class _PageJob:
    """Rows of one file of the heaviest column."""

    want: Wanted
    heavy: Field | None


def read_ahead(read: Callable[[Any], list[T]], jobs: Iterator[Any], *, threads: int) -> Iterator[T]:
    """What jobs read, in order, while the next ones are under way in a few threads."""
    with ThreadPoolExecutor(threads, "penstock-read") as pool:
        waiting: deque[Future[list[T]]] = deque()
        try:
            for job in jobs:
                waiting.append(pool.submit(read, job))
                if len(waiting) > 2 * threads:
                    yield from waiting.popleft().result()
            while waiting:
                yield from waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _split(values: Values, counts: Sequence[int]) -> list[Values]:
    """Cut into parts of so many rows."""
    ends = list(accumulate(counts))
    return [values[end - count : end] for end, count in zip(ends, counts, strict=True)]


def _count(rows: "slice | Rows") -> int:
    return rows.stop - rows.start if isinstance(rows, slice) else len(rows)


def _file_bytes(fragment: Fragment, field: Field) -> int:
    return sum(file.length for file in fragment.files_of(field.id))


def _jobs(groups: Iterator[Rows], job_rows: int) -> Iterator[list[Rows]]:
    job: list[Rows] = []
    count = 0
    for rows in groups:
        job.append(rows)
        count += len(rows)
        if count >= job_rows:
            yield job
            job, count = [], 0
    if job:
        yield job
