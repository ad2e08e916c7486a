"""From rows to the pages that hold them, and back: plan which pages to read, read and verify them, gather the rows."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import CorruptError
from penstock.format import (
    BLOB_REFERENCE,
    DataFile,
    Field,
    FileColumn,
    Fragment,
    Schema,
    arrow_schema,
    decode_page,
    verify_pages,
)
from penstock.format.kinds import Label, Tensor
from penstock.storage import Store, run_all
from penstock.types import ByteRange, cached_property

Rows: TypeAlias = npt.NDArray[np.int64]
Empty: TypeAlias = Callable[[tuple[int, ...], npt.DTypeLike], npt.NDArray[Any]]
"""Gives an array of any content."""

_MAX_GAP_BYTES = 64 << 10
_MAX_REQUEST_BYTES = 16 << 20
NUMBER = Tensor("int64")


@dataclass(frozen=True)
class Wanted:
    """Rows of one fragment, counted with the deleted ones, in rising order."""

    fragment: Fragment
    rows: Rows
    _parts: dict[int, list["PageRows"]] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def together(self) -> range | None:
        """The rows as a range, where they follow each other."""
        if not len(self.rows) or int(self.rows[-1]) - int(self.rows[0]) != len(self.rows) - 1:  # rows rise
            return None
        return range(int(self.rows[0]), int(self.rows[-1]) + 1)

    def parts(self, field_id: int) -> list["PageRows"]:
        """The pages that hold a field of these rows; worked out once."""
        if field_id not in self._parts:
            self._parts[field_id] = list(page_rows(self.fragment, field_id, self.rows))
        return self._parts[field_id]


@dataclass(frozen=True)
class Cells:
    """One column's part of some rows: an array of numbers where a page needs no parsing, else an Arrow array."""

    numbers: npt.NDArray[Any] | None
    parts: tuple[pa.Array, ...]
    """As they lie in the pages: to join them is a copy of all their bytes."""
    references: pa.Array | None = None
    """Where values are blobs: references, null for the others."""

    @cached_property
    def array(self) -> pa.Array | None:
        return concat(self.parts) if self.parts else None

    def row(self, index: int) -> "Cells":
        """One row alone."""
        numbers, references = self.numbers, self.references
        return Cells(
            None if numbers is None else numbers[index : index + 1],
            () if self.array is None else (self.array.slice(index, 1),),
            None if references is None else references.slice(index, 1),
        )

    def rearranged(self, places: Rows, empty: Empty) -> "Cells":
        """Rows in another order, maybe repeated; numbers in an array that `empty` makes."""
        if self.numbers is not None:
            out = empty((len(places), *self.numbers.shape[1:]), self.numbers.dtype)
            return Cells(np.take(self.numbers, places, axis=0, out=out, mode="clip"), ())  # to raise costs a copy more
        references = None if self.references is None else take(self.references, places)
        return Cells(None, () if self.array is None else (take(self.array, places),), references)


class PageRows(NamedTuple):
    """Rows of one page, counted in the page; a slice where they follow each other."""

    file: DataFile
    page: int
    rows: slice | Rows


class Pages:
    """Verified pages, in runs of those that were read together."""

    def __init__(self) -> None:
        self._runs: dict[str, list[tuple[int, memoryview]]] = {}
        self._parsed: dict[tuple[str, int], pa.RecordBatch] = {}
        self._schemas: dict[tuple[int, ...], pa.Schema] = {}

    def add(self, file: DataFile, first: int, data: memoryview) -> None:
        """Take in the pages from `first` on, as many as `data` has."""
        insort(self._runs.setdefault(file.id, []), (first, data), key=itemgetter(0))

    def add_all(self, file: DataFile, runs: Iterable[tuple[int, memoryview]]) -> None:
        """Take in what `read_pages` found."""
        for first, data in runs:
            self.add(file, first, data)

    def __getitem__(self, at: tuple[DataFile, int]) -> memoryview:
        """One page."""
        file, page = at
        data, start = self.run(file, page)
        return data[file.offsets[page] - start : file.offsets[page + 1] - start]

    def parsed(self, schema: Schema, file: DataFile, page: int) -> pa.RecordBatch:
        """One page as Arrow data; parsed once for all its columns."""
        found = self._parsed.get((file.id, page))
        if found is None:
            if file.fields not in self._schemas:
                self._schemas[file.fields] = arrow_schema([file_column(schema, id) for id in file.fields])
            found = self._parsed[file.id, page] = decode_page(self._schemas[file.fields], self[file, page])
        return found

    def run(self, file: DataFile, page: int) -> tuple[memoryview, int]:
        """The run that holds a page, and where in the file it starts."""
        runs = self._runs[file.id]
        first, data = runs[bisect_right(runs, page, key=itemgetter(0)) - 1]
        return data, file.offsets[first]


def page_rows(fragment: Fragment, field_id: int, rows: Rows) -> Iterator[PageRows]:
    """Deal rows out to the pages that hold a field; pure."""
    if not len(rows):
        return
    start, end = int(rows[0]), int(rows[-1]) + 1
    together = end - start == len(rows)  # rows rise, so these follow each other
    for file in fragment.files_between(field_id, start, end):
        if together:
            yield from _page_slices(file, max(start - file.row_start, 0), min(end - file.row_start, file.rows))
            continue
        first, last = np.searchsorted(rows, (file.row_start, file.row_end)).tolist()
        if first == last:
            continue
        inside = rows[first:last] - file.row_start
        pages, starts = np.unique(np.searchsorted(file.page_ends, inside, side="right"), return_index=True)
        for page, part in zip(pages.tolist(), np.split(inside, starts[1:]), strict=True):
            local = part - int(file.page_ends[page] - file.page_rows[page])
            run = as_slice(local)
            yield PageRows(file, page, local if run is None else run)


def _page_slices(file: DataFile, start: int, end: int) -> Iterator[PageRows]:
    ends = file.row_ends
    page = bisect_right(ends, start)
    page_start = ends[page - 1] if page else 0
    while page_start < end:
        page_end = ends[page]
        yield PageRows(file, page, slice(max(start, page_start) - page_start, min(end, page_end) - page_start))
        page, page_start = page + 1, page_end


class PageRequest(NamedTuple):
    """Pages of a file that are near enough to each other to be read as one."""

    file: DataFile
    pages: Sequence[int]

    @property
    def bytes(self) -> int:
        return self.file.offsets[self.pages[-1] + 1] - self.file.offsets[self.pages[0]]


def page_requests(wanted: Sequence[Wanted], field_ids: Sequence[int]) -> list[PageRequest]:
    """What to ask a store for, so that it gives every page that the rows need; pure."""
    if len(wanted) == 1 and wanted[0].together is not None:
        return _run_requests(wanted[0].fragment, field_ids, wanted[0].together)
    needed: dict[str, tuple[DataFile, set[int]]] = {}
    for want in wanted:
        for field_id in field_ids:
            for part in want.parts(field_id):
                needed.setdefault(part.file.id, (part.file, set()))[1].add(part.page)
    return [request for file, pages in needed.values() for request in _requests(file, sorted(pages))]


def _run_requests(fragment: Fragment, field_ids: Sequence[int], rows: range) -> list[PageRequest]:
    """The same for rows that follow each other, which is what a loader asks for most."""
    found: dict[str, list[PageRequest]] = {}
    for field_id in field_ids:
        for file in fragment.files_between(field_id, rows.start, rows.stop):
            if file.id in found:
                continue
            first = bisect_right(file.row_ends, rows.start - file.row_start)
            last = bisect_left(file.row_ends, rows.stop - file.row_start, hi=len(file.row_ends) - 1)
            if file.offsets[last + 1] - file.offsets[first] <= _MAX_REQUEST_BYTES:
                found[file.id] = [PageRequest(file, range(first, last + 1))]
            else:
                found[file.id] = list(_requests(file, range(first, last + 1)))
    return [request for requests in found.values() for request in requests]


def fetch(store: Store, wanted: Sequence[Wanted], field_ids: Sequence[int], *, max_workers: int) -> Pages:
    """Read and verify every page that the rows need, neighbours together."""
    requests = page_requests(wanted, field_ids)
    found = Pages()
    workers = min(max_workers, store.fan_out)
    fetched = run_all(lambda request: read_pages(store, request), requests, max_workers=workers)
    for request, runs in zip(requests, fetched, strict=True):
        found.add_all(request.file, runs)
    return found


def _requests(file: DataFile, pages: Sequence[int]) -> Iterator[PageRequest]:
    offsets = file.offsets
    group: list[int] = []
    for page in pages:
        if group and (
            offsets[page] - offsets[group[-1] + 1] > _MAX_GAP_BYTES
            or offsets[page + 1] - offsets[group[0]] > _MAX_REQUEST_BYTES
        ):
            yield PageRequest(file, group)
            group = []
        group.append(page)
    if group:
        yield PageRequest(file, group)


def read_pages(
    store: Store, request: PageRequest, memory: Callable[[int], memoryview] | None = None
) -> list[tuple[int, memoryview]]:
    """The pages of one request; those that follow each other are verified in one pass, with the GIL released.

    With `memory`, which gives room for so many bytes, they are read to there.
    """
    found = []
    file, pages = request
    where = f"{store.uri}/{file.key}"
    offsets = file.offsets
    runs = list(_runs(pages))
    parts = [ByteRange(offsets[first], offsets[end]) for first, end in runs]
    read = store.get_parts(file.key, parts) if memory is None else _into(memory, store, file.key, parts)
    for (first, end), part, data in zip(runs, parts, read, strict=True):
        try:
            verify_pages(file, first, end, data, where)
        except CorruptError:  # perhaps it was the way and not the object: ask once more before saying so
            data = store.get(file.key, byte_range=part)
            verify_pages(file, first, end, data, where)
        found.append((first, data))
    return found


def _into(
    memory: Callable[[int], memoryview], store: Store, key: str, parts: Sequence[ByteRange]
) -> Iterator[memoryview]:
    start = parts[0].start
    whole = memory(parts[-1].end - start)
    store.read_into(key, start, [whole])
    yield from (whole[part.start - start : part.end - start].toreadonly() for part in parts)


def _runs(pages: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Pages that follow each other: first and end of each run."""
    first = last = pages[0]
    for page in pages[1:]:
        if page != last + 1:
            yield first, last + 1
            first = page
        last = page
    yield first, last + 1


def gather(schema: Schema, field: Field, wanted: Sequence[Wanted], pages: Pages, *, parse: bool = False) -> Cells:
    """One column of some rows from pages that were fetched; with `parse` always as an Arrow array."""
    numbers = None if parse else all_numbers(field, wanted, pages)
    if numbers is not None:
        return Cells(numbers, ())
    arrays: list[pa.Array] = []
    references: list[pa.Array | None] = []
    for want in wanted:
        if not want.fragment.files_of(field.id):
            arrays.append(filled(field, len(want.rows)))
            references.append(None)
        for file, page, rows in want.parts(field.id):
            batch = pages.parsed(schema, file, page)
            arrays.append(take(batch.column(file.fields.index(field.id)), rows))
            blobs = -field.id in file.fields
            references.append(take(batch.column(file.fields.index(-field.id)), rows) if blobs else None)
    if not arrays:
        return Cells(None, (pa.nulls(0, field.kind.arrow_type),))
    if all(part is None or part.null_count == len(part) for part in references):
        return Cells(None, tuple(arrays))
    whole = [
        pa.nulls(len(array), BLOB_REFERENCE) if part is None else part
        for part, array in zip(references, arrays, strict=True)
    ]
    return Cells(None, tuple(arrays), pa.concat_arrays(whole))


def stored_columns(
    store: Store, schema: Schema, fields: Sequence[Field], wanted: Sequence[Wanted], *, max_workers: int
) -> dict[int, pa.Array]:
    """Columns of some rows as stored, by field id; references to blobs by minus the field id."""
    pages = fetch(store, wanted, [known.id for known in fields], max_workers=max_workers)
    arrays: dict[int, pa.Array] = {}
    for known in fields:
        cells = gather(schema, known, wanted, pages)
        arrays[known.id] = cells.array if cells.numbers is None else known.kind.to_array(cells.numbers)
        if cells.references is not None:
            arrays[-known.id] = cells.references
    return arrays


def number_pieces(field: Field, want: Wanted, pages: Pages) -> list[npt.NDArray[Any]] | None:
    """Rows straight out of the pages' bytes, a view for each page; None where a page must be parsed."""
    kind = NUMBER if isinstance(field.kind, Label) else field.kind
    if not isinstance(kind, Tensor) or not field.stored_bytes or not want.fragment.files_of(field.id):
        return None
    element, shape = kind.element, kind.stored_shape
    width = field.stored_bytes // element.stored.itemsize
    pieces: list[npt.NDArray[Any]] = []
    current, starts, counts, offsets = None, [0], [0], [0]
    run, run_start, run_end = memoryview(b""), 0, 0
    for file, page, rows in want.parts(field.id):
        if file is not current:
            current, counts, offsets, run_end = file, file.page_rows.tolist(), file.offsets, 0
            starts = file.value_starts[:, file.fields.index(field.id)].tolist()
        if starts[page] < 0:
            return None
        if offsets[page] >= run_end:
            run, run_start = pages.run(file, page)
            run_end = run_start + len(run)
        at = offsets[page] - run_start + starts[page]
        values = np.frombuffer(run, element.stored, counts[page] * width, at).reshape(counts[page], *shape)
        whole = isinstance(rows, slice) and rows.stop - rows.start == counts[page]
        pieces.append(values if whole else values[rows])
    return pieces if element.stored == element.logical else [element.from_stored(piece) for piece in pieces]


def copy_numbers(field: Field, want: Wanted, pages: Pages, out: npt.NDArray[Any]) -> bool:
    """Put rows where they belong, straight out of the pages' bytes; False where a page must be parsed.

    Whole pages that are alike are copied in one go, with the GIL released once.
    """
    if want.together is not None and field.stored_bytes:
        files = want.fragment.files_between(field.id, want.together.start, want.together.stop)
        if len(files) == 1 and files[0].bare_row_bytes == field.stored_bytes:
            _copy_run(files[0], want.together, pages, out.reshape(len(out), -1).view(np.uint8))
            return True
    pieces = number_pieces(field, want, pages)
    if pieces is None:
        return False
    done = 0
    for piece in pieces:
        out[done : done + len(piece)] = piece
        done += len(piece)
    return True


def _copy_run(file: DataFile, rows: range, pages: Pages, out: npt.NDArray[np.uint8]) -> None:
    """Bytes of rows of one file that has no other column."""
    row, end, width = rows.start - file.row_start, rows.stop - file.row_start, out.shape[1]
    page, done = bisect_right(file.row_ends, row), 0
    while row < end:
        data, start = pages.run(file, page)
        page_start = file.row_ends[page - 1] if page else 0
        count, height = 1, min(file.row_ends[page], end) - row
        if row == page_start:
            count = _pages_alike(file, page, end, start + len(data))
        at = file.offsets[page] - start + int(file.value_starts[page, 0]) + (row - page_start) * width
        source = np.lib.stride_tricks.as_strided(
            np.frombuffer(data, np.uint8, offset=at),
            (count, height * width),
            (file.offsets[page + 1] - file.offsets[page], 1),
            writeable=False,
        )
        out[done : done + count * height].reshape(count, height * width)[...] = source
        done, row, page = done + count * height, row + count * height, page + count


def _pages_alike(file: DataFile, page: int, end_row: int, end_byte: int) -> int:
    """How many pages from one on are laid out as it is, so that they lie at equal distances; at least that one."""
    alike = _layout(file, page)
    last = page
    while (
        last + 1 < len(file.row_ends)
        and file.row_ends[last + 1] <= end_row
        and file.offsets[last + 2] <= end_byte
        and _layout(file, last + 1) == alike
    ):
        last += 1
    return last - page + 1


def _layout(file: DataFile, page: int) -> tuple[int, int, int]:
    return int(file.page_rows[page]), int(file.value_starts[page, 0]), file.offsets[page + 1] - file.offsets[page]


def all_numbers(field: Field, wanted: Sequence[Wanted], pages: Pages) -> npt.NDArray[Any] | None:
    """All rows as one array, a view where one page holds them all; None where a page must be parsed."""
    pieces: list[npt.NDArray[Any]] = []
    for want in wanted:
        found = number_pieces(field, want, pages)
        if found is None:
            return None
        pieces += found
    if not pieces:
        return None
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def take(array: pa.Array, rows: "slice | Rows") -> pa.Array:
    """Rows of an array, without a copy where they follow each other."""
    run = rows if isinstance(rows, slice) else as_slice(rows)
    if run is not None:
        return array.slice(run.start, run.stop - run.start)
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(array.type, array.storage.take(pa.array(rows)))
    return array.take(pa.array(rows))


def concat(arrays: Sequence[pa.Array]) -> pa.Array:
    """One array of many."""
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def filled(field: Field, count: int) -> pa.Array:
    """The value of rows whose fragment does not hold the field."""
    if field.fill is None:
        return pa.nulls(count, field.kind.arrow_type)
    one = decode_page(arrow_schema([FileColumn(field)]), memoryview(field.fill)).column(0)
    return take(one, np.zeros(count, np.int64))


def file_column(schema: Schema, id: int) -> FileColumn:
    """What the column of a file with this entry in the manifest is."""
    return FileColumn(schema.by_id(abs(id)), references=id < 0)


def as_slice(rows: Rows) -> slice | None:
    """The rows as a slice, where they follow each other."""
    if len(rows) and int(rows[-1]) - int(rows[0]) == len(rows) - 1 and (len(rows) < 3 or (np.diff(rows) == 1).all()):
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return None


def by_fragment(found: Iterable[tuple[Fragment, int, Rows]]) -> list[Wanted]:
    """From positions among live rows to rows of fragments."""
    return [
        Wanted(fragment, positions - start if fragment.deleted is None else fragment.live_rows[positions - start])
        for fragment, start, positions in found
    ]


def references_in(cells: Cells) -> Mapping[int, Any]:
    """The blobs among some rows: row to reference."""
    if cells.references is None:
        return {}
    return {row: blob for row, blob in enumerate(cells.references.to_pylist()) if blob is not None}
