"""Blobs: large values as objects of their own, streamed, read like files, verified by block."""

import io
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import Bytes, Column, Dataset, Image, Tensor, Video
from penstock.errors import CorruptError, InvalidInputError, StorageError
from penstock.format import BLOB_BLOCK_BYTES, MAX_INLINE_BYTES
from penstock.storage import Store, open_store
from penstock.testing import CountingStore, Fault, FaultyStore
from penstock.types import Buffer
from tests.servers import StoreLocation, new_location

MIB = 1 << 20
SIZE = MAX_INLINE_BYTES + 3 * MIB + 123
DATA = np.random.default_rng(0).bytes(SIZE)
BLOCKS = -(-SIZE // BLOB_BLOCK_BYTES)


def blobs(ds: Dataset) -> list[str]:
    return [item.key for item in ds._session.store.list("blobs/")]


def with_blob(store: Any) -> Dataset:
    ds = penstock.create(store, {"x": Bytes()})
    ds.append({"x": [b"short", DATA]})
    ds.commit()
    return ds


def test_blobs_round_trip_on_every_store(store_uri: StoreLocation) -> None:
    ds = penstock.create(
        store_uri.uri, {"n": int, "x": Column(Bytes(), nullable=True)}, storage_options=store_uri.options
    )
    ds.append({"n": [0, 1, 2, 3], "x": [DATA, b"short", None, memoryview(DATA)[1:]]})
    ds.commit()
    ds = penstock.load(store_uri.uri, storage_options=store_uri.options)
    assert len(blobs(ds)) == 2
    assert ds["x"][:] == [DATA, b"short", None, DATA[1:]]
    assert ds[3]["x"] == DATA[1:]
    assert ds[[3, 1, 0]]["x"][:] == [DATA[1:], b"short", DATA]
    assert ds.to_arrow()["x"].to_pylist() == [DATA, b"short", None, DATA[1:]]
    assert [row["n"] for row in ds] == [0, 1, 2, 3]
    with ds["x"].open(0) as file:
        file.seek(5 * MIB - 3)
        assert file.read(6) == DATA[5 * MIB - 3 : 5 * MIB + 3]
    assert penstock.verify(store_uri.uri, storage_options=store_uri.options).damaged == []


@pytest.mark.parametrize(("size", "count"), [(MAX_INLINE_BYTES, 0), (MAX_INLINE_BYTES + 1, 1)])
def test_a_value_one_byte_over_the_inline_limit_is_a_blob(size: int, count: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(size))
    for value in (bytes(size), bytearray(size), memoryview(bytes(size)), tmp_path / "file", io.BytesIO(bytes(size))):
        ds = penstock.create("memory://", {"x": Bytes()})
        ds.append({"x": [value]})
        assert len(blobs(ds)) == count
        assert len(ds["x"][0]) == size


class SyntheticFile:
    """A huge file whose bytes are generated as it is read."""

    def __init__(self, size: int, fail_at: int | None = None, error: type[Exception] = OSError) -> None:
        self._rest, self._fail_at, self._error = size, fail_at, error
        self._size = size

    def read(self, size: int) -> bytes:
        if self._fail_at is not None and self._size - self._rest >= self._fail_at:
            raise self._error("connection lost")
        count = min(size, self._rest)
        self._rest -= count
        return bytes([self._rest % 251]) * count


@pytest.mark.parametrize(("kind", "size"), [("folder", 400 * MIB), ("s3", 200 * MIB)])
def test_a_huge_file_is_streamed_with_bounded_memory(kind: str, size: int) -> None:
    place = new_location(kind)
    ds = penstock.create(place.uri, {"x": Video()}, storage_options=place.options)
    tracemalloc.start()
    try:
        ds.append({"x": [SyntheticFile(size)]})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 128 * MIB
    with ds["x"].open(0) as file:
        assert file.seek(0, io.SEEK_END) == size
        file.seek(size - 10)
        assert file.read() == b"\0" * 10


@pytest.mark.parametrize(("error", "raised"), [(OSError, InvalidInputError), (RuntimeError, RuntimeError)])
def test_a_file_that_fails_half_way_leaves_no_objects(
    store_uri: StoreLocation, error: type[Exception], raised: type[Exception]
) -> None:
    ds = penstock.create(store_uri.uri, {"x": Bytes()}, storage_options=store_uri.options)
    with pytest.raises(raised, match="connection lost"):
        ds.append({"x": [DATA, SyntheticFile(40 * MIB, fail_at=30 * MIB, error=error)]})
    assert blobs(ds) == []
    assert not ds.summary().has_changes


def test_reading_a_range_fetches_only_its_blocks() -> None:
    store = open_store("memory://")
    with_blob(store)
    counting = CountingStore(store)
    ds = penstock.load(counting)
    ds["x"][0]
    counting.reset()
    file = ds["x"].open(1)
    page = counting.bytes["get"]
    assert (counting.requests.total(), page < 10_000) == (1, True)

    def cost(offset: int, size: int) -> tuple[int, int]:
        counting.reset()
        file.seek(offset)
        assert file.read(size) == DATA[offset : offset + size]
        return counting.requests["get"], counting.bytes["get"]

    assert cost(4 * MIB + 5, 10) == (2, MIB + 4 * BLOCKS)  # the checksums, once, and one block
    assert cost(4 * MIB + 15, 100_000) == (0, 0)  # the same block, cached
    assert cost(4 * MIB, MIB) == (0, 0)
    assert cost(5 * MIB - 1, 2) == (1, MIB)
    assert cost(0, 3 * MIB) == (1, 3 * MIB)
    assert cost(SIZE - 5, 100) == (1, SIZE % MIB)
    assert cost(SIZE + 10, 100) == (0, 0)
    assert cost(0, SIZE)[1] <= SIZE


@pytest.fixture(scope="module")
def table() -> Dataset:
    return with_blob(open_store("memory://"))


operations = st.one_of(
    st.tuples(st.just("seek"), st.integers(0, SIZE + 10), st.just(0)),
    st.tuples(st.just("seek"), st.integers(-SIZE, 10), st.just(2)),
    st.tuples(st.just("seek"), st.integers(-100, 2 * MIB), st.just(1)),
    st.tuples(st.just("read"), st.integers(0, 300)),
    st.tuples(st.just("read"), st.integers(MIB - 2, 2 * MIB + 2)),
    st.tuples(st.just("readinto"), st.integers(0, 3 * MIB)),
    st.tuples(st.just("tell")),
    st.tuples(st.just("readline"), st.integers(0, 50)),
)


@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(st.lists(operations, max_size=12))
def test_a_blob_reads_like_a_file(table: Dataset, steps: list[Any]) -> None:
    blob, model = table["x"].open(1), io.BytesIO(DATA)
    for step, *arguments in steps:
        if step == "seek" and arguments[1] == 1:
            arguments[0] = max(arguments[0], -model.tell())
        if step == "readinto":
            actual, expected = bytearray(arguments[0]), bytearray(arguments[0])
            assert blob.readinto(actual) == model.readinto(expected)
            assert actual == expected
        else:
            assert getattr(blob, step)(*arguments) == getattr(model, step)(*arguments)
        assert blob.tell() == model.tell()


def test_an_inline_value_opens_as_a_file(table: Dataset) -> None:
    with table["x"].open(0) as file:
        assert (file.read(2), file.seek(-1, io.SEEK_END), file.read()) == (b"sh", 4, b"t")
    assert table["x"].open(-1).seek(0, io.SEEK_END) == SIZE


def test_a_blob_can_be_wrapped_and_read_whole(table: Dataset) -> None:
    assert table["x"].open(1).read() == DATA
    assert io.BufferedReader(table["x"].open(1)).read() == DATA
    file = table["x"].open(1)
    assert (file.readable(), file.seekable(), file.writable()) == (True, True, False)


def test_a_closed_blob_and_an_invalid_seek_raise(table: Dataset) -> None:
    file: io.RawIOBase = table["x"].open(1)
    for offset, whence in ((-1, 0), (-SIZE - 1, 2), (-1, 1), (0, 7)):
        with pytest.raises(ValueError, match="seek"):
            file.seek(offset, whence)
    file.close()
    uses: list[Callable[[], Any]] = [lambda: file.read(1), lambda: file.seek(0), file.tell, file.readall]
    for use in uses:
        with pytest.raises(ValueError, match="closed"):
            use()


def test_a_flipped_bit_is_reported_and_only_its_block_is_lost() -> None:
    store = open_store("memory://")
    ds = with_blob(store)
    key = blobs(ds)[0]
    bad = bytearray(store.get(key))
    bad[7 * MIB + 5] ^= 4
    store.put(key, bad)
    file = ds["x"].open(1)
    assert file.read(7 * MIB) == DATA[: 7 * MIB]
    reads: list[Callable[[], Any]] = [lambda: file.read(1), lambda: ds["x"][1], lambda: ds.to_arrow()]
    for read in reads:
        with pytest.raises(CorruptError, match=f"{key} is damaged: the checksum of MiB 7"):
            read()
    file.seek(8 * MIB)
    assert file.read(10) == DATA[8 * MIB : 8 * MIB + 10]


@pytest.mark.parametrize("at", [SIZE, SIZE + 4 * BLOCKS - 1])
def test_flipped_blob_checksums_are_reported(at: int) -> None:
    store = open_store("memory://")
    ds = with_blob(store)
    key = blobs(ds)[0]
    bad = bytearray(store.get(key))
    assert len(bad) == SIZE + 4 * BLOCKS
    bad[at] ^= 1
    store.put(key, bad)
    with pytest.raises(CorruptError, match=f"{key} is damaged: the checksum of its checksums"):
        ds["x"].open(1).read(1)


def test_a_storage_error_is_not_reported_as_damage() -> None:
    store = open_store("memory://")
    with_blob(store)
    ds = penstock.load(FaultyStore(store, Fault("fail_before", "get", "blobs/*", skip=1, times=1)))
    file = ds["x"].open(1)
    with pytest.raises(StorageError, match="injected"):
        file.read(5)
    assert file.tell() == 0
    assert file.read(5) == DATA[:5]


def test_blobs_survive_updates_deletes_and_column_changes() -> None:
    ds = penstock.create("memory://", {"n": int, "x": Column(Bytes(), nullable=True)})
    ds.append({"n": range(4), "x": [DATA, b"a", None, b"b"]})
    ds.update(positions=[1, 2], data={"x": [b"c", DATA[5:]]})
    assert ds["x"][:] == [DATA, b"c", DATA[5:], b"b"]
    ds.update(positions=[0], data={"x": b"now short"})
    ds.update(positions=[3], data={"n": 30})
    ds.delete(positions=[1])
    assert ds["x"][:] == [b"now short", DATA[5:], b"b"]
    ds.update(positions=slice(None), data={"x": DATA[7:]})
    ds.rename_column("x", "y")
    ds.commit()
    assert ds["y"][:] == [DATA[7:]] * 3
    ds.add_column("z", Bytes(), values=[b"", DATA[9:], b""])
    ds.append({"n": [9], "y": [None], "z": [DATA]})
    assert ds["z"][:] == [b"", DATA[9:], b"", DATA]
    ds.commit()
    assert penstock.verify(ds._session.store).damaged == []


def test_a_blob_as_fill_value_raises_and_leaves_no_objects() -> None:
    ds = penstock.create("memory://", {"n": int})
    ds.append({"n": [1]})
    with pytest.raises(InvalidInputError, match="column 'x': the fill value is too large"):
        ds.add_column("x", Bytes(), fill=DATA)
    assert blobs(ds) == []
    assert ds.schema.names == ["n"]


def test_a_failed_update_deletes_its_blobs() -> None:
    ds = penstock.create("memory://", {"x": Bytes()})
    ds.append({"x": [b"a", b"b"]})
    with pytest.raises(InvalidInputError, match="column 'x', row 1: expected bytes, got int"):
        ds.update(positions=[0, 1], data={"x": [DATA, 5]})
    assert blobs(ds) == []
    assert ds["x"][:] == [b"a", b"b"]


def test_arrow_export_mixes_inline_values_and_blobs() -> None:
    ds = penstock.create("memory://", {"x": Bytes()})
    ds.append({"x": [b"short"] * 20_000})
    ds.append({"x": [DATA]})
    assert ds.to_arrow()["x"][-1].as_py() == DATA


def test_a_huge_image_decodes() -> None:
    image = np.frombuffer(np.random.default_rng(1).bytes(2600 * 2200 * 3), np.uint8).reshape(2600, 2200, 3)
    encoded = Image("bmp").to_array([image])[0].as_py()
    assert len(encoded) > MAX_INLINE_BYTES
    ds = penstock.create("memory://", {"x": Image()})
    ds.append({"x": [encoded, np.zeros((1, 1, 3), np.uint8)]})
    assert len(blobs(ds)) == 1
    np.testing.assert_array_equal(ds["x"][0], image)
    assert [value.shape for value in ds["x"][:]] == [image.shape, (1, 1, 3)]


def test_reading_another_row_or_column_does_not_read_a_blob() -> None:
    store = open_store("memory://")
    ds = penstock.create(store, {"n": int, "x": Bytes()})
    ds.append({"n": [1, 2], "x": [DATA, b"short"]})
    ds.commit()
    counting = CountingStore(store)
    ds = penstock.load(counting)
    assert ds["n"][0] == 1
    assert ds[1] == {"n": 2, "x": b"short"}
    assert counting.bytes["get"] < 20_000


def test_huge_tensors_and_text_round_trip() -> None:
    ds = penstock.create("memory://", {"v": Tensor("uint8", (SIZE,)), "r": Tensor("uint8", (None,)), "t": str})
    values = np.frombuffer(DATA, np.uint8)
    ds.append({"v": [values], "r": [values], "t": ["ü" * (10 * MIB)]})
    assert ds["v"][0].tobytes() == ds["r"][0].tobytes() == DATA
    assert ds["t"][0] == "ü" * (10 * MIB)


class ChangingSource(CountingStore):
    """A store during whose uploads another process writes to the file that is uploaded."""

    def __init__(self, store: Store, path: Path) -> None:
        super().__init__(store)
        self._path = path

    def put_stream(self, key: str, chunks: Iterable[Buffer]) -> None:
        def changing() -> Iterator[Buffer]:
            for chunk in chunks:
                yield chunk
                with self._path.open("r+b") as file:
                    file.write(b"new")

        super().put_stream(key, changing())


def test_a_file_that_changes_while_it_is_read_is_not_stored(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(DATA)
    ds = penstock.create(ChangingSource(open_store("memory://"), path), {"x": Bytes()})
    with pytest.raises(InvalidInputError, match=r"column 'x', row 0: .*a\.bin changed while it was read"):
        ds.append([{"x": path}])
    assert blobs(ds) == []
