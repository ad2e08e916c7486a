"""Forge the objects of a table: change their content, and make every checksum above it right again."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa

import penstock
from penstock import Boxes, Bytes, Column, Json, Label, Link, List, Struct, Tensor, Text
from penstock.format import (
    Commit,
    DataFile,
    Fragment,
    Manifest,
    Node,
    Snapshot,
    commit_key,
    crc32c,
    decode_manifest,
    decode_snapshot,
    encode_manifest,
    encode_snapshot,
    new_id,
)
from penstock.format.kinds import Linked
from penstock.storage import Store, open_store

COLUMNS: dict[str, Any] = {
    "number": int,
    "vector": Tensor("float32", (3,)),
    "maybe": Column(Tensor("float32", (2,)), nullable=True),
    "text": Column(Text(), nullable=True),
    "squeezed": Column(Text(), codec="zstd"),
    "bytes": Bytes(),
    "label": Label(("cat", "dog")),
    "list": Tensor("int16", (None,)),
    "boxes": Boxes(),
    "complex": Tensor("complex64", (None, 2)),
    "nested": List(Struct({"name": Text(), "points": Tensor("float32", (None, 3))})),
    "json": Json(),
    "link": Linked(Bytes()),
}
ROWS = 6


def table(target: Link) -> Store:
    """A table with a column of every layout, some versions, a branch, a tag, a lease, an intent and a vacuum."""
    store = open_store("memory://")
    ds = penstock.create(store, COLUMNS, links=True)
    ds.append(rows(target))
    ds.commit()
    ds.delete(positions=[1])
    ds.update(positions=[2], data={"text": ["changed"]})
    ds.add_column("added", Column(Tensor("int64"), nullable=True))
    ds.add_column("filled", Text(), fill="fill")
    ds.commit()
    ds.quarantine(row_ids={int(id): "bad" for id in ds["_row_id"][:2]})
    ds.branches.create("side")
    ds.tags.create("v1")
    commit, _ = newest(store)
    lease = {"branch": commit.branch, "version": 0, "snapshot": commit.snapshot.id, "seconds": 60.0}
    store.put(f"leases/{new_id()}.json", sealed(lease))
    store.put(f"intents/{new_id()}.json", sealed({"since_s": 0.0}))
    store.put(f"vacuums/{new_id()}.json", sealed({"snapshots": [new_id()]}))
    return store


def rows(target: Link) -> dict[str, Any]:
    return {
        "number": list(range(ROWS)),
        "vector": np.arange(3 * ROWS, dtype=np.float32).reshape(ROWS, 3),
        "maybe": [None, *[np.ones(2, np.float32)] * (ROWS - 1)],
        "text": [None, *["héllo"] * (ROWS - 1)],
        "squeezed": ["squeeze " * 20] * ROWS,
        "bytes": [b"\xff" * row for row in range(ROWS)],
        "label": ["cat"] * ROWS,
        "list": [np.arange(row, dtype=np.int16) for row in range(ROWS)],
        "boxes": [np.ones((row, 4), np.float32) for row in range(ROWS)],
        "complex": [np.ones((row, 2), np.complex64) for row in range(ROWS)],
        "nested": [[{"name": "n", "points": np.ones((2, 3), np.float32)}]] * ROWS,
        "json": [{"a": [1, 2, {"b": None}]}] * ROWS,
        "link": [target] * ROWS,
    }


def copy(store: Store) -> Store:
    """A copy to spoil."""
    new = open_store("memory://")
    for item in store.list(""):
        new.put(item.key, bytes(store.get(item.key)))
    return new


def newest(store: Store) -> tuple[Commit, Snapshot]:
    """The last commit of main, found without the code under test, and its snapshot."""
    main = json.loads(bytes(store.get("penstock.json")))["main"]
    last = [item.key for item in store.list(f"log/{main}/") if item.key.endswith(".json")][-1]
    commit = Commit.decode(store.get(last), last)
    return commit, decode_snapshot(commit.snapshot, store.get(commit.snapshot.key), "")


def files(store: Store) -> list[DataFile]:
    """The data files of the newest version."""
    _, snapshot = newest(store)
    [node] = snapshot.nodes
    manifest = decode_manifest(node, store.get(node.key), "")
    return [file for fragment in manifest.fragments for file in fragment.files]


def forge_page(store: Store, file: DataFile, page: int, change: Callable[[bytearray], None]) -> None:
    """Change the bytes of a page, of unchanged length."""
    data = bytearray(store.get(file.key))
    at = file.page_range(page)
    content = data[at.start : at.end]
    change(content)
    data[at.start : at.end] = content
    store.put(file.key, bytes(data))
    crcs = file.page_crcs.copy()
    crcs[page] = crc32c(content)
    forge_fragments(store, lambda fragment: _with_file(fragment, replace(file, page_crcs=crcs)))


def _with_file(fragment: Fragment, changed: DataFile) -> Fragment:
    return replace(fragment, files=tuple(changed if file.id == changed.id else file for file in fragment.files))


def forge_fragments(store: Store, change: Callable[[Fragment], Fragment]) -> None:
    """Change the fragments of the only leaf; its totals are computed again."""
    commit, snapshot = newest(store)
    [node] = snapshot.nodes
    manifest = decode_manifest(node, store.get(node.key), "")
    stored, data = encode_manifest(node.id, Manifest(0, tuple(map(change, manifest.fragments))))
    store.put(stored.key, data)
    forge_snapshot(store, commit, replace(snapshot, nodes=(stored,)))


def forge_leaf(store: Store, change: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]) -> None:
    """Change the rows of the only leaf as Python values, any way that Arrow can store; its totals stay as they are."""
    commit, snapshot = newest(store)
    [node] = snapshot.nodes
    batch = pa.ipc.open_file(pa.py_buffer(store.get(node.key))).get_batch(0)
    forge_manifest(store, commit, snapshot, node, as_batch(change(batch.to_pylist()), batch.schema))


def as_batch(rows: list[Any], schema: pa.Schema) -> pa.RecordBatch:
    """Rows of the given schema; of the types that Arrow infers for a column that does not fit it."""
    columns = []
    for field in schema:
        values = [row.get(field.name) if isinstance(row, dict) else row for row in rows]
        try:
            columns.append(pa.array(values, field.type))
        except (ValueError, TypeError, OverflowError):  # of Arrow and of Unicode
            columns.append(pa.array([json.dumps(value, default=str) for value in values]))
    return pa.RecordBatch.from_arrays(columns, names=schema.names)


def forge_manifest(store: Store, commit: Commit, snapshot: Snapshot, node: Node, batch: pa.RecordBatch) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(batch)
    data = sink.getvalue().to_pybytes()
    store.put(node.key, data)
    changed = replace(node, length=len(data), crc=crc32c(data))
    forge_snapshot(store, commit, replace(snapshot, nodes=(changed,)))


def forge_snapshot(store: Store, commit: Commit, snapshot: Snapshot) -> None:
    ref, data = encode_snapshot(commit.snapshot.id, snapshot)
    store.put(ref.key, data)
    store.put(commit_key(commit.branch, commit.version), replace(commit, snapshot=ref).encode())


def forge_snapshot_bytes(store: Store, data: bytes) -> None:
    commit, _ = newest(store)
    ref = replace(commit.snapshot, length=len(data), crc=crc32c(data))
    store.put(ref.key, data)
    store.put(commit_key(commit.branch, commit.version), replace(commit, snapshot=ref).encode())


def forge_ingest_manifest(store: Store, table: pa.Table) -> None:
    """Replace the only ingest manifest."""
    commit, snapshot = newest(store)
    [(uri, (manifest,))] = snapshot.sources.items()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    store.put(manifest.key, data)
    changed = replace(manifest, length=len(data), crc=crc32c(data))
    forge_snapshot(store, commit, replace(snapshot, sources={uri: (changed,)}))


def forge_quarantine(store: Store, table: pa.Table) -> None:
    """Replace the list of quarantined rows of the newest version."""
    commit, snapshot = newest(store)
    assert snapshot.quarantine is not None
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    store.put(snapshot.quarantine.key, data)
    changed = replace(snapshot.quarantine, length=len(data), crc=crc32c(data))
    forge_snapshot(store, commit, replace(snapshot, quarantine=changed))


def sealed(document: Any) -> bytes:
    """Sealed JSON of any document, also of one that the format's own encoder refuses."""
    body = json.dumps(document).encode()[:-1]
    return body + b',"crc32c":"%08x"}\n' % crc32c(body)


def unsealed(data: memoryview) -> Any:
    document = json.loads(bytes(data))
    del document["crc32c"]
    return document
