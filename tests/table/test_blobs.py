"""Huge values: objects of their own, streamed in, read like files, verified MiB by MiB."""

import io
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import Bytes, Column, Dataset, Image, Tensor, Video
from penstock.errors import CorruptError, InvalidInputError, StorageError
from penstock.format import BLOB_BLOCK, INLINE_BYTES
from penstock.storage import open_store
from penstock.testing import CountingStore, Fault, FaultyStore
from tests.servers import Place, new_place

MIB = 1 << 20
SIZE = INLINE_BYTES + 3 * MIB + 123
DATA = np.random.default_rng(0).bytes(SIZE)
BLOCKS = -(-SIZE // BLOB_BLOCK)


def blobs(ds: Dataset) -> list[str]:
    return [item.key for item in ds._session.store.list("blobs/")]


def with_blob(store: Any) -> Dataset:
    ds = penstock.create(store, {"x": Bytes()})
    ds.append({"x": [b"short", DATA]})
    ds.commit()
    return ds


def test_huge_values_come_back_from_every_store(store_uri: Place) -> None:
    ds = penstock.create(store_uri.uri, {"n": int, "x": Column(Bytes(), nullable=True)}, options=store_uri.options)
    ds.append({"n": [0, 1, 2, 3], "x": [DATA, b"short", None, memoryview(DATA)[1:]]})
    ds.commit()
    ds = penstock.load(store_uri.uri, options=store_uri.options)
    assert len(blobs(ds)) == 2
    assert ds["x"][:] == [DATA, b"short", None, DATA[1:]]
    assert ds[3]["x"] == DATA[1:]
    assert ds[[3, 1, 0]]["x"][:] == [DATA[1:], b"short", DATA]
    assert ds.to_arrow()["x"].to_pylist() == [DATA, b"short", None, DATA[1:]]
    assert [row["n"] for row in ds] == [0, 1, 2, 3]
    with ds["x"].open(0) as file:
        file.seek(5 * MIB - 3)
        assert file.read(6) == DATA[5 * MIB - 3 : 5 * MIB + 3]
    assert penstock.verify(store_uri.uri, options=store_uri.options).damaged == []


@pytest.mark.parametrize(("size", "count"), [(INLINE_BYTES, 0), (INLINE_BYTES + 1, 1)])
def test_a_value_is_a_blob_from_the_first_byte_too_many(size: int, count: int, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(size))
    for value in (bytes(size), bytearray(size), memoryview(bytes(size)), tmp_path / "file", io.BytesIO(bytes(size))):
        ds = penstock.create("memory://", {"x": Bytes()})
        ds.append({"x": [value]})
        assert len(blobs(ds)) == count
        assert len(ds["x"][0]) == size


class Stream:
    """A huge file that is made as it is read, and never held."""

    def __init__(self, size: int, fail_at: int | None = None, error: type[Exception] = OSError) -> None:
        self._left, self._fail_at, self._error = size, fail_at, error
        self._size = size

    def read(self, size: int) -> bytes:
        if self._fail_at is not None and self._size - self._left >= self._fail_at:
            raise self._error("the cable was pulled")
        count = min(size, self._left)
        self._left -= count
        return bytes([self._left % 251]) * count


@pytest.mark.parametrize(("kind", "size"), [("folder", 400 * MIB), ("s3", 200 * MIB)])
def test_a_huge_file_is_streamed_without_being_held(kind: str, size: int) -> None:
    place = new_place(kind)
    ds = penstock.create(place.uri, {"x": Video()}, options=place.options)
    tracemalloc.start()
    try:
        ds.append({"x": [Stream(size)]})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 128 * MIB
    with ds["x"].open(0) as file:
        assert file.seek(0, io.SEEK_END) == size
        file.seek(size - 10)
        assert file.read() == b"\0" * 10


@pytest.mark.parametrize(("error", "raised"), [(OSError, InvalidInputError), (RuntimeError, RuntimeError)])
def test_a_file_that_breaks_half_way_leaves_nothing_behind(
    store_uri: Place, error: type[Exception], raised: type[Exception]
) -> None:
    ds = penstock.create(store_uri.uri, {"x": Bytes()}, options=store_uri.options)
    with pytest.raises(raised, match="the cable was pulled"):
        ds.append({"x": [DATA, Stream(40 * MIB, fail_at=30 * MIB, error=error)]})
    assert blobs(ds) == []
    assert not ds.has_changes


def test_reading_a_part_costs_the_mebibytes_it_lies_in() -> None:
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

    assert cost(4 * MIB + 5, 10) == (2, MIB + 4 * BLOCKS)  # the checksums, once, and a MiB
    assert cost(4 * MIB + 15, 100_000) == (0, 0)  # more of the same MiB
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
def test_a_blob_reads_like_any_file(table: Dataset, steps: list[Any]) -> None:
    blob, model = table["x"].open(1), io.BytesIO(DATA)
    for step, *arguments in steps:
        if step == "seek" and arguments[1] == 1:
            arguments[0] = max(arguments[0], -model.tell())
        if step == "readinto":
            mine, its = bytearray(arguments[0]), bytearray(arguments[0])
            assert blob.readinto(mine) == model.readinto(its)
            assert mine == its
        else:
            assert getattr(blob, step)(*arguments) == getattr(model, step)(*arguments)
        assert blob.tell() == model.tell()


def test_a_short_value_opens_as_a_file_too(table: Dataset) -> None:
    with table["x"].open(0) as file:
        assert (file.read(2), file.seek(-1, io.SEEK_END), file.read()) == (b"sh", 4, b"t")
    assert table["x"].open(-1).seek(0, io.SEEK_END) == SIZE


def test_a_blob_can_be_wrapped_and_read_whole(table: Dataset) -> None:
    assert table["x"].open(1).read() == DATA
    assert io.BufferedReader(table["x"].open(1)).read() == DATA
    file = table["x"].open(1)
    assert (file.readable(), file.seekable(), file.writable()) == (True, True, False)


def test_a_blob_that_is_closed_or_sought_wrongly_says_so(table: Dataset) -> None:
    file: io.RawIOBase = table["x"].open(1)
    for offset, whence in ((-1, 0), (-SIZE - 1, 2), (-1, 1), (0, 7)):
        with pytest.raises(ValueError, match="seek"):
            file.seek(offset, whence)
    file.close()
    uses: list[Callable[[], Any]] = [lambda: file.read(1), lambda: file.seek(0), file.tell, file.readall]
    for use in uses:
        with pytest.raises(ValueError, match="closed"):
            use()


def test_a_flipped_bit_in_a_blob_is_named_and_only_its_mebibyte_is_lost() -> None:
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
def test_flipped_checksums_of_a_blob_are_named(at: int) -> None:
    store = open_store("memory://")
    ds = with_blob(store)
    key = blobs(ds)[0]
    bad = bytearray(store.get(key))
    assert len(bad) == SIZE + 4 * BLOCKS
    bad[at] ^= 1
    store.put(key, bad)
    with pytest.raises(CorruptError, match=f"{key} is damaged: the checksum of its checksums"):
        ds["x"].open(1).read(1)


def test_a_store_that_does_not_answer_is_no_damage() -> None:
    store = open_store("memory://")
    with_blob(store)
    ds = penstock.load(FaultyStore(store, Fault("fail_before", "get", "blobs/*", skip=1, times=1)))
    file = ds["x"].open(1)
    with pytest.raises(StorageError, match="injected"):
        file.read(5)
    assert file.tell() == 0
    assert file.read(5) == DATA[:5]


def test_blobs_come_and_go_with_updates_deletes_and_columns() -> None:
    ds = penstock.create("memory://", {"n": int, "x": Column(Bytes(), nullable=True)})
    ds.append({"n": range(4), "x": [DATA, b"a", None, b"b"]})
    ds.update([1, 2], {"x": [b"c", DATA[5:]]})
    assert ds["x"][:] == [DATA, b"c", DATA[5:], b"b"]
    ds.update([0], {"x": b"now short"})
    ds.update([3], {"n": 30})
    ds.delete([1])
    assert ds["x"][:] == [b"now short", DATA[5:], b"b"]
    ds.update(slice(None), {"x": DATA[7:]})
    ds.rename_column("x", "y")
    ds.commit()
    assert ds["y"][:] == [DATA[7:]] * 3
    ds.add_column("z", Bytes(), values=[b"", DATA[9:], b""])
    ds.append({"n": [9], "y": [None], "z": [DATA]})
    assert ds["z"][:] == [b"", DATA[9:], b"", DATA]
    ds.commit()
    assert penstock.verify(ds._session.store).damaged == []


def test_a_fill_that_would_be_a_blob_is_refused_and_leaves_nothing() -> None:
    ds = penstock.create("memory://", {"n": int})
    ds.append({"n": [1]})
    with pytest.raises(InvalidInputError, match="column 'x': the fill value is too large"):
        ds.add_column("x", Bytes(), fill=DATA)
    assert blobs(ds) == []
    assert ds.columns == ["n"]


def test_an_update_that_is_refused_takes_its_blobs_away() -> None:
    ds = penstock.create("memory://", {"x": Bytes()})
    ds.append({"x": [b"a", b"b"]})
    with pytest.raises(InvalidInputError, match="column 'x', row 1: expected bytes, got int"):
        ds.update([0, 1], {"x": [DATA, 5]})
    assert blobs(ds) == []
    assert ds["x"][:] == [b"a", b"b"]


def test_arrow_holds_blobs_far_behind_short_values() -> None:
    ds = penstock.create("memory://", {"x": Bytes()})
    ds.append({"x": [b"short"] * 20_000})
    ds.append({"x": [DATA]})
    assert ds.to_arrow()["x"][-1].as_py() == DATA


def test_a_huge_picture_decodes() -> None:
    picture = np.frombuffer(np.random.default_rng(1).bytes(2600 * 2200 * 3), np.uint8).reshape(2600, 2200, 3)
    encoded = Image("bmp").to_array([picture])[0].as_py()
    assert len(encoded) > INLINE_BYTES
    ds = penstock.create("memory://", {"x": Image()})
    ds.append({"x": [encoded, np.zeros((1, 1, 3), np.uint8)]})
    assert len(blobs(ds)) == 1
    np.testing.assert_array_equal(ds["x"][0], picture)
    assert [value.shape for value in ds["x"][:]] == [picture.shape, (1, 1, 3)]


def test_a_row_beside_a_blob_does_not_read_it() -> None:
    store = open_store("memory://")
    ds = penstock.create(store, {"n": int, "x": Bytes()})
    ds.append({"n": [1, 2], "x": [DATA, b"short"]})
    ds.commit()
    counting = CountingStore(store)
    ds = penstock.load(counting)
    assert ds["n"][0] == 1
    assert ds[1] == {"n": 2, "x": b"short"}
    assert counting.bytes["get"] < 20_000


def test_huge_tensors_and_text_are_kept_whole() -> None:
    ds = penstock.create("memory://", {"v": Tensor("uint8", (SIZE,)), "r": Tensor("uint8", (None,)), "t": str})
    numbers = np.frombuffer(DATA, np.uint8)
    ds.append({"v": [numbers], "r": [numbers], "t": ["ü" * (10 * MIB)]})
    assert ds["v"][0].tobytes() == ds["r"][0].tobytes() == DATA
    assert ds["t"][0] == "ü" * (10 * MIB)
