"""Parquet source: column kinds, and bounded memory for every file layout."""

import io
import json
from collections.abc import Mapping
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.codecs import ImageCodec
from penstock.engine import BadSamples
from penstock.errors import InvalidInputError
from penstock.format import Column
from penstock.format.kinds import Audio, Embedding, Image, Json, Label, List, Tensor, Text
from penstock.ingest import (
    SOURCES,
    IngestOptions,
    Reject,
    Row,
    RowBatch,
    SourceItem,
    SourceListing,
    SourceScan,
    prepare,
    run,
)
from penstock.ingest._reader import SourceReader
from penstock.ingest.sources import _limits, _parquet, _tabular
from penstock.ingest.sources._parquet import PARQUET
from penstock.storage import ObjectInfo, open_store
from penstock.testing import CountingStore, SourceTests

PIXELS = np.arange(48, dtype=np.uint8).reshape(4, 4, 3)
PNG = ImageCodec("png").encode(PIXELS)
JPEG = ImageCodec("jpeg").encode(PIXELS)
WAV = b"RIFF\x24\0\0\0WAVEfmt " + bytes(28)
MEDIA = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


class TestParquet(SourceTests):
    source = PARQUET
    expected = 50

    def make(self, folder: Path) -> None:
        table = pa.table(
            {
                "id": range(25),
                "text": [f"row {number}" for number in range(25)],
                "image": [PNG] * 25,
                "vector": pa.array([[1.0, 2.0]] * 25, pa.list_(pa.float32())),
                "score": [None, *range(24)],
            }
        )
        pq.write_table(table, folder / "a.parquet", row_group_size=10)
        pq.write_table(table, folder / "b.parquet")


def opened(folder: Path) -> tuple[SourceReader, SourceScan]:
    reader = SourceReader(open_store(folder))
    return reader, PARQUET.open(reader, list(reader.store.list()))


def read(folder: Path) -> tuple[Mapping[str, Any], list[SourceItem]]:
    reader, scan = opened(folder)
    return scan.columns, list(scan.rows(reader, scan.files))


def table_of(found: list[SourceItem]) -> pa.Table:
    assert [item for item in found if not isinstance(item, RowBatch)] == []
    return pa.Table.from_batches([item.batch for item in found if isinstance(item, RowBatch)])


def rejects(found: list[SourceItem]) -> list[Reject]:
    return [item for item in found if isinstance(item, Reject)]


def values(found: list[SourceItem], column: str) -> list[Any]:
    return [value for item in found if isinstance(item, RowBatch) for value in item.batch.column(column).to_pylist()]


def taken_in(folder: Path) -> penstock.Dataset:
    ds = penstock.create("memory://")
    prepared = prepare(ds._session, open_store(folder), SOURCES, None, IngestOptions())
    outcome = run(ds._session, prepared, bad_samples=BadSamples(action="raise", limit=0), message="", num_workers=1)
    assert outcome.rows == len(ds)
    return ds


def hugging_face(columns: dict[str, Any], features: dict[str, Any]) -> pa.Table:
    """A table as `datasets` writes it, with features in the schema metadata."""
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    return pa.table(columns).replace_schema_metadata(metadata)


@pytest.fixture
def imagenet(tmp_path: Path) -> Path:
    table = hugging_face(
        {
            "image": pa.array([{"bytes": JPEG, "path": "a.jpg"}, {"bytes": PNG, "path": None}, None], MEDIA),
            "sound": pa.array([{"bytes": WAV, "path": "a.wav"}] * 3, MEDIA),
            "label": [1, 0, -1],
            "grid": [[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]] * 3,
            "pair": [[1, 2], [3, 4], [5, 6]],
            "frames": pa.array([[{"bytes": PNG, "path": None}] * 2, [], None], pa.list_(MEDIA)),
            "caption": ["a", "b", "c"],
        },
        {
            "image": {"_type": "Image"},
            "sound": {"sampling_rate": 16000, "_type": "Audio"},
            "label": {"names": ["cat", "dog"], "_type": "ClassLabel"},
            "grid": {"shape": [3, 2], "dtype": "float64", "_type": "Array2D"},
            "pair": {"feature": {"dtype": "int64", "_type": "Value"}, "length": 2, "_type": "Sequence"},
            "frames": {"feature": {"_type": "Image"}, "_type": "List"},
            "caption": {"dtype": "string", "_type": "Value"},
        },
    )
    pq.write_table(table, tmp_path / "train-00000-of-00001.parquet")
    return tmp_path


def test_datasets_features_become_kinds(imagenet: Path) -> None:
    columns, found = read(imagenet)
    assert columns == {
        "image": Column(Image("png"), nullable=True),
        "sound": Column(Audio()),
        "label": Column(Label(("cat", "dog")), nullable=True),
        "grid": Column(Tensor("float64", (3, 2))),
        "pair": Column(Tensor("int64", (2,))),
        "frames": Column(List(Image("png")), nullable=True),
    }
    table = table_of(found)
    assert table["image"].to_pylist() == [JPEG, PNG, None]
    assert table["label"].to_pylist() == [1, 0, None]
    assert table["frames"].to_pylist() == [[PNG, PNG], [], None]
    assert table["grid"].type == Tensor("float64", (3, 2)).arrow_type


def test_ingest_of_a_datasets_file(imagenet: Path) -> None:
    ds = taken_in(imagenet)
    row = ds[0]
    assert row["label"] == 1
    assert row["grid"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert row["image"].shape == (4, 4, 3)
    assert row["caption"] == "a"
    assert [image.tolist() for image in row["frames"]] == [PIXELS.tolist()] * 2


@pytest.mark.parametrize("metadata", [b"[", b"[]", b'{"info": {"features": 3}}', b"[" * 100_000])
def test_invalid_features_are_ignored(tmp_path: Path, metadata: bytes) -> None:
    table = pa.table({"a": [1]}).replace_schema_metadata({b"huggingface": metadata})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read(tmp_path)[0] == {}


def test_media_structs_are_recognised_by_signature(tmp_path: Path) -> None:
    one = {"image": {"bytes": JPEG, "path": "x"}, "sound": {"bytes": WAV, "path": "x"}, "other": {"bytes": b"?"}}
    schema = pa.schema([(name, MEDIA) for name in one])
    pq.write_table(pa.Table.from_pylist([one] * 2, schema), tmp_path / "a.parquet")
    columns, found = read(tmp_path)
    assert columns == {"image": Column(Image("jpeg")), "sound": Column(Audio("wav"))}
    assert values(found, "other") == [{"bytes": b"?", "path": None}] * 2


def test_media_path_without_bytes_rejects_only_its_row(tmp_path: Path) -> None:
    images = [{"bytes": PNG, "path": None}, {"bytes": None, "path": "/home/me/a.png"}, {"bytes": PNG, "path": None}]
    pq.write_table(pa.table({"n": [0, 1, 2], "image": pa.array(images, MEDIA)}), tmp_path / "a.parquet")
    _, found = read(tmp_path)
    assert values(found, "n") == [0, 2]
    [reject] = rejects(found)
    assert reject.name == "a.parquet:1"
    assert "/home/me/a.png" in reject.reason


def test_arrow_types_become_kinds(tmp_path: Path) -> None:
    table = pa.table(
        {
            "decimal": pa.array([Decimal("1.25")], pa.decimal128(9, 2)),
            "time": pa.array([time(1, 2, 3)], pa.time32("s")),
            "word": pa.array(["a"]).dictionary_encode(),
            "nothing": pa.nulls(1),
            "map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
            "deep": [{"price": Decimal("2.5"), "inner": [{"day": date(2020, 1, 1)}]}],
            "unsigned": pa.array([200], pa.uint8()),
            "yes": [True],
            "half": pa.array([np.float16(0.5)], pa.float16()),
            "when": [datetime(2020, 1, 1)],
            "embedding": pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)),
            "box": pa.array([[1.0, 2.0, 3.0, 4.0]], pa.list_(pa.float32(), 4)),
            "numbers": [[1.0, 2.0]],
            "clip_emb": [[1.0, 2.0]],
            "members": [[1.0, 2.0]],
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    columns, found = read(tmp_path)
    assert columns == {
        "map": Column(Json()),
        "embedding": Column(Embedding(2)),
        "clip_emb": Column(Embedding(2, "float64")),
    }
    kinds = {field.name: field.kind for field in taken_in(tmp_path).schema}
    assert kinds["decimal"] == Tensor("float64")
    assert kinds["time"] == kinds["word"] == kinds["nothing"] == Text()
    assert kinds["box"] == Tensor("float32", (4,))
    assert kinds["members"] == kinds["numbers"] == Tensor("float64", (None,))
    assert kinds["unsigned"] == Tensor("uint8")
    assert values(found, "map") == ['{"a":1}']
    assert values(found, "time") == ["01:02:03.000"]
    assert values(found, "deep") == [{"price": 2.5, "inner": [{"day": date(2020, 1, 1)}]}]


def test_embedding_of_another_length_is_rejected(tmp_path: Path) -> None:
    vectors = [[1.0, 2.0]] * 99 + [[1.0]] + [[1.0, None], None, [3.0, 4.0]]
    pq.write_table(pa.table({"vector": vectors, "n": range(103)}), tmp_path / "a.parquet")
    columns, found = read(tmp_path)
    assert columns["vector"].kind == Embedding(2, "float64")
    assert [reject.name for reject in rejects(found)] == ["a.parquet:99", "a.parquet:100"]
    assert values(found, "n") == [*range(99), 101, 102]


def test_late_null_makes_a_column_nullable(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [*range(999), None], "b": range(1000)}), tmp_path / "a.parquet")
    assert read(tmp_path)[0] == {"a": Column(Tensor("int64"), nullable=True)}


def test_missing_columns_are_null_and_extra_columns_reject_the_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1], "b": [[1.0, 2.0]], "embed": [[0.5, 0.5]]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": pa.array([2], pa.int8())}), tmp_path / "2.parquet")
    pq.write_table(pa.table({"a": [3], "c": [1], "d": [2]}), tmp_path / "3.parquet")
    pq.write_table(pa.table({"a": [{"x": 1}]}), tmp_path / "4.parquet")
    pq.write_table(pa.table({"a": [5.0, 5.5, float("nan"), 6.0]}), tmp_path / "5.parquet")
    _, found = read(tmp_path)
    assert values(found, "a") == [1, 2, 5, 6]
    assert values(found, "embed") == [[0.5, 0.5], None, None, None]
    reasons = {reject.name: reject.reason for reject in rejects(found)}
    assert list(reasons) == ["3.parquet", "4.parquet", "5.parquet:1", "5.parquet:2"]
    assert "'c', 'd'" in reasons["3.parquet"]
    assert "struct" in reasons["4.parquet"]


def test_invalid_column_names_are_cleaned(tmp_path: Path) -> None:
    names = ["_id", "id", "a\nb", "", "a", "a", "__index_level_0__"]
    table = pa.table([pa.array([number]) for number in range(7)], names=names)
    pq.write_table(table, tmp_path / "a.parquet")
    _, found = read(tmp_path)
    row = table_of(found).to_pylist()[0]
    assert row == {"id": 0, "id_2": 1, "a_b": 2, "column": 3, "a": 4, "a_2": 5}
    taken_in(tmp_path)


def test_invalid_utf8_is_rejected(tmp_path: Path) -> None:
    raw = pa.array([b"good", b"\xff\xfe", b"fine"]).view(pa.string())
    pq.write_table(pa.table({"text": raw}), tmp_path / "a.parquet")
    _, found = read(tmp_path)
    assert values(found, "text") == ["good", "fine"]
    assert [reject.name for reject in rejects(found)] == ["a.parquet:1"]


def test_damaged_row_group_rejects_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table({"n": range(300)}), path, row_group_size=100, **options)
    place = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    raw = bytearray(path.read_bytes())
    raw[place + 400] ^= 0xFF
    path.write_bytes(raw)
    _, found = read(tmp_path)
    assert values(found, "n") == [*range(100), *range(200, 300)]
    [reject] = rejects(found)
    assert reject.name == "a.parquet:100"
    assert "row 200" in reject.reason


def test_non_parquet_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "1.parquet").write_bytes(b"PAR1 this is not Parquet PAR1")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "2.parquet")
    _, found = read(tmp_path)
    assert values(found, "a") == [1]
    assert [reject.name for reject in rejects(found)] == ["1.parquet"]
    (tmp_path / "2.parquet").unlink()
    with pytest.raises(InvalidInputError, match=r"1\.parquet"):
        read(tmp_path)


def test_file_without_rows_decides_the_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([], pa.int64()), "b": pa.array([], MEDIA)}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": [1]}), tmp_path / "2.parquet")
    assert values(read(tmp_path)[1], "a") == [1]


@pytest.mark.parametrize("held_bytes", [0, 1 << 30], ids=["windows", "whole row groups"])
def test_rows_come_in_order_and_in_batches_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_bytes: int
) -> None:
    monkeypatch.setattr(_parquet, "_BUFFERED_GROUP_BYTES", held_bytes)
    monkeypatch.setattr(_parquet, "BATCH_BYTES", 100_000)
    monkeypatch.setattr(_tabular, "BATCH_BYTES", 100_000)
    rng = np.random.default_rng(0)
    data = [rng.bytes(int(size)) for size in rng.integers(0, 20_000, 500)]
    table = pa.table({"n": range(500), "data": data, "text": ["same"] * 500})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=200, data_page_size=8192)
    _, found = read(tmp_path)
    assert table_of(found).to_pylist() == table.to_pylist()
    assert max(item.batch.nbytes for item in found if isinstance(item, RowBatch)) < 300_000
    assert [item.name for item in found][:1] == [f"a.parquet[0:{len(found[0].batch)}]"]  # type: ignore[union-attr]


def test_large_row_group_is_streamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each column is fetched once, through its own buffer."""
    monkeypatch.setattr(_parquet, "_BUFFERED_GROUP_BYTES", 1 << 20)
    rng = np.random.default_rng(0)
    table = pa.table({name: [rng.bytes(10_000) for _ in range(400)] for name in ("a", "b")})
    options: dict[str, Any] = {"use_dictionary": False, "data_page_size": 50_000, "write_batch_size": 5}
    pq.write_table(table, tmp_path / "a.parquet", **options)
    store = CountingStore(open_store(tmp_path))
    reader = SourceReader(store)
    scan = PARQUET.open(reader, list(store.list()))
    largest = 0

    class Watched(SourceReader):
        def read(self, file: ObjectInfo, start: int = 0, length: int | None = None) -> memoryview:
            nonlocal largest
            data = super().read(file, start, length)
            largest = max(largest, len(data))
            return data

    watched = Watched(store)
    assert sum(len(item.batch) for item in scan.rows(watched, scan.files) if isinstance(item, RowBatch)) == 400
    assert largest <= 600_000
    size = (tmp_path / "a.parquet").stat().st_size
    assert size <= watched.byte_counter.bytes < 1.2 * size


@pytest.mark.parametrize("held_bytes", [0, 1 << 30], ids=["windows", "whole row groups"])
def test_oversized_page_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, held_bytes: int) -> None:
    for name, size in (("1", 10), ("2", 200_000)):
        pq.write_table(pa.table({"data": [np.random.default_rng(0).bytes(size)]}), tmp_path / f"{name}.parquet")
    monkeypatch.setattr(_parquet, "_BUFFERED_GROUP_BYTES", held_bytes)
    monkeypatch.setattr(_limits, "MAX_BLOCK_BYTES", 100_000)
    _, found = read(tmp_path)
    assert len(values(found, "data")) == 1
    assert [reject.name for reject in rejects(found)] == ["2.parquet"]


def test_compressible_columns_are_read_whole_and_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 long values in a dictionary of one take no more bytes than one: honest, and no bomb."""
    monkeypatch.setattr(_limits, "HARMLESS_BYTES", 1 << 20)
    monkeypatch.setattr(_limits, "MAX_RATIO", 2)
    pq.write_table(pa.table({"text": ["x" * 100_000] * 1000, "zero": [0] * 1000}), tmp_path / "a.parquet")
    reader, scan = opened(tmp_path)
    blocks = [item.batch for item in _parquet._scan(reader, scan.files[0]) if not isinstance(item, Reject)]
    assert sum(map(len, blocks)) == 1000
    assert max(batch.nbytes for batch in blocks) < 2 * _tabular.BATCH_BYTES
    assert rejects(read(tmp_path)[1]) == []
    assert len(taken_in(tmp_path)) == 1000


def test_large_files_of_another_type_prevent_recognition() -> None:
    def listed(*files: tuple[str, int]) -> SourceListing:
        return SourceListing([ObjectInfo(key, size, None, 0) for key, size in files])

    assert PARQUET.recognise(listed(("data/a.PARQUET", 9), ("README.md", 9), ("x/_SUCCESS", 9), ("info.json", 9)))
    assert not PARQUET.recognise(listed(("a.parquet", 9), ("a.jpg", 9)))
    assert not PARQUET.recognise(listed(("a.parquet", 9), ("big.json", 1 << 30)))
    assert not PARQUET.recognise(listed(("README.md", 9)))


CELLS = st.one_of(st.none(), st.integers(-(2**40), 2**40), st.just(7))


@settings(deadline=None)
@given(st.lists(st.tuples(CELLS, st.one_of(st.none(), st.text(max_size=4)), st.lists(st.floats(width=32), max_size=3))))
def test_table_roundtrip(rows: list[tuple[int | None, str | None, list[float]]]) -> None:
    schema = pa.schema([("n", pa.int64()), ("text", pa.string()), ("list", pa.list_(pa.float32()))])
    table = pa.Table.from_arrays(
        [pa.array([row[place] for row in rows], field.type) for place, field in enumerate(schema)], schema=schema
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=max(1, len(rows) // 3))
    store = open_store("memory://")
    store.put("a.parquet", sink.getvalue())
    reader = SourceReader(store)
    scan = PARQUET.open(reader, list(store.list()))
    found = list(scan.rows(reader, scan.files))
    assert not any(isinstance(item, Reject | Row) for item in found)
    batches = [item.batch for item in found if isinstance(item, RowBatch)]
    assert pa.Table.from_batches(batches, schema).equals(table) or repr(
        pa.Table.from_batches(batches, schema).to_pylist()
    ) == repr(table.to_pylist())
