"""Arrow source: files and streams, and false lengths."""

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
from penstock.ingest import Reject, RowBatch, SourceItem, SourceScan
from penstock.ingest._reader import SourceReader
from penstock.ingest.sources import _limits, _tabular
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


def read(store: Store) -> tuple[SourceScan, list[SourceItem]]:
    reader = SourceReader(store)
    scan = ARROW.open(reader, list(store.list()))
    return scan, list(scan.rows(reader, scan.files))


def values(found: list[SourceItem], column: str) -> list[Any]:
    return [value for item in found if isinstance(item, RowBatch) for value in item.batch.column(column).to_pylist()]


def rejects(found: list[SourceItem]) -> list[Reject]:
    return [item for item in found if isinstance(item, Reject)]


@pytest.mark.parametrize("stream", [False, True], ids=["file", "stream"])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_roundtrip_of_rows(stream: bool, compression: str | None) -> None:
    scan, found = read(stored(a=as_file(TABLE, compression=compression, stream=stream)))
    assert scan.columns == {"vector": Column(Embedding(2))}
    for name in TABLE.column_names:
        assert values(found, name) == TABLE[name].to_pylist()


def test_batches_have_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_tabular, "BATCH_BYTES", 10_000)
    table = pa.table({"n": range(1000), "data": [bytes(100)] * 1000})
    _, found = read(stored(a=as_file(table, rows=1000)))
    assert values(found, "n") == list(range(1000))
    assert max(item.batch.nbytes for item in found if isinstance(item, RowBatch)) <= 20_000


def test_dictionary_columns_expand_in_bounded_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many rows of a small batch may refer to one long dictionary value."""
    monkeypatch.setattr(_tabular, "BATCH_BYTES", 100_000)
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int8()), ["x" * 10_000, *"abcdefgh"])
    _, found = read(stored(a=as_file(pa.table({"word": words}), rows=1000)))
    assert max(item.batch.nbytes for item in found if isinstance(item, RowBatch)) <= 200_000
    assert len(values(found, "word")) == 1000


def test_dictionaries_may_differ_between_files() -> None:
    def words(*given: str) -> bytes:
        return as_file(pa.table({"word": pa.array(given).dictionary_encode()}))

    plain = as_file(pa.table({"word": ["c"]}))
    _, found = read(stored(a=words("a", "b", "a"), b=words("b"), c=plain))
    assert values(found, "word") == ["a", "b", "a", "b", "c"]


def test_json_extension_type_becomes_json() -> None:
    texts = pa.array(['{"a": 1}'], pa.json_())
    scan, found = read(stored(a=as_file(pa.table({"j": texts}))))
    assert scan.columns == {"j": Column(Json())}
    assert values(found, "j") == ['{"a": 1}']


def test_truncated_file_yields_its_complete_batches() -> None:
    data = as_file(TABLE, rows=10)
    _, found = read(stored(a=data[: len(data) // 2], b=as_file(TABLE)))
    [reject] = rejects(found)
    complete = int(reject.name.removeprefix("a.arrow:"))
    assert 0 < complete < 100
    assert values(found, "n") == [*range(complete), *range(100)]
    assert "truncated" in reject.reason


@pytest.mark.parametrize("what", [b"FEA1", b"hello world, I am no Arrow", b"\xff\xff\xff\xff\x00", b"\xff\xff\xff\x7f"])
def test_non_arrow_file_is_rejected(what: bytes) -> None:
    _, found = read(stored(a=what, b=as_file(TABLE)))
    assert [reject.name for reject in rejects(found)] == ["a.arrow"]
    assert len(values(found, "n")) == 100


def test_oversized_batch_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_limits, "MAX_BLOCK_BYTES", 100_000)
    small = pa.table({"n": range(10), "data": [bytes(10)] * 10})
    large = pa.table({"n": range(10), "data": [bytes(20_000)] * 10})
    for compression in (None, "zstd"):
        both = as_file(pa.concat_tables([small, large]), rows=10, compression=compression)
        _, found = read(stored(a=both, b=as_file(small)))
        assert values(found, "n") == [*range(10)] * 2
        [reject] = rejects(found)
        assert reject.name == "a.arrow:10"
        assert "smaller record batch" in reject.reason


def test_false_uncompressed_length_allocates_nothing() -> None:
    """A compressed buffer starts with its uncompressed length, which Arrow would allocate."""
    data = as_file(pa.table({"data": [b"x" * 5000]}), compression="zstd", stream=True)
    length = struct.pack("<q", 5000)
    at = data.rindex(length)
    forged = data[:at] + struct.pack("<q", 1 << 45) + data[at + 8 :]
    _, found = read(stored(a=forged, b=as_file(pa.table({"data": [b"y"]}))))
    [reject] = rejects(found)
    assert "smaller record batch" in reject.reason
    assert values(found, "data") == [b"y"]


def test_invalid_offsets_reject_their_rows() -> None:
    data = as_file(pa.table({"text": ["abcd", "efgh", "ijkl"], "n": [1, 2, 3]}), stream=True)
    offsets = np.array([0, 4, 8, 12], np.int32).tobytes()
    assert data.count(offsets) == 1
    forged = np.array([0, 4, 1 << 30, 12], np.int32).tobytes()
    _, found = read(stored(a=as_file(pa.table({"text": ["x"], "n": [0]})), b=data.replace(offsets, forged)))
    assert [reject.name for reject in rejects(found)] == ["b.arrow:1", "b.arrow:2"]
    assert values(found, "text") == ["x", "abcd"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_damage_yields_rows_or_rejects(data: st.DataObject) -> None:
    whole = bytearray(as_file(TABLE, rows=50, compression=data.draw(st.sampled_from([None, "lz4"]))))
    for at in data.draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=4)):
        whole[at] = data.draw(st.integers(0, 255))
    _, found = read(stored(a=as_file(TABLE), b=bytes(whole)))
    assert values(found, "n")[:100] == list(range(100))
