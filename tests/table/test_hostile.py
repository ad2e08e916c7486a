"""Tables written by an attacker: right checksums, hostile content. Reading ends with values or a clean error.

A checksum is no signature: anyone computes it. Nothing here may crash the process, read outside a buffer, hang, or
raise an error that is not Penstock's, and `verify` always ends with a report.
"""

import copy as copies
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import CorruptError, PenstockError, StorageError
from penstock.format import MAX_INLINE_BYTES, DataFile, FileColumn, PageDecoder, commit_key, make_field
from penstock.format.kinds import Kind
from penstock.storage import Store, open_store
from tests.table import hostile

TARGET = penstock.Link("memory://hostile-links/target")


@pytest.fixture(scope="module")
def original() -> Store:
    open_store("memory://hostile-links").put("target", b"linked")
    return hostile.table(TARGET)


def read(store: Store) -> None:
    """Read a table in every way; raises whatever is raised."""
    ds = penstock.load(store, links=True)
    str(ds.schema), repr(ds), len(ds), list(ds.log()), ds.branches.ids, list(ds.tags)
    for name in ds.schema.names:
        ds[name][:]
    ds.to_arrow()
    list(ds)
    list(ds.batches())
    ds.quarantined()


def use(store: Store) -> None:
    """Read and change a table in the ways that decode most of its objects."""
    ds = penstock.load(store, links=True)
    for batch in ds.select(["number", "vector", "maybe", "boxes", "text"]).numpy(batch_size=2, shuffle=False):
        len(batch["number"])
    ds.append(hostile.rows(TARGET) | {"filled": ["f"] * hostile.ROWS})
    ds.update(positions=[0], data={"number": [9], "text": ["u"]})
    ds.commit()
    ds.diff(0)


def ends_cleanly(act: Callable[[Store], Any], store: Store) -> PenstockError | None:
    """Whether an action succeeds or raises one of Penstock's errors, which it returns; anything else fails the test."""
    try:
        act(store)
    except StorageError:
        raise
    except PenstockError as error:
        return error
    return None


def check(store: Store) -> None:
    """A hostile table reads cleanly, is changed cleanly, and verifies with a report; what breaks a read is reported."""
    report = penstock.verify(store, links=True)
    error = ends_cleanly(read, hostile.copy(store))
    ends_cleanly(use, hostile.copy(store))
    if isinstance(error, CorruptError):
        assert report.damaged


# Pages


def file_of(store: Store, name: str) -> tuple[DataFile, int]:
    """The file that holds a column, and the index of the column in it."""
    field = hostile.newest(store)[1].schema[name]
    file = next(file for file in hostile.files(store) if field.id in file.fields)
    return file, file.fields.index(field.id)


def buffer_at(store: Store, name: str, index: int) -> int:
    """The offset of an Arrow buffer of a column in its first page."""
    file, column = file_of(store, name)
    schema = hostile.newest(store)[1].schema
    columns = [FileColumn(schema.by_id(id)) for id in file.fields]
    at = file.page_range(0)
    page = pa.py_buffer(bytes(store.get(file.key)[at.start : at.end]))
    batch = pa.ipc.read_record_batch(page, pa.schema([one.arrow for one in columns]))
    array = batch.column(column)
    found = (array.storage if isinstance(array, pa.ExtensionArray) else array).buffers()[index]
    return int(found.address - page.address)


@pytest.mark.parametrize("value", [-1, 1 << 20, (1 << 31) - 1, -(1 << 31)])
@pytest.mark.parametrize(
    ("name", "buffer"),
    [
        pytest.param("text", 1, id="offsets of text"),
        pytest.param("bytes", 1, id="offsets of bytes"),
        pytest.param("list", 1, id="offsets of a tensor with one ragged dimension"),
        pytest.param("boxes", 2, id="offsets of a ragged tensor"),
        pytest.param("boxes", 7, id="shapes of a ragged tensor"),
        pytest.param("complex", 7, id="shapes of a ragged complex tensor"),
        pytest.param("nested", 1, id="offsets of a list"),
        pytest.param("nested", 4, id="offsets of text in a list"),
        pytest.param("nested", 8, id="offsets of a ragged tensor in a list"),
        pytest.param("nested", 13, id="shapes of a ragged tensor in a list"),
        pytest.param("link", 5, id="paths of links"),
    ],
)
def test_hostile_offsets_and_shapes_are_damage_of_a_page(original: Store, name: str, buffer: int, value: int) -> None:
    store = hostile.copy(original)
    file, _ = file_of(store, name)
    at = buffer_at(store, name, buffer) + (4 if buffer != 7 else 8 * 4)  # a row that is neither null nor deleted
    hostile.forge_page(store, file, 0, lambda page: struct.pack_into("<i", page, at, value))
    ds = penstock.load(store, links=True)
    for act in (
        lambda: ds[name][:],
        lambda: ds.select(name).to_arrow(),
        lambda: list(ds.select([name]).numpy(batch_size=2)),
    ):
        with pytest.raises(CorruptError, match=rf"page 0 of {file.key}"):
            act()
    assert any(file.key in sentence for sentence in penstock.verify(store).damaged)
    check(store)


@pytest.mark.parametrize("length", [1 << 62, 1 << 40, 961, 959, 0, -2, -(1 << 62)])
def test_a_compressed_buffer_that_lies_about_its_length_is_damage(original: Store, length: int) -> None:
    store = hostile.copy(original)
    file, _ = file_of(store, "squeezed")

    def lie(page: bytearray) -> None:
        struct.pack_into("<q", page, page.index(struct.pack("<q", 20 * len("squeeze ") * hostile.ROWS)), length)

    hostile.forge_page(store, file, 0, lie)
    with pytest.raises(CorruptError, match=rf"page 0 of {file.key}"):
        penstock.load(store)["squeezed"][:]
    assert penstock.verify(store).damaged


def test_a_page_with_another_number_of_rows_is_damage(original: Store) -> None:
    store = hostile.copy(original)

    def shorten(fragment: Any) -> Any:
        count = fragment.rows - 1
        files = [replace(file, rows=count, page_rows=np.array([count], np.int32)) for file in fragment.files]
        [ids] = fragment.row_ids
        return replace(
            fragment, rows=count, row_ids=(replace(ids, end=ids.start + count),), files=tuple(files), live=-1
        )

    hostile.forge_fragments(store, shorten)
    with pytest.raises(CorruptError, match="it has 6 rows and not 5"):
        penstock.load(store)["text"][:]
    assert penstock.verify(store).damaged


READERS: dict[str, Callable[[Store], Any]] = {
    "column": lambda store: penstock.load(store)["vector"][:],
    "rows": lambda store: penstock.load(store).select("vector")[np.array([3, 0, 2])].to_numpy(),
    "loader": lambda store: list(penstock.load(store).select(["vector"]).numpy(batch_size=2, shuffle=True)),
}


@pytest.mark.parametrize("start", [3608, 1 << 30])
@pytest.mark.parametrize("reader", READERS)
def test_values_outside_their_page_are_damage(original: Store, start: int, reader: str) -> None:
    store = hostile.copy(original)
    file, column = file_of(store, "vector")
    starts = file.value_starts.copy()
    starts[0, column] = start
    hostile.forge_leaf(store, lambda rows: _with_value_starts(rows, file.id, starts.reshape(-1).tolist()))
    with pytest.raises(CorruptError):
        READERS[reader](store)
    assert penstock.verify(store).damaged


def _with_value_starts(rows: list[dict[str, Any]], id: str, starts: list[int]) -> list[dict[str, Any]]:
    for row in rows:
        for file in row["files"]:
            if file["id"] == id:
                file["value_starts"] = starts
    return rows


@settings(max_examples=30)
@given(data=st.data())
def test_any_bytes_in_a_page_read_cleanly(original: Store, data: st.DataObject) -> None:
    store = hostile.copy(original)
    file = data.draw(st.sampled_from(sorted(hostile.files(store), key=lambda file: len(file.fields))))
    changes = st.tuples(st.integers(0, file.length - 1), st.sampled_from([0, 1, 7, 127, 128, 255]))

    def spoil(page: bytearray) -> None:
        for position, value in data.draw(st.lists(changes, min_size=1, max_size=4)):
            page[position % len(page)] = value

    hostile.forge_page(store, file, 0, spoil)
    check(store)


@pytest.mark.parametrize(
    ("kind", "array", "reason"),
    [
        (penstock.Boxes(), [{"data": [1.0] * 4, "shape": [-1, 4]}], "shape"),
        (penstock.Boxes(), [{"data": [1.0] * 4, "shape": [2, 2]}], "shape"),
        (penstock.Boxes(), [{"data": [1.0] * 4, "shape": None}], "shape"),
        (penstock.Boxes(), [{"data": [1.0, None, 1.0, 1.0], "shape": [1, 4]}], "null"),
        (penstock.Tensor("uint8", (None,) * 4), [{"data": [], "shape": [2**31 - 1] * 3 + [0]}], "shape"),
        (penstock.Tensor("uint8", (None,) * 4), [{"data": [], "shape": [2**16, 2**16, 2**16, 2**16]}], "shape"),
        (penstock.Tensor("complex64", (None,)), [[1.0, 2.0, 3.0]], "complex"),
        (penstock.List(penstock.Tensor("int8", (None,))), [[[1, None]]], "null"),
    ],
)
def test_content_that_arrow_accepts_but_the_kind_does_not_is_damage(kind: Kind, array: list[Any], reason: str) -> None:
    column = FileColumn(make_field("x", kind))
    batch = pa.RecordBatch.from_arrays([pa.array(array, kind.arrow_type)], schema=pa.schema([column.arrow]))
    with pytest.raises(CorruptError, match=f"page 3 of.*{reason}"):
        PageDecoder([column]).decode(memoryview(batch.serialize()), rows=1, where="page 3 of somewhere")


def test_the_undefined_shape_of_a_null_is_no_damage() -> None:
    kind = penstock.Boxes()
    data = kind.to_array([np.ones((1, 4)), np.ones((2, 4))])
    shapes = pa.FixedSizeListArray.from_arrays(pa.array([1, 4, -7, 9], pa.int32()), 2)
    array = pa.StructArray.from_arrays(
        [data.field("data"), shapes], fields=list(kind.arrow_type), mask=pa.array([False, True])
    )
    assert kind.corrupt_reason(array) is None
    first, second = kind.to_values(array)
    assert first.shape == (1, 4)
    assert second is None


# Metadata

HOSTILE: list[Any] = [
    None, True, "", "x", "0" * 32, "../../penstock", "/etc/passwd", "a/../../b", "\x1b[31m", "\ud800", "\0",
    -1, 0, 1, 31, 2**31, 2**40, 2**62, 2**63, 2**64, 10**40, -(2**63), 0.5, 1e308, float("nan"), float("inf"),
    [], {}, [[]], [None], {"kind": "list"}, {"kind": "list", "of": {"kind": "tensor"}}, {"kind": "text"},
    {"kind": "tensor", "dtype": "uint8", "shape": [2**40, 2**40]},
    {"kind": "struct", "fields": [["a", {"kind": "text"}]]},
]  # fmt: skip


def paths(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where each value of a document is."""
    inner = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in inner:
        yield (*at, key)
        yield from paths(value, (*at, key))


def mutate(data: st.DataObject, document: Any) -> Any:
    """A document with a few values replaced, removed, repeated or exchanged."""
    document = copies.deepcopy(document)
    for _ in range(data.draw(st.integers(1, 2))):
        places = list(paths(document))
        if not places:
            break
        *above, key = data.draw(st.sampled_from(places))
        parent = document
        for step in above:
            parent = parent[step]
        action = data.draw(st.sampled_from(["replace", "replace", "nudge", "remove", "repeat"]))
        if action == "replace":
            parent[key] = copies.deepcopy(data.draw(st.sampled_from(HOSTILE)))
        elif action == "nudge" and type(parent[key]) is int:
            parent[key] += data.draw(st.sampled_from([-1, 1, 8]))
        elif action == "remove":
            del parent[key]
        elif action == "repeat" and isinstance(parent, list):
            parent.append(copies.deepcopy(parent[key]))
    return document


def forge_sealed(data: st.DataObject, original: Store, where: str) -> Store:
    """A copy of a table with one hostile object whose key contains `where`."""
    store = hostile.copy(original)
    key = data.draw(st.sampled_from([item.key for item in store.list("") if where in item.key]))
    store.put(key, hostile.sealed(mutate(data, hostile.unsealed(store.get(key)))))
    return store


@pytest.mark.parametrize("where", ["penstock.json", "log/", "HINT", "ids/", "refs/"])
@settings(max_examples=15)
@given(data=st.data())
def test_any_sealed_metadata_reads_cleanly(original: Store, where: str, data: st.DataObject) -> None:
    check(forge_sealed(data, original, where))


@pytest.mark.parametrize("change", [{"parent": {"branch": "", "version": 0}}, {"time_us": 1}])
def test_a_commit_that_no_log_can_follow_is_damage(original: Store, change: dict[str, Any]) -> None:
    store = hostile.copy(original)
    commit, _ = hostile.newest(store)
    key = commit_key(commit.branch, commit.version)
    assert commit.parent is not None
    store.put(key, hostile.sealed(hostile.unsealed(store.get(key)) | change))
    assert isinstance(ends_cleanly(read, store), CorruptError)
    assert len(penstock.verify(store).damaged) == 1


@pytest.mark.parametrize("where", ["log/", "refs/", "leases/", "intents/", "vacuums/"])
@settings(max_examples=25)
@given(data=st.data())
def test_vacuum_survives_any_sealed_metadata(original: Store, where: str, data: st.DataObject) -> None:
    store = forge_sealed(data, original, where)
    penstock.verify(store)
    ends_cleanly(lambda store: penstock.vacuum(store, dry_run=True), store)


@settings(max_examples=40)
@given(data=st.data())
def test_any_snapshot_reads_cleanly(original: Store, data: st.DataObject) -> None:
    store = hostile.copy(original)
    commit, _ = hostile.newest(store)
    document = mutate(data, json.loads(bytes(store.get(commit.snapshot.key))))
    hostile.forge_snapshot_bytes(store, json.dumps(document).encode())
    check(store)


@settings(max_examples=40)
@given(data=st.data())
def test_any_manifest_reads_cleanly(original: Store, data: st.DataObject) -> None:
    store = hostile.copy(original)
    hostile.forge_leaf(store, lambda rows: mutate(data, rows))
    check(store)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"[" * 200_000, id="deep"),
        pytest.param(b'{"schema":' + b'{"kind":"list","of":' * 900 + b"{}" + b"}" * 901, id="deep kind"),
        pytest.param(b'{"claims":' + b"9" * 5000 + b"}", id="a number of 5,000 digits"),
        pytest.param("{}".encode("utf-16"), id="another encoding"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b"null", id="no object"),
    ],
)
def test_a_snapshot_of_hostile_json_is_damage(original: Store, data: bytes) -> None:
    store = hostile.copy(original)
    hostile.forge_snapshot_bytes(store, data)
    with pytest.raises(CorruptError, match="snapshots/"):
        penstock.load(store)
    assert penstock.verify(store).damaged


@pytest.mark.parametrize("level", [0, 1, 2, 31, 2**31 - 1])
def test_a_manifest_that_contains_itself_ends(original: Store, level: int) -> None:
    """A checksum can be forged so that a node describes itself; the level it states bounds the depth."""
    store = hostile.copy(original)
    commit, snapshot = hostile.newest(store)
    node = replace(snapshot.nodes[0], level=1)
    child = {name: getattr(replace(node, level=level), name) for name in node.__slots__ if name != "statistics"}
    batch = pa.RecordBatch.from_pylist([child])
    hostile.forge_manifest(store, commit, snapshot, node, batch)
    with pytest.raises(CorruptError, match="manifests/"):
        list(penstock.load(store))
    assert penstock.verify(store).damaged


def test_a_chain_of_manifests_is_no_deeper_than_levels_allow(original: Store) -> None:
    store = hostile.copy(original)
    commit, snapshot = hostile.newest(store)
    hostile.forge_snapshot(store, commit, replace(snapshot, nodes=(replace(snapshot.nodes[0], level=5000),)))
    with pytest.raises(CorruptError, match="level"):
        penstock.load(store)
    assert penstock.verify(store).damaged


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    (folder / "a.csv").write_text("n\n1\n")
    return folder


@pytest.fixture(scope="module")
def ingested(source: Path) -> Store:
    store = open_store("memory://")
    penstock.ingest(source, store)
    return store


@settings(max_examples=25)
@given(data=st.data())
def test_any_ingest_manifest_reads_cleanly(source: Path, ingested: Store, data: st.DataObject) -> None:
    store = hostile.copy(ingested)
    _, snapshot = hostile.newest(store)
    [[manifest]] = snapshot.sources.values()
    table = pa.ipc.open_file(pa.py_buffer(store.get(manifest.key))).read_all()
    if data.draw(st.booleans()):
        about = json.dumps(mutate(data, json.loads(table.schema.metadata[b"about"])))
        table = table.replace_schema_metadata({**table.schema.metadata, b"about": about})
    else:
        rows = hostile.as_batch(mutate(data, table.to_pylist()), table.schema)
        table = pa.Table.from_batches([rows]).replace_schema_metadata(table.schema.metadata)
    hostile.forge_ingest_manifest(store, table)
    penstock.verify(store)
    ends_cleanly(lambda store: penstock.ingest(source, store), store)


# Verify


@settings(max_examples=25)
@given(data=st.data())
def test_any_quarantine_list_reads_cleanly(original: Store, data: st.DataObject) -> None:
    store = hostile.copy(original)
    _, snapshot = hostile.newest(store)
    assert snapshot.quarantine is not None
    table = pa.ipc.open_file(pa.py_buffer(store.get(snapshot.quarantine.key))).read_all()
    hostile.forge_quarantine(
        store, pa.Table.from_batches([hostile.as_batch(mutate(data, table.to_pylist()), table.schema)])
    )
    penstock.verify(store)
    ends_cleanly(lambda store: penstock.load(store).quarantined(), store)
    ends_cleanly(lambda store: penstock.load(store).release(), store)


@pytest.mark.parametrize(
    ("ids", "reasons"),
    [([1, 1], ["a", "b"]), ([2, 1], ["a", "b"]), ([-1], ["a"]), ([None], ["a"]), ([1], [None])],
)
def test_a_list_of_rows_that_do_not_ascend_is_damage(original: Store, ids: list[Any], reasons: list[Any]) -> None:
    store = hostile.copy(original)
    schema = pa.schema([("row_id", pa.int64()), ("reason", pa.string())])
    hostile.forge_quarantine(store, pa.table([ids, reasons], schema=schema))
    with pytest.raises(CorruptError, match="quarantine/"):
        penstock.load(store).numpy()
    assert any("quarantine/" in damage for damage in penstock.verify(store).damaged)


def test_verify_reports_a_damaged_vacuum_record(original: Store) -> None:
    store = hostile.copy(original)
    [item] = store.list("vacuums/")
    store.put(item.key, bytes(store.get(item.key))[:-3] + b"0}\n")
    [sentence] = penstock.verify(store).damaged
    assert item.key in sentence


def test_verify_reports_a_commit_under_the_key_of_another(original: Store) -> None:
    store = hostile.copy(original)
    commit, _ = hostile.newest(store)
    key = commit_key(commit.branch, commit.version)
    store.put(key, replace(commit, version=commit.version + 7).encode())
    assert any(key in sentence for sentence in penstock.verify(store).damaged)


def test_verify_reports_refs_to_versions_that_do_not_exist(original: Store) -> None:
    store = hostile.copy(original)
    [item] = store.list("refs/tags/")
    store.put(item.key, hostile.sealed({**hostile.unsealed(store.get(item.key)), "version": 77}))
    assert any(f"{77:020}" in sentence for sentence in penstock.verify(store).damaged)


def test_verify_reports_damaged_pages_of_links_and_reads_the_rest(original: Store) -> None:
    store = hostile.copy(original)
    file, _ = file_of(store, "link")
    data = bytearray(store.get(file.key))
    data[file.page_offsets[0] + 30] ^= 255
    store.put(file.key, bytes(data))
    report = penstock.verify(store, links=True)
    assert any(file.key in sentence and "page 0" in sentence for sentence in report.damaged)
    assert report.objects == penstock.verify(original, links=True).objects


def with_blob() -> tuple[Store, str]:
    """A table with a blob, and the key of the blob."""
    store = open_store("memory://")
    ds = penstock.create(store, {"x": penstock.Bytes(), "n": int})
    ds.append({"x": [b"short", bytes(MAX_INLINE_BYTES + 1)], "n": [1, 2]})
    ds.commit()
    [blob] = store.list("blobs/")
    return store, blob.key


def test_verify_reports_damaged_pages_of_blob_references() -> None:
    store, _ = with_blob()
    file = next(file for file in hostile.files(store) if file.blobs)
    data = bytearray(store.get(file.key))
    data[file.page_offsets[0] + 30] ^= 255
    store.put(file.key, bytes(data))
    assert any(file.key in sentence for sentence in penstock.verify(store).damaged)


@pytest.mark.parametrize("length", [-1, 1 << 40, 1 << 62])
def test_a_blob_of_hostile_length_is_damage(length: int) -> None:
    store, _ = with_blob()
    file = next(file for file in hostile.files(store) if file.blobs)
    true = struct.pack("<q", MAX_INLINE_BYTES + 1)
    hostile.forge_page(store, file, 0, lambda page: struct.pack_into("<q", page, page.index(true), length))
    with pytest.raises(CorruptError):
        penstock.load(store)["x"][:]
    assert any(file.key in sentence for sentence in penstock.verify(store).damaged)


def test_verify_reports_a_blob_that_its_manifest_does_not_list() -> None:
    """Vacuum would remove it."""
    store, _ = with_blob()
    hostile.forge_fragments(
        store, lambda fragment: replace(fragment, files=tuple(replace(file, blobs=()) for file in fragment.files))
    )
    [sentence] = penstock.verify(store).damaged
    assert "does not list the blobs" in sentence
