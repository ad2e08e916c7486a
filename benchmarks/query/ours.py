"""Our questions, by the calls that users make; each answers with what it found and the seconds it took."""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

import penstock
from benchmarks.query.data import FloatArray
from benchmarks.query.digests import digest
from penstock.format import DataFile
from penstock.storage import Prefetch, read_ahead
from penstock.table import FragmentRows, fetch_pages

T = TypeVar("T")
_BLOCK_BYTES = 8 << 20
_SCAN_THREADS = Prefetch(2, 64 << 20)


class Found(NamedTuple):
    """Rows that were found, the best first."""

    ids: list[int]
    scores: list[float]


def timed(job: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    found = job()
    return found, time.perf_counter() - start


def count(ds: penstock.Dataset, where: str) -> tuple[int, float]:
    """The number of rows of a filter."""
    return timed(lambda: len(ds.where(where)))


def rows(ds: penstock.Dataset, where: str) -> tuple[str, float]:
    """A digest of the row ids and rewards of a filter; row ids are ids, because rows are where they were appended."""
    found, taken = timed(lambda: ds.query(f"SELECT _row_id, reward FROM ds WHERE {where}").to_arrow())
    return digest(found["_row_id"].to_numpy(), found["reward"].to_numpy()), taken


def search(ds: penstock.Dataset, k: int, **asked: Any) -> tuple[Found, float]:
    """The best rows by `Dataset.search`; vectors are compared by cosine."""
    if "vector" in asked:
        asked["metric"] = "cosine"
    if "text" in asked:
        asked["text_column"] = "caption"

    def find() -> Any:
        return ds.search(k=k, **asked).select(["_row_id", "score"]).to_arrow()

    found, taken = timed(find)
    return Found(found["_row_id"].to_pylist(), found["score"].to_pylist()), taken


def hybrid(ds: penstock.Dataset, vector: FloatArray, words: str, where: str, k: int) -> tuple[Found, float]:
    """The best rows by a weighted sum, in one statement."""
    sql = (
        f"SELECT _row_id, 0.7*cosine_similarity(emb, ?) + 0.3*bm25(caption, '{words}') AS score FROM ds "
        f"WHERE {where} ORDER BY score DESC LIMIT {k}"
    )
    found, taken = timed(lambda: ds.query(sql, params=[vector]).to_arrow())
    return Found(found["_row_id"].to_pylist(), found["score"].to_pylist()), taken


def read_pages(ds: penstock.Dataset, column: str) -> float:
    """Read and verify all pages of a column, and do nothing with them."""
    reader = ds._reader
    field = reader.snapshot.schema[column]
    blocks = [
        FragmentRows(fragment, np.arange(start, end))
        for fragment in reader.tree.fragments(reader.snapshot.nodes)
        for file in fragment.files_of(field.id)
        for start, end in _page_groups(file)
    ]

    def read(block: FragmentRows) -> None:
        fetch_pages(reader.store, [block], [field.id], max_workers=1)

    return timed(lambda: list(read_ahead(read, blocks, prefetch=_SCAN_THREADS, size=lambda _: _BLOCK_BYTES)))[1]


def pages_bytes(ds: penstock.Dataset, column: str) -> int:
    """The bytes of all pages that hold a column; columns that are stored with it count."""
    reader = ds._reader
    field = reader.snapshot.schema[column]
    return sum(
        int(file.page_offsets[-1] - file.page_offsets[0])
        for fragment in reader.tree.fragments(reader.snapshot.nodes)
        for file in fragment.files_of(field.id)
    )


def _page_groups(file: DataFile) -> Iterator[tuple[int, int]]:
    """Rows of whole pages, some MiB at a time."""
    ends = file.row_start + np.cumsum(file.page_rows, dtype=np.int64)
    group = (file.page_offsets[1:] - file.page_offsets[0] - 1) // _BLOCK_BYTES
    last = np.flatnonzero(np.append(np.diff(group), 1))
    start = file.row_start
    for end in ends[last].tolist():
        yield start, end
        start = end
