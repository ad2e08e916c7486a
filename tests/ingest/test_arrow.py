"""Arrow as a source: files and streams, and lengths that lie."""

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.format import Column
from penstock.format.kinds import Embedding, Json
from penstock.ingest import Found, Reading, Reject, Rows
from penstock.ingest._bucket import Bucket
from penstock.ingest.sources import _ipc, _tabular
from penstock.ingest.sources._arrow import ARROW
from penstock.storage import Store, open_store
from penstock.testing import SourceTests

TABLE = pa.table(
    {
        "n": range(100),
        "text": [f"row {number}" for number in range(100)],
        "word": pa.array([f"word {number % 3}" for number in range(100)]).dictionary_encode(),
        "vector": pa.array([[1.0, 2.0]] * 100, pa.list_(pa.float32())),
        "struct": [{"a": number, "b": [None, "x"]} for number in range(100)],
    }
)


def as_file(table: pa.Table, *, compression: str | None = None, rows: int = 30, stream: bool = False) -> bytes:
    sink = io.BytesIO()
    make: Any = pa.ipc.new_stream if stream else pa.ipc.new_file
    with make(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table, max_chunksize=rows)
    return sink.getvalue()


class TestArrowFiles(SourceTests):
    source = ARROW
    expected = 200

    def make(self, folder: Path) -> None:
        (folder / "a.arrow").write_bytes(as_file(TABLE))
        pyarrow.feather.write_feather(TABLE, folder / "b.feather", chunksize=40)


class TestArrowStreams(SourceTests):
    source = ARROW
    expected = 200

    def make(self, folder: Path) -> None:
        (folder / "a.arrow").write_bytes(as_file(TABLE, stream=True))
        (folder / "b.ipc").write_bytes(as_file(TABLE, stream=True, compression="zstd"))


def stored(**files: bytes) -> Store:
    store = open_store("memory://")
    for name, data in files.items():
        store.put(f"{name}.arrow", data)
    return store


def read(store: Store) -> tuple[Reading, list[Found]]:
    bucket = Bucket(store)
    reading = ARROW.open(bucket, list(store.list()))
    return reading, list(reading.rows(bucket, reading.files))


def values(found: list[Found], column: str) -> list[Any]:
    return [value for item in found if isinstance(item, Rows) for value in item.batch.column(column).to_pylist()]


def rejects(found: list[Found]) -> list[Reject]:
    return [item for item in found if isinstance(item, Reject)]


@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_rows_come_back(stream: bool, compression: str | None) -> None:
    reading, found = read(stored(a=as_file(TABLE, compression=compression, stream=stream)))
    assert reading.columns == {"vector": Column(Embedding(2))}
    for name in TABLE.column_names:
        assert values(found, name) == TABLE[name].to_pylist()


def test_batches_are_cut_to_a_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tabular, "BATCH_BYTES", 10_000)
    table = pa.table({"n": range(1000), "data": [bytes(100)] * 1000})
    _, found = read(stored(a=as_file(table, rows=1000)))
    assert values(found, "n") == list(range(1000))
    assert max(item.batch.nbytes for item in found if isinstance(item, Rows)) <= 20_000


def test_a_dictionary_does_not_grow_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A short batch can mean any number of long words."""
    monkeypatch.setattr(_tabular, "BATCH_BYTES", 100_000)
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int8()), ["x" * 10_000, *"abcdefgh"])
    _, found = read(stored(a=as_file(pa.table({"word": words}), rows=1000)))
    assert max(item.batch.nbytes for item in found if isinstance(item, Rows)) <= 200_000
    assert len(values(found, "word")) == 1000


def test_dictionaries_of_other_files_may_differ() -> None:
    def words(*given: str) -> bytes:
        return as_file(pa.table({"word": pa.array(given).dictionary_encode()}))

    plain = as_file(pa.table({"word": ["c"]}))
    _, found = read(stored(a=words("a", "b", "a"), b=words("b"), c=plain))
    assert values(found, "word") == ["a", "b", "a", "b", "c"]


def test_json_is_json() -> None:
    texts = pa.array(['{"a": 1}'], pa.json_())
    reading, found = read(stored(a=as_file(pa.table({"j": texts}))))
    assert reading.columns == {"j": Column(Json())}
    assert values(found, "j") == ['{"a": 1}']


def test_a_cut_file_gives_what_is_whole() -> None:
    data = as_file(TABLE, rows=10)
    _, found = read(stored(a=data[: len(data) // 2], b=as_file(TABLE)))
    [reject] = rejects(found)
    kept = int(reject.name.removeprefix("a.arrow:"))
    assert 0 < kept < 100
    assert values(found, "n") == [*range(kept), *range(100)]
    assert "cut off" in reject.reason


@pytest.mark.parametrize("what", [b"FEA1", b"hello world, I am no Arrow", b"\xff\xff\xff\xff\x00", b"\xff\xff\xff\x7f"])
def test_what_is_no_arrow_is_rejected_by_its_name(what: bytes) -> None:
    _, found = read(stored(a=what, b=as_file(TABLE)))
    assert [reject.name for reject in rejects(found)] == ["a.arrow"]
    assert len(values(found, "n")) == 100


def test_a_batch_too_large_to_hold_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_ipc, "MAX_BATCH_BYTES", 100_000)
    small = pa.table({"n": range(10), "data": [bytes(10)] * 10})
    large = pa.table({"n": range(10), "data": [bytes(20_000)] * 10})
    for compression in (None, "zstd"):
        both = as_file(pa.concat_tables([small, large]), rows=10, compression=compression)
        _, found = read(stored(a=both, b=as_file(small)))
        assert values(found, "n") == [*range(10)] * 2
        [reject] = rejects(found)
        assert reject.name == "a.arrow:10"
        assert "smaller batches" in reject.reason


def test_a_length_that_lies_takes_no_memory() -> None:
    """The length before compression stands in the first bytes of a buffer; Arrow would take as much as it says."""
    data = as_file(pa.table({"data": [b"x" * 5000]}), compression="zstd", stream=True)
    length = struct.pack("<q", 5000)
    at = data.rindex(length)
    lying = data[:at] + struct.pack("<q", 1 << 45) + data[at + 8 :]
    _, found = read(stored(a=lying, b=as_file(pa.table({"data": [b"y"]}))))
    [reject] = rejects(found)
    assert "smaller batches" in reject.reason
    assert values(found, "data") == [b"y"]


def test_offsets_that_lie_are_not_followed() -> None:
    data = as_file(pa.table({"text": ["abcd", "efgh", "ijkl"], "n": [1, 2, 3]}), stream=True)
    offsets = np.array([0, 4, 8, 12], np.int32).tobytes()
    assert data.count(offsets) == 1
    lying = np.array([0, 4, 1 << 30, 12], np.int32).tobytes()
    _, found = read(stored(a=as_file(pa.table({"text": ["x"], "n": [0]})), b=data.replace(offsets, lying)))
    assert [reject.name for reject in rejects(found)] == ["b.arrow:1", "b.arrow:2"]
    assert values(found, "text") == ["x", "abcd"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damage_anywhere_is_rows_or_rejects(data: st.DataObject) -> None:
    whole = bytearray(as_file(TABLE, rows=50, compression=data.draw(st.sampled_from([None, "lz4"]))))
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
        whole[at] = data.draw(st.integers(0, 255))
    _, found = read(stored(a=as_file(TABLE), b=bytes(whole)))
    assert values(found, "n")[:100] == list(range(100))
