"""Exact scores of vectors: pages are read ahead in threads, and each thread scores what it has read."""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from penstock.errors import CorruptError
from penstock.format import DataFile, Field, Fragment, Node, crc32c
from penstock.history import Tree
from penstock.query.indexes import vector_kind
from penstock.query.search._metrics import VectorQuery, best, inner_products, squared_norms
from penstock.query.search._scores import Float32Array, Ranked
from penstock.storage import Prefetch, read_ahead
from penstock.table import FragmentRows, Int64Array, Pages, RandomRowReader, Reader, dense_runs, fetch_pages, gather
from penstock.types import ByteRange

T = TypeVar("T")

_BLOCK_BYTES = 16 << 20
_FEW_ROWS = 128
_FEW_LOCAL_ROWS = 4096
_PIECE_BYTES = 1 << 20
_LOCAL_PREFETCH = Prefetch(2, 64 << 20)
_REMOTE_PREFETCH = Prefetch(16, 64 << 20)
_CACHED_NORM_BYTES = 64 << 20


@dataclass(frozen=True)
class Block:
    """Rows whose pages are read and scored together, and their positions in the table."""

    selected: FragmentRows
    positions: Int64Array
    file: DataFile | None
    """The only file that holds the rows; None if the fragment stores no values of the column."""
    bytes: int
    """Bytes of the file's pages that the rows are among."""


def scan_top(reader: Reader, field: Field, query: VectorQuery, count: int, allowed: Int64Array | None) -> Ranked:
    """The best rows among the `allowed` ones (ascending positions; None for all), with exact scores."""

    def score(block: Block) -> Ranked:
        scores = _score(reader, field, query, block)
        chosen = best(scores, count, higher_is_better=query.higher_is_better)
        return Ranked(block.positions[chosen], scores[chosen])

    found = Ranked(np.zeros(0, np.int64), np.zeros(0, np.float32))
    for part in _read_ahead(reader, score, blocks(reader, field, allowed)):
        found = merge_ranked([found, part], count, higher_is_better=query.higher_is_better)
    return found


def scan_scores(reader: Reader, field: Field, query: VectorQuery, positions: Int64Array) -> Float32Array:
    """The exact scores of rows at ascending positions."""
    if len(positions) <= (_FEW_LOCAL_ROWS if reader.store.is_local else _FEW_ROWS):
        return _few_scores(reader, field, query, positions)
    scores, done = np.empty(len(positions), np.float32), 0
    for part in _read_ahead(
        reader, lambda block: _score(reader, field, query, block), blocks(reader, field, positions)
    ):
        scores[done : done + len(part)] = part
        done += len(part)
    return scores


def _few_scores(reader: Reader, field: Field, query: VectorQuery, positions: Int64Array) -> Float32Array:
    """`scan_scores` without threads that read ahead."""
    rows, missing = _random_rows(reader, field, positions), None
    if rows is None:
        raw = reader.raw_columns([field], [positions])[0][field.name]
        rows = vector_kind(field).view(raw.array) if raw.dense is None else raw.dense
        missing = None if raw.array is None else np.asarray(raw.array.is_null())
    values = query.as_floats(rows)
    squares = squared_norms(values) if query.needs_norms else None
    scores = query.scores(inner_products(values, query.vector), squares, lambda some: rows[some])
    if missing is not None:
        scores[missing] = np.nan
    return scores


class _VersionReader:
    """Reads rows of the version that was last asked for, so that its pages are verified once."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._version: tuple[Node, ...] | None = None
        self._rows: RandomRowReader

    def read(self, reader: Reader, field: Field, positions: Int64Array) -> npt.NDArray[Any] | None:
        """One column; None if pages must be read, or if another thread reads, or did when this process was forked."""
        if not self._lock.acquire(blocking=False):
            return None
        try:
            if self._version != reader.snapshot.nodes:
                self._version, self._rows = reader.snapshot.nodes, RandomRowReader(reader.store)
            located = reader.locate(positions)
            return self._rows.read(field, located, np.arange(len(positions)), len(positions), np.empty)
        finally:
            self._lock.release()


_readers: "WeakKeyDictionary[Tree, _VersionReader]" = WeakKeyDictionary()
"""By tree, which nothing here refers to."""


def _random_rows(reader: Reader, field: Field, positions: Int64Array) -> npt.NDArray[Any] | None:
    """Rows of local files without the rest of their pages; None if pages must be read."""
    if not reader.store.is_local:
        return None
    with reader.missing_as_corrupt():
        return _readers.setdefault(reader.tree, _VersionReader()).read(reader, field, positions)


def scan_bytes(reader: Reader, field: Field, positions: Int64Array) -> tuple[int, int]:
    """The number of pages that hold rows at ascending positions, and their bytes."""
    count = size = 0
    for fragment, rows, _ in _fragments(reader, positions):
        for file in fragment.files_of(field.id):
            low, high = np.searchsorted(rows, (file.row_start, file.row_end)).tolist()
            pages = np.unique(np.searchsorted(file.page_ends, rows[low:high] - file.row_start, side="right"))
            count += len(pages)
            size += int(np.diff(file.page_offsets)[pages].sum())
    return count, size


def merge_ranked(parts: list[Ranked], count: int, *, higher_is_better: bool) -> Ranked:
    """The best rows of several rankings of different rows."""
    positions = np.concatenate([part.positions for part in parts])
    scores = np.concatenate([part.scores for part in parts])
    order = np.argsort(positions)
    chosen = order[best(scores[order], count, higher_is_better=higher_is_better)]
    return Ranked(positions[chosen], scores[chosen])


def blocks(reader: Reader, field: Field, positions: Int64Array | None) -> Iterator[Block]:
    """Rows in blocks of whole pages, in row order; pages without a selected row are in no block."""
    for fragment, rows, start in _fragments(reader, positions):
        files = fragment.files_of(field.id)
        if not files:
            yield Block(FragmentRows(fragment, rows), start, None, 0)
        for file in files:
            for first, end, size in _page_groups(file):
                low, high = np.searchsorted(rows, (file.row_start + first, file.row_start + end)).tolist()
                if low < high:
                    yield Block(FragmentRows(fragment, rows[low:high]), start[low:high], file, size)


def _fragments(reader: Reader, positions: Int64Array | None) -> Iterator[tuple[Fragment, Int64Array, Int64Array]]:
    """Fragments, their selected rows and the positions of these."""
    if positions is not None:
        for fragment, start, inside in reader.tree.fragments_at(reader.snapshot.nodes, positions):
            yield fragment, fragment.stored_rows(inside - start), inside
        return
    start = 0
    for fragment in reader.tree.fragments(reader.snapshot.nodes):
        yield fragment, fragment.live_rows, np.arange(start, start + fragment.live)
        start += fragment.live


def _page_groups(file: DataFile) -> Iterator[tuple[int, int, int]]:
    """Rows of the file, by groups of pages of about the size of a block: first row, end row and bytes."""
    page, first_row, last = 0, 0, len(file.row_ends)
    while page < last:
        end = int(np.searchsorted(file.page_offsets, file.offsets[page] + _BLOCK_BYTES, side="right")) - 1
        end = min(max(end, page + 1), last)
        yield first_row, file.row_ends[end - 1], file.offsets[end] - file.offsets[page]
        page, first_row = end, file.row_ends[end - 1]


def _read_ahead(reader: Reader, read: Callable[[Block], T], tasks: Iterator[Block]) -> Iterator[T]:
    prefetch = _LOCAL_PREFETCH if reader.store.is_local else _REMOTE_PREFETCH
    return read_ahead(read, tasks, prefetch=prefetch, size=lambda block: block.bytes)


def _score(reader: Reader, field: Field, query: VectorQuery, block: Block) -> Float32Array:
    try:
        pieces = _dense_pieces(reader, field, block)
        if pieces is not None:
            return _score_pieces(field, query, block, pieces)
    except CorruptError:  # perhaps damaged in transit: read again, which names the page if it is damaged
        pass
    with reader.missing_as_corrupt():
        pages = fetch_pages(reader.store, [block.selected], [field.id], max_workers=1)
    runs = dense_runs(field, block.selected, pages)
    if runs is not None:
        return _score_pieces(field, query, block, runs)
    array = gather(reader.snapshot.schema, field, [block.selected], pages, as_arrow=True).array
    assert array is not None
    scores = _score_pieces(field, query, block, [vector_kind(field).view(array)[None]])
    if array.null_count:
        scores[~np.asarray(array.is_valid())] = np.nan
    return scores


def _dense_pieces(reader: Reader, field: Field, block: Block) -> Iterator[npt.NDArray[Any]] | None:
    """The values of a block of whole dense pages, a few pages at a time; None for another block.

    Pages are verified one moment before they are scored, so that the processor's cache still has them.
    """
    file, rows = block.file, block.selected.contiguous
    if file is None or rows is None or file.dense_row_bytes != field.fixed_row_bytes:
        return None
    first = bisect_right(file.row_ends, rows.start - file.row_start)
    end = bisect_left(file.row_ends, rows.stop - file.row_start) + 1
    with reader.missing_as_corrupt():
        whole = ByteRange(file.offsets[first], file.offsets[end])
        data = next(iter(reader.store.get_parts(file.key, [whole])))
    pages = Pages()
    pages.add(file, first, data)
    runs = dense_runs(field, block.selected, pages)
    return None if runs is None else _verified(file, first, data, runs)


def _verified(
    file: DataFile, page: int, data: memoryview, runs: Sequence[npt.NDArray[Any]]
) -> Iterator[npt.NDArray[Any]]:
    offsets, crcs, start = file.offsets, file.page_crcs.tolist(), file.offsets[page]
    count = max(1, _PIECE_BYTES * len(crcs) // max(1, offsets[-1] - offsets[0]))
    for run in runs:
        for first in range(0, len(run), count):
            piece = run[first : first + count]
            for _ in range(len(piece)):
                if crc32c(data[offsets[page] - start : offsets[page + 1] - start]) != crcs[page]:
                    raise CorruptError(f"the checksum of page {page} of {file.key} does not match")
                page += 1
            yield piece


def _score_pieces(field: Field, query: VectorQuery, block: Block, pieces: Iterable[npt.NDArray[Any]]) -> Float32Array:
    """Scores of a block whose values come in pieces of shape [pages, rows, length]."""
    count, done = len(block.selected.rows), 0
    products = np.empty(count, query.vector.dtype)
    squares, known = _known_squares(field, block) if query.needs_norms else (None, True)
    seen: list[npt.NDArray[Any]] = []
    ends: list[int] = []
    for piece in pieces:
        values, part = query.as_floats(piece), slice(done, done + piece.shape[0] * piece.shape[1])
        products[part] = inner_products(values, query.vector)
        if squares is not None and not known:
            squares[part] = squared_norms(values)
        seen.append(piece)
        ends.append(part.stop)
        done = part.stop
    if squares is not None and not known:
        _keep_squares(field, block, squares)

    def rows_at(rows: Int64Array) -> npt.NDArray[Any]:
        found = np.empty((len(rows), seen[0].shape[-1]), seen[0].dtype)
        pieces_of = np.searchsorted(ends, rows, side="right")
        for number in np.unique(pieces_of).tolist():
            mine, start = pieces_of == number, ends[number - 1] if number else 0
            found[mine] = seen[number].reshape(-1, found.shape[1])[rows[mine] - start]
        return found

    return query.scores(products, squares, rows_at)


class _Norms:
    """Squared norms of rows by file, at most as many as fit the budget: later queries need not compute them again."""

    def __init__(self) -> None:
        self._files: OrderedDict[tuple[str, int], npt.NDArray[np.float32]] = OrderedDict()
        self._bytes, self._lock = 0, Lock()

    def of_file(self, file: DataFile, field: Field) -> npt.NDArray[np.float32]:
        """One entry for each row of a file, NaN where it is not known; files never change, so entries stay right."""
        with self._lock:
            found = self._files.pop((file.id, field.id), None)
            if found is None:
                found = np.full(file.rows, np.nan, np.float32)
                self._bytes += found.nbytes
            self._files[file.id, field.id] = found
            while self._bytes > _CACHED_NORM_BYTES and len(self._files) > 1:
                self._bytes -= self._files.popitem(last=False)[1].nbytes
        return found


_NORMS = _Norms()


def _known_squares(field: Field, block: Block) -> tuple[npt.NDArray[np.float32], bool]:
    """The squared norms of a block's rows if an earlier query computed them, and whether it did."""
    if block.file is None:
        return np.empty(len(block.selected.rows), np.float32), False
    squares = _NORMS.of_file(block.file, field)[_rows_in_file(block)]
    return squares.copy(), not np.isnan(squares).any()


def _keep_squares(field: Field, block: Block, squares: npt.NDArray[np.float32]) -> None:
    if block.file is not None:
        _NORMS.of_file(block.file, field)[_rows_in_file(block)] = squares


def _rows_in_file(block: Block) -> slice | Int64Array:
    assert block.file is not None
    rows = block.selected.rows - block.file.row_start
    return rows if block.selected.contiguous is None else slice(int(rows[0]), int(rows[-1]) + 1)
