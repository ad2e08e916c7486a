"""Lance and LanceDB, answering the same questions; run in the peers' environment."""

import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import lance  # type: ignore[import-not-found]
import lancedb  # type: ignore[import-not-found]
import pyarrow as pa
from lancedb.rerankers import RRFReranker  # type: ignore[import-not-found]

from benchmarks.query.data import SCHEMA, batches, queries
from benchmarks.query.digests import digest
from benchmarks.query.process import serve

_TABLE = "rows"
_SUB_VECTORS, _SAMPLE_RATE = 32, 64
"""The default sample rate, 256, takes longer by far and finds no more."""


def write(folder: str, rows: int) -> dict[str, Any]:
    """Write the table; the version without an index is 1."""
    reader = pa.RecordBatchReader.from_batches(SCHEMA, batches(rows))
    lancedb.connect(folder).create_table(_TABLE, reader)
    return {"versions": {name: version(name) for name in ("pylance", "lancedb")}}


def build(folder: str, kind: str, partitions: int) -> dict[str, Any]:
    """Build one of the indexes."""
    ds = lance.dataset(_uri(folder))
    start, cpu = time.perf_counter(), time.process_time()
    if kind == "scalar":
        ds.create_scalar_index("label", "BTREE")
        ds.create_scalar_index("camera", "BITMAP")
    elif kind == "bitmap":
        ds.create_scalar_index("label", "BITMAP")  # in the place of the other one
    elif kind == "text":
        ds.create_scalar_index(
            "caption", "INVERTED", with_position=False, stem=False, remove_stop_words=False, ascii_folding=False
        )
    else:
        ds.create_index(
            "emb", "IVF_PQ", metric="cosine", num_partitions=partitions, num_sub_vectors=_SUB_VECTORS,
            sample_rate=_SAMPLE_RATE,
        )  # fmt: skip
    done = {"wall_s": time.perf_counter() - start, "cpu_s": time.process_time() - cpu}
    _open.cache_clear()
    _open_lancedb.cache_clear()
    return done | {"version": lance.dataset(_uri(folder)).version}


def count(folder: str, at: int, where: str) -> dict[str, Any]:
    """The number of rows of a filter."""
    ds = _open(folder, at)
    found, taken = _timed(lambda: ds.count_rows(filter=where))
    return {"seconds": taken, "rows": found}


def rows(folder: str, at: int, where: str) -> dict[str, Any]:
    """The ids and the rewards of the rows of a filter."""
    ds = _open(folder, at)
    found, taken = _timed(lambda: ds.to_table(filter=where, columns=["reward"], with_row_id=True))
    named = ds.to_table(filter=where, columns=["id"], with_row_id=True).sort_by("_rowid")
    values = found.sort_by("_rowid")["reward"].to_numpy()
    return {"seconds": taken, "rows": len(values), "digest": digest(named["id"].to_numpy(), values)}


def nearest(folder: str, at: int, asked: list[int], k: int, search: dict[str, Any], where: str) -> dict[str, Any]:
    """The nearest rows of some queries; all options of `search` are those of `nearest`."""
    ds = _open(folder, at)
    vectors = queries(asked[1])[asked[0] :]

    def find(vector: Any) -> Any:
        wanted = {"column": "emb", "q": vector, "k": k, "metric": "cosine", **search}
        return ds.to_table(nearest=wanted, columns=["id", "_distance"], filter=where or None, prefilter=bool(where))

    found, taken = zip(*(_timed(lambda vector=vector: find(vector)) for vector in vectors), strict=True)
    return {"seconds": taken, "ids": [each["id"].to_pylist() for each in found]}


def text(folder: str, at: int, asked: list[str], k: int) -> dict[str, Any]:
    """The best rows by BM25."""
    ds = _open(folder, at)

    def find(words: str) -> Any:
        return ds.to_table(full_text_query=words, columns=["id", "_score"], limit=k)

    found, taken = zip(*(_timed(lambda words=words: find(words)) for words in asked), strict=True)
    return {"seconds": taken, "scores": [each["_score"].to_pylist() for each in found]}


def hybrid(
    folder: str, vectors: list[int], asked: list[str], k: int, search: dict[str, Any], where: str
) -> dict[str, Any]:
    """The best rows by vector and text, fused by reciprocal rank."""
    table = _open_lancedb(folder)
    fused = RRFReranker()

    def find(vector: Any, words: str) -> Any:
        wanted = table.search(query_type="hybrid", vector_column_name="emb", fts_columns="caption")
        wanted = wanted.vector(vector).text(words).distance_type("cosine").where(where, prefilter=True)
        wanted = wanted.nprobes(search["nprobes"]).refine_factor(search["refine_factor"])
        return wanted.limit(k).select(["id"]).rerank(fused).to_arrow()

    pairs = zip(queries(vectors[1])[vectors[0] :], asked, strict=True)
    found, taken = zip(*(_timed(lambda pair=pair: find(*pair)) for pair in pairs), strict=True)
    return {"seconds": taken, "ids": [each["id"].to_pylist() for each in found]}


def _timed(job: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    found = job()
    return found, time.perf_counter() - start


def _uri(folder: str) -> str:
    return str(Path(folder, f"{_TABLE}.lance"))


@cache
def _open(folder: str, at: int) -> Any:
    return lance.dataset(_uri(folder), version=at)


@cache
def _open_lancedb(folder: str) -> Any:
    return lancedb.connect(folder).open_table(_TABLE)


if __name__ == "__main__":
    serve(write, build, count, rows, nearest, text, hybrid)
