"""A table with a history, the same rows in memory, and results as Arrow tables."""

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from penstock.format import Column
from penstock.format.kinds import Bytes, Json, Label, List, Struct, Tensor, Text
from penstock.query import ComputedColumn, QueryResult, Relation, TableColumn, TableScan
from penstock.table import Int64Array, Reader

CLASSES = ("grasp", "push", "pull", "lift")


def rows(start: int, count: int) -> dict[str, Any]:
    rng = np.random.default_rng(start)
    maybe = rng.random(count) < 0.15
    return {
        "id": np.arange(start, start + count),
        "label": rng.integers(0, len(CLASSES), count),
        "camera": [None if gone else f"cam{i % 3}" for i, gone in enumerate(maybe)],
        "reward": np.round(rng.random(count), 2).astype(np.float32),
        "ts": (np.datetime64("2026-01-01", "us") + np.arange(start, start + count) * np.timedelta64(1, "h")),
        "flag": rng.random(count) < 0.5,
        "meta": [{"camera": {"side": "left" if i % 2 else "right"}, "n": i} for i in range(count)],
        "emb": rng.standard_normal((count, 4)).astype(np.float32),
        "blob": [bytes([i % 7]) * (1 + i % 50) for i in range(count)],
        "big": rng.standard_normal((count, 100)).astype(np.float32),
        "half": np.round(rng.random(count), 1).astype(np.float16),
        "pos": [{"x": float(i % 5), "name": f"p{i % 3}"} for i in range(count)],
        "tags": [[f"t{j}" for j in range(i % 3)] for i in range(count)],
    }


def make_table(uri: str = "memory://") -> penstock.Dataset:
    """Several fragments of small pages, with rows deleted and updated, and a column added."""
    small = 512
    kinds = {
        "id": Tensor("int64"), "label": Label(CLASSES), "camera": Text(), "reward": Tensor("float32"),
        "ts": Tensor("datetime64[us]"), "flag": Tensor("bool"), "meta": Json(), "emb": Tensor("float32", (4,)),
        "blob": Bytes(), "big": Tensor("float32", (100,)), "half": Tensor("float16"),
        "pos": Struct({"x": Tensor("float64"), "name": Text()}), "tags": List(Text()),
    }  # fmt: skip
    columns = {name: Column(kind, name == "camera", page_bytes=small) for name, kind in kinds.items()}
    ds = penstock.create(uri, schema=columns)
    for start, count in ((0, 120), (120, 90), (210, 60)):
        ds.append(rows(start, count))
        ds.commit("rows")
    ds.delete(positions=[3, 4, 5, 100, 130, 269])
    ds.update(positions=[10, 11, 200], data={"reward": [0.5, 0.25, 0.75], "camera": ["cam9", None, "cam1"]})
    ds.add_column("extra", fill=7)
    ds.add_column("added", compute=lambda batch: np.asarray(batch["id"]) * 2, inputs=["id"])
    ds.append({**rows(270, 40), "extra": np.arange(40), "added": np.zeros(40, np.int64)})
    ds.commit("more")
    return ds


def reader_of(ds: penstock.Dataset) -> Reader:
    return ds._pinned()._reader


def relation(ds: penstock.Dataset, positions: "range | Int64Array | None" = None) -> Relation:
    reader = reader_of(ds)
    live = reader.snapshot.live
    return Relation(reader, tuple(reader.snapshot.schema.names), range(live) if positions is None else positions)


@cache
def in_memory(given: Relation) -> pa.Table:
    """The rows of a relation, with plain types."""
    positions = given.positions
    columns = {}
    table = given.reader.arrow(list(given.columns), positions)
    types = TableScan(given).schema
    for name in given.columns:
        wanted, array = types.field(name).type, table[name].combine_chunks()
        if isinstance(array, pa.ExtensionArray):
            array = array.storage
        columns[name] = array.cast(wanted) if array.type != wanted else array
    columns["_row_id"] = given.reader.arrow(["_row_id"], positions)["_row_id"]
    return pa.table(columns)


def as_table(result: QueryResult, relations: Mapping[str, Relation]) -> pa.Table:
    """A result with all its values."""
    columns: list[Any] = []
    for column in result.columns:
        if isinstance(column, ComputedColumn):
            columns.append(column.values)
            continue
        if isinstance(column, TableColumn):
            assert result.relation is not None
            source, indices = relations[result.relation], pa.array(result.rows)
        else:
            source, indices = relations[column.relation], column.indices.combine_chunks()
        memory = in_memory(source)[column.column].combine_chunks()
        columns.append(memory.take(indices))
    return pa.table(columns, [column.name for column in result.columns])
