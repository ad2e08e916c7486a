"""Row indexes: their values are those of the columns after any history, and only files that none lists are read."""

import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Column, Dataset, Label, Tensor, Text
from penstock.errors import AccessDeniedError, InvalidInputError, NotFoundError, SnapshotExpiredError, StorageError
from penstock.format import crc32c, decode_row_index, encode_row_index
from penstock.storage import Store, open_store
from penstock.table import row_values
from penstock.testing import CountingStore, Fault, FaultyStore
from tests.history.maintenance import compact, vacuum

SCHEMA: dict[str, Any] = {
    "episode": Column(Text(), file_bytes=64, page_bytes=32),
    "key": "bytes",
    "step": Column(Tensor("int16"), nullable=True, file_bytes=64, page_bytes=32),
    "time": "datetime64[us]",
    "good": "bool",
    "score": "bfloat16",
    "label": Label(("cat", "dog")),
    "tokens": Column(Tensor("int32", (None,)), codec="zstd", file_bytes=128, page_bytes=64),
    "waves": Column(Tensor("complex64", (None,)), nullable=True),
}
VALUES = ["episode", "key", "step", "time", "good", "score", "label"]
LENGTHS = ["tokens", "waves"]


@pytest.fixture(scope="module", autouse=True)
def every_table_has_an_index() -> Iterator[None]:
    """Tables of these tests are small; `large_table` has the size from which indexes are written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.table._row_index._MIN_BYTES", 1)
        yield


def rows(count: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    words = rng.choice(["a", "b", "", "é", "zz", "B"], count)
    return {
        "episode": words.tolist(),
        "key": [word.encode() for word in words],
        "step": rng.integers(-5, 5, count),
        "time": rng.integers(0, 9, count).astype("datetime64[us]"),
        "good": rng.integers(0, 2, count).astype(bool),
        "score": rng.integers(0, 9, count).astype(np.float32),
        "label": rng.integers(0, 2, count),
        "tokens": [np.zeros(size, np.int32) for size in rng.integers(0, 9, count)],
        "waves": [np.zeros(size, np.complex64) for size in rng.integers(0, 9, count)],
    }


def table(store: Store, count: int = 30) -> Dataset:
    ds = penstock.create(store, SCHEMA)
    ds.append(rows(count, 0))
    ds.commit()
    return ds


def found(ds: Dataset, columns: list[str] = VALUES, lengths: list[str] = LENGTHS) -> dict[str, npt.NDArray[Any]]:
    return row_values(ds._session.reader, columns, lengths=lengths)


def check(ds: Dataset) -> None:
    """Compare with the columns themselves."""
    values = found(ds)
    assert list(values) == VALUES + LENGTHS
    for name, array in values.items():
        assert len(array) == len(ds)
        assert not array.flags.writeable
        direct = list(ds[name][:])
        if name in LENGTHS:
            assert array.tolist() == [len(value) for value in direct]
        elif name in ("episode", "key"):
            encoded = [value.encode() if isinstance(value, str) else value for value in direct]
            assert array.tolist() == [sorted(set(encoded)).index(value) for value in encoded]
        else:
            assert array.dtype == np.asarray(direct).dtype or not direct
            assert array.tolist() == np.asarray(direct, array.dtype).tolist()


def stored(store: Store) -> list[str]:
    return [item.key for item in store.list("index/")]


operations = st.lists(
    st.tuples(
        st.sampled_from(["append", "update", "delete", "compact", "branch", "merge", "rename", "vacuum", "nothing"]),
        st.integers(0, 2**16),
        st.booleans(),
    ),
    max_size=8,
)


@given(operations)
@settings(max_examples=15)
def test_values_are_those_of_the_columns_after_any_history(history: list[tuple[str, int, bool]]) -> None:
    store = open_store("memory://")
    ds, side = table(store, 12), None
    for operation, seed, commit in history:
        some = np.flatnonzero(np.random.default_rng(seed).integers(0, 3, len(ds)) == 0)
        if operation == "append":
            ds.append(rows(seed % 7, seed))
        elif operation == "update" and len(some):
            names = ["episode", "tokens"] if seed % 2 else ["step", "waves"]
            new = rows(len(some), seed)
            ds.update(positions=some, data={name: new[name] for name in names})
        elif operation == "delete":
            ds.delete(positions=some)
        elif operation == "rename":
            ds.rename_column("good", "other")
            ds.rename_column("other", "good")
        else:
            ds.commit()
            if operation == "compact":
                compact(ds)
            elif operation == "branch" and side is None:
                side = ds.branches.create("side")
                side.append(rows(3, seed))
                side.commit()
            elif operation == "merge" and side is not None:
                with suppress(SnapshotExpiredError):  # vacuum may have deleted the common ancestor
                    ds.merge("side", on_conflict="theirs")
            elif operation == "vacuum":
                vacuum(ds)
        check(ds)
        if commit:
            ds.commit()
            check(penstock.load(store))
            if side is not None:
                check(penstock.load(store, branch="side"))
    assert penstock.verify(store).damaged == []


def test_an_empty_table_has_empty_values() -> None:
    ds = penstock.create("memory://", SCHEMA)
    check(ds)
    ds.append(rows(3, 0))
    ds.delete(positions=[0, 1, 2])
    check(ds)


def test_a_column_that_no_file_holds_has_its_fill_value() -> None:
    ds = table(open_store("memory://"))
    ds.add_column("group", Text(), fill="same")
    ds.append({**rows(2, 1), "group": ["other", "same"]})
    assert found(ds, ["group"], [])["group"].tolist() == [1] * 30 + [0, 1]


def test_other_columns_and_nulls_are_refused_with_a_sentence() -> None:
    ds = penstock.create(
        "memory://", {"image": "image", "pair": "int32[2]", "wave": "complex64", "json": "json", "maybe": "int64?"}
    )
    for name in ("image", "pair", "wave", "json"):
        with pytest.raises(InvalidInputError, match=f"'{name}'.*grouped and ordered by"):
            found(ds, [name], [])
        with pytest.raises(InvalidInputError, match=f"'{name}'.*different lengths"):
            found(ds, [], [name])
    with pytest.raises(NotFoundError, match="no column 'none'"):
        found(ds, ["none"], [])
    for name in ("image", "pair", "wave", "json"):
        ds.drop_column(name)
    ds.append({"maybe": [None, 1, 2, None, 4]})
    ds.delete(positions=[0])
    with pytest.raises(InvalidInputError, match="'maybe' has no value in row 2"):
        found(ds, ["maybe"], [])
    ds.delete(positions=[2])
    assert found(ds, ["maybe"], [])["maybe"].tolist() == [1, 2, 4]


LARGE_ROWS = 3000


def large_rows(count: int, seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {"episode": rng.integers(0, 9, count), "tokens": [rng.integers(0, 2**31, 200, np.int32)] * count}


@pytest.fixture
def large_table(monkeypatch: pytest.MonkeyPatch) -> CountingStore:
    """2.4 MB of tokens, and a few KB of the other column."""
    monkeypatch.setattr("penstock.table._row_index._MIN_BYTES", 1 << 20)
    store = CountingStore(open_store("memory://"))
    ds = penstock.create(store, {"episode": "int64", "tokens": Tensor("int32", (None,))})
    ds.append(large_rows(LARGE_ROWS, 0))
    ds.commit()
    return store


def bytes_read(store: CountingStore, ds: Dataset) -> int:
    """The bytes that reading the lengths takes, without the table's metadata."""
    list(ds._session.tree.fragments(ds._session.snapshot.nodes))
    store.reset()
    lengths = found(ds, [], ["tokens"])["tokens"]
    read = store.bytes["get"]
    assert lengths.tolist() == [len(value) for value in ds["tokens"][:]]
    return read


def test_an_index_is_read_instead_of_the_column(large_table: CountingStore) -> None:
    whole = LARGE_ROWS * 200 * 4
    assert bytes_read(large_table, penstock.load(large_table)) >= whole
    assert len(stored(large_table)) == 1
    ds = penstock.load(large_table)
    assert bytes_read(large_table, ds) < whole / 100
    assert bytes_read(large_table, ds) == 0, "a second call reads nothing"
    ds.delete(positions=[0])
    ds.commit()
    assert bytes_read(large_table, penstock.load(large_table)) < whole / 100, "a delete needs no other index"
    assert len(stored(large_table)) == 1
    ds.append(large_rows(LARGE_ROWS, 1))
    ds.commit()
    assert whole <= bytes_read(large_table, penstock.load(large_table)) < 1.1 * whole, "only the new files are read"
    assert len(stored(large_table)) == 1, "the older index has nothing more"
    assert bytes_read(large_table, penstock.load(large_table)) < whole / 50
    assert bytes_read(large_table, penstock.load(large_table, version=1)) < whole / 50, "older versions use it too"
    ds.append(large_rows(10, 1))
    ds.commit()
    before = stored(large_table)
    assert bytes_read(large_table, penstock.load(large_table)) < whole / 50
    assert stored(large_table) == before, "a few new rows are not worth another index"
    compact(ds)
    assert bytes_read(large_table, penstock.load(large_table)) > whole
    assert bytes_read(large_table, penstock.load(large_table)) < whole / 50


def test_a_small_column_has_no_index(large_table: CountingStore) -> None:
    ds = penstock.load(large_table)
    large_table.reset()
    found(ds, ["episode"], [])
    assert large_table.requests["list"] == large_table.requests["put"] == 0


def test_arrays_over_the_limit_are_not_held(large_table: CountingStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = penstock.load(large_table)
    bytes_read(large_table, ds)
    monkeypatch.setattr("penstock.table._row_index._CACHE_BYTES", LARGE_ROWS * 8 - 1)
    found(ds, [], ["tokens"])
    assert bytes_read(large_table, ds) > 0
    monkeypatch.setattr("penstock.table._row_index._CACHE_BYTES", LARGE_ROWS * 8)
    found(ds, [], ["tokens"])
    assert bytes_read(large_table, ds) == 0


def test_uncommitted_changes_are_not_indexed() -> None:
    store = open_store("memory://")
    ds = table(store)
    ds.append(rows(5, 1))
    check(ds)
    assert stored(store) == []
    ds.rollback()
    check(ds)
    assert len(stored(store)) == len(VALUES + LENGTHS)


@pytest.mark.parametrize("error", [AccessDeniedError, StorageError])
@pytest.mark.parametrize("verb", ["put", "list", "delete"])
def test_a_store_that_refuses_the_index_is_read_without(error: type[StorageError], verb: Any) -> None:
    inner = open_store("memory://")
    ds = table(inner)
    check(ds)
    ds.append(rows(40, 2))
    ds.commit()
    faults = [Fault("fail_before", verb, "index/*", times=999, error=error)]
    faulty = FaultyStore(inner, *faults)
    check(penstock.load(faulty))
    assert faulty.fired[faults[0]] > 0
    check(penstock.load(inner))


def test_an_index_that_vanishes_or_cannot_be_read_is_built_again() -> None:
    inner = open_store("memory://")
    check(table(inner))
    for error in (NotFoundError, StorageError):
        check(penstock.load(FaultyStore(inner, Fault("fail_before", "get", "index/*", times=999, error=error))))


def sealed(body: bytes) -> bytes:
    return body + crc32c(body).to_bytes(4, "little")


def relist(data: bytes, change: Callable[[dict[str, pa.Array]], Any]) -> bytes:
    """A well-formed index with other content."""
    arrow_type = pa.ipc.open_stream(data).schema.field("values").type.value_type
    values = decode_row_index(data, arrow_type, "test")
    change(values)
    return encode_row_index(values, next(iter(values.values())).type if values else arrow_type)


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "nothing": lambda _: b"",
    "three bytes": lambda data: data[:3],
    "truncated": lambda data: data[: len(data) // 2],
    "a bit": lambda data: data[:100] + bytes([data[100] ^ 1]) + data[101:],
    "no Arrow": lambda _: sealed(b"some text"),
    "a truncated stream": lambda data: sealed(data[:-300]),
    "no files": lambda data: relist(data, dict.clear),
    "files of other tables": lambda data: relist(data, lambda values: values.update({"f" * 32: values.popitem()[1]})),
    "too short": lambda data: relist(data, lambda v: v.update({key: array[:-1] for key, array in v.items()})),
    "too long": lambda data: relist(
        data, lambda v: v.update({key: pa.concat_arrays([array, array]) for key, array in v.items()})
    ),
    "other types": lambda data: relist(
        data, lambda v: v.update({key: pa.array(np.zeros(len(array))) for key, array in v.items()})
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_index_is_ignored_and_replaced(damage: str) -> None:
    store = open_store("memory://")
    table(store)
    check(penstock.load(store))
    whole = {key: bytes(store.get(key)) for key in stored(store)}
    assert len(whole) == len(VALUES + LENGTHS)
    for key, data in whole.items():
        store.put(key, DAMAGE[damage](data))
    check(penstock.load(store))
    assert {key: bytes(store.get(key)) for key in stored(store)} == whole
    assert penstock.verify(store).damaged == []


@cache
def indexed_table() -> dict[str, bytes]:
    store = open_store("memory://")
    found(table(store))
    return {item.key: bytes(store.get(item.key)) for item in store.list("")}


@given(
    st.sampled_from(VALUES + LENGTHS),
    st.dictionaries(st.floats(0, 1, exclude_max=True), st.integers(1, 255), min_size=1, max_size=4),
    st.booleans(),
)
@settings(max_examples=100)
def test_flipped_bytes_never_give_wrong_values(name: str, flips: dict[float, int], noticed: bool) -> None:
    """With a checksum that matches, the values may be those of an attacker; even then they are one per row."""
    store = open_store("memory://")
    for key, data in indexed_table().items():
        store.put(key, data)
    ds = penstock.load(store)
    [key] = [key for key in stored(store) if f"{ds.schema[name].id:016x}" in key]
    content = bytearray(store.get(key))
    for at, bits in flips.items():
        content[int(at * (len(content) - 4))] ^= bits
    store.put(key, bytes(content) if noticed else sealed(bytes(content[:-4])))
    if noticed:
        check(ds)
        return
    with suppress(InvalidInputError):  # a value that became null
        assert {len(values) for values in found(ds).values()} == {len(ds)}


def test_two_readers_that_build_at_once_agree(tmp_path: Path) -> None:
    table(open_store(str(tmp_path)), 300)
    barrier, results = threading.Barrier(4), []

    def build() -> None:
        ds = penstock.load(tmp_path)
        barrier.wait()
        results.append(found(ds))

    threads = [threading.Thread(target=build) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    for result in results:
        for name, values in result.items():
            assert (values == results[0][name]).all()
    check(penstock.load(tmp_path))
    assert len(stored(open_store(str(tmp_path)))) == len(VALUES + LENGTHS)


def test_branches_that_differ_keep_an_index_each() -> None:
    store = CountingStore(open_store("memory://"))
    ds = table(store)
    side = ds.branches.create("side")
    for each, seed in ((ds, 1), (side, 2)):
        each.append(rows(40, seed))
        each.commit()
    for branch in ("main", "side", "main", "side"):
        check(penstock.load(store, branch=branch))
    for branch in ("main", "side"):
        ds = penstock.load(store, branch=branch)
        list(ds._session.tree.fragments(ds._session.snapshot.nodes))
        store.reset()
        found(ds)
        assert (store.requests["get"], store.requests["put"]) == (len(VALUES + LENGTHS), 0), "its own, complete"


def test_vacuum_deletes_indexes_of_versions_that_are_gone() -> None:
    store = open_store("memory://")
    ds = table(store)
    check(ds)
    [old] = [key for key in stored(store) if f"{ds.schema['tokens'].id:016x}" in key]
    ds.update(positions=[0], data={"tokens": [np.zeros(3, np.int32)]})
    ds.commit()
    check(ds)
    tokens = [key for key in stored(store) if key.startswith(old.rpartition("/")[0])]
    assert len(tokens) == 2, "the older version has a file that the newer one lacks"
    planned = vacuum(ds, dry_run=True)
    assert planned.objects == vacuum(ds).objects
    assert [key for key in stored(store) if key in tokens] == [key for key in tokens if key != old]
    assert len(stored(store)) == len(VALUES + LENGTHS), "what is newest of a column serves other versions"
    check(penstock.load(store))
    ds.drop_column("tokens")
    ds.commit()
    assert penstock.vacuum(store, older_than=timedelta(days=1)).objects == 0
    vacuum(ds)
    assert len(stored(store)) == len(VALUES + LENGTHS) - 1
    penstock.delete(store)
    assert list(store.list("")) == []


def test_a_reader_is_pickled_without_its_values(tmp_path: Path) -> None:
    ds = table(open_store(str(tmp_path)), 1000)
    reader = ds._session.reader
    before = len(pickle.dumps(reader))
    found(ds)
    assert len(pickle.dumps(reader)) < before + 1000
    assert row_values(pickle.loads(pickle.dumps(reader)), ["step"])["step"].tolist() == found(ds)["step"].tolist()
