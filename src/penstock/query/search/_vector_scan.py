"""Exact scores of vectors: pages are read ahead in threads, and each thread scores what it has read."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from penstock.format import DataFile, Field, Fragment
from penstock.query.indexes import vector_kind
from penstock.query.search._metrics import FloatArray, VectorQuery, best, squared_norms
from penstock.query.search._scores import Float32Array, Ranked
from penstock.storage import Prefetch, read_ahead
from penstock.table import FragmentRows, Int64Array, Reader, dense_runs, fetch_pages, gather

T = TypeVar("T")

_BLOCK_BYTES = 16 << 20
_FEW_ROWS = 128
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
    if len(positions) <= _FEW_ROWS:
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
    raw = reader.raw_columns([field], [positions])[0][field.name]
    values = query.as_floats(vector_kind(field).view(raw.array) if raw.dense is None else raw.dense)
    scores = query.scores(values, squared_norms(values) if query.needs_norms else None)
    if raw.array is not None and raw.array.null_count:
        scores[~np.asarray(raw.array.is_valid())] = np.nan
    return scores


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
            yield fragment, inside - start if fragment.deleted is None else fragment.live_rows[inside - start], inside
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
    selected = block.selected
    with reader.missing_as_corrupt():
        pages = fetch_pages(reader.store, [selected], [field.id], max_workers=1)
    runs = dense_runs(field, selected, pages)
    valid: npt.NDArray[np.bool_] | None = None
    if runs is None:
        array = gather(reader.snapshot.schema, field, [selected], pages, as_arrow=True).array
        assert array is not None
        runs = [vector_kind(field).view(array)[None]]
        valid = np.asarray(array.is_valid()) if array.null_count else None
    values = [query.as_floats(run) for run in runs]
    squares = _squares(field, block, values) if query.needs_norms else None
    scores, done = np.empty(len(selected.rows), np.float32), 0
    for run in values:
        part = slice(done, done + run.shape[0] * run.shape[1])
        scores[part] = query.scores(run, None if squares is None else squares[part])
        done = part.stop
    if valid is not None:
        scores[~valid] = np.nan
    return scores


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


def _squares(field: Field, block: Block, runs: Sequence[FloatArray]) -> npt.NDArray[np.float32]:
    """The squared norms of a block's rows."""
    if block.file is None:
        return np.concatenate([squared_norms(run) for run in runs])
    known, rows = _NORMS.of_file(block.file, field), block.selected.rows - block.file.row_start
    inside = rows if block.selected.contiguous is None else slice(int(rows[0]), int(rows[-1]) + 1)
    squares = known[inside]
    if np.isnan(squares).any():
        squares = np.concatenate([squared_norms(run) for run in runs])
        known[inside] = squares
    return squares
