"""A table stores what its source holds: types, splits and partitions; every difference is noted."""

import json
from collections.abc import Callable
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import penstock
from penstock.codecs import ImageCodec

PNG = ImageCodec("png").encode(np.zeros((4, 4, 3), np.uint8))
UTC = timezone.utc  # noqa: UP017
STRUCT = pa.struct({"a": pa.int8(), "b": pa.list_(pa.float32())})
TYPES = {
    "fixed": pa.array([[float(n)] * 14 for n in range(4)], pa.list_(pa.float32(), 14)),
    "matrix": pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24, dtype=np.int16).reshape(4, 2, 3)),
    "ragged": pa.array([[1.5], [], [2.5, 3.5], [1.0]], pa.list_(pa.float32())),
    "vector": pa.array([[1.0, 2.0]] * 4, pa.list_(pa.float32())),
    "struct": pa.array([{"a": n, "b": [n / 2]} for n in range(4)], STRUCT),
    "words": pa.array([["a", None], [], None, ["b"]]),
    "small": pa.array([1, 2, 3, 4], pa.int8()),
    "large": pa.array([2**63 + 1, 0, 1, 2], pa.uint64()),
    "half": pa.array(np.array([0.5, 1, 2, 3], np.float16)),
    "flag": pa.array([True, False, None, True]),
    "nanos": pa.array([1, 2, None, 1_700_000_000_123_456_789], pa.timestamp("ns")),
    "seconds": pa.array([datetime(2024, 1, day) for day in range(1, 5)], pa.timestamp("s")),
    "aware": pa.array([datetime(2024, 1, 1, tzinfo=UTC)] * 4, pa.timestamp("us", "Europe/Berlin")),
    "day": pa.array([date(2024, 1, 1)] * 4),
    "span": pa.array([1, 2, 3, 4], pa.duration("ms")),
    "price": pa.array([Decimal("1.25")] * 4),
    "clock": pa.array([time(1, 2)] * 4),
    "map": pa.array([[("k", 1)], [], None, [("l", 2)]], pa.map_(pa.string(), pa.int64())),
    "word": pa.array(["x", "y", "x", None]).dictionary_encode(),
    "raw": pa.array([b"1", b"", b"2", b"3"]),
    "image": pa.array([PNG] * 4),
}  # fmt: skip


def same(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items()}  # noqa: C416


def changed(row: dict[str, Any]) -> dict[str, Any]:
    assert row["fixed"].dtype == np.float32
    return row | {"fixed": row["fixed"] * 2, "small": str(row["small"]), "vector": row["vector"] + 1}


@pytest.mark.parametrize("write", [pq.write_table, pyarrow.feather.write_feather], ids=["parquet", "arrow"])
def test_a_transform_keeps_the_types_of_columns_that_it_does_not_change(
    tmp_path: Path, write: Callable[[pa.Table, Path], None]
) -> None:
    (tmp_path / "source").mkdir()
    write(pa.table(TYPES), tmp_path / "source" / f"a.{'parquet' if write is pq.write_table else 'arrow'}")
    plain = penstock.ingest(tmp_path / "source", tmp_path / "plain")
    result = penstock.ingest(tmp_path / "source", tmp_path / "same", transform=same)
    assert (result.rows, result.rejects) == (4, ())
    assert str(result.schema) == str(plain.schema)
    assert result.notes == plain.notes
    assert penstock.load(tmp_path / "same").to_arrow().equals(penstock.load(tmp_path / "plain").to_arrow())


def test_a_type_that_a_transform_changes_is_noted(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    pq.write_table(pa.table(TYPES), tmp_path / "source" / "a.parquet")
    result = penstock.ingest(tmp_path / "source", tmp_path / "table", transform=changed)
    assert result.rejects == ()
    ds = penstock.load(tmp_path / "table")
    assert [str(ds.schema[name].kind) for name in ("fixed", "small")] == ["float32[14]", "text"]
    assert str(ds.schema["vector"].kind) == "embedding(float32[2])"
    assert ds["fixed"][1].tolist() == [2.0] * 14
    assert [note for note in result.notes if "transform" in note] == [
        "column 'small' is int8 in the source and text after the transform"
    ]


def test_conversions_of_types_and_names_are_noted(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    pq.write_table(pa.table(TYPES | {"_id": TYPES["small"]}), tmp_path / "source" / "a.parquet")
    notes = penstock.ingest(tmp_path / "source", tmp_path / "table", dry_run=True).notes
    assert sorted(note.split("'")[1] for note in notes) == [
        "_id", "aware", "clock", "image", "map", "price"
    ]  # fmt: skip
    assert "column 'price' is decimal128(3, 2) in the source and is stored as float64, with about 15 digits" in notes


def write_parquet(path: Path, value: int) -> None:
    pq.write_table(pa.table({"n": [value]}), path)


def write_arrow(path: Path, value: int) -> None:
    pyarrow.feather.write_feather(pa.table({"n": [value]}), path)


def write_json(path: Path, value: int) -> None:
    path.write_text(json.dumps({"n": value}) + "\n")


def write_csv(path: Path, value: int) -> None:
    path.write_text(f"n\n{value}\n")


def write_npz(path: Path, value: int) -> None:
    np.savez(path, n=np.array([value]))


WRITERS: dict[str, Callable[[Path, int], None]] = {
    "parquet": write_parquet,
    "arrow": write_arrow,
    "jsonl": write_json,
    "csv": write_csv,
    "npz": write_npz,
}


def ingest(tmp_path: Path, ending: str, *names: str) -> tuple[penstock.Dataset, penstock.IngestResult]:
    for value, name in enumerate(names):
        path = tmp_path / "source" / f"{name}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        WRITERS[ending](path, value)
    result = penstock.ingest(tmp_path / "source", tmp_path / "table")
    assert result.rejects == ()
    return penstock.load(tmp_path / "table"), result


@pytest.mark.parametrize("ending", sorted(WRITERS))
@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (("train/0", "train/1", "test/0"), {0: "train", 1: "train", 2: "test"}),
        (("data/train-00000-of-00002", "data/train-00001-of-00002", "data/validation-00000-of-00001"),
         {0: "train", 1: "train", 2: "validation"}),
        (("train", "dev", "test"), {0: "train", 1: "dev", 2: "test"}),
    ],
)  # fmt: skip
def test_splits_become_a_column(tmp_path: Path, ending: str, names: tuple[str, ...], splits: dict[int, str]) -> None:
    ds, result = ingest(tmp_path, ending, *names)
    assert dict(zip(np.ravel(ds["n"][:]).tolist(), ds["split"][:], strict=True)) == splits
    assert any(note.startswith("column 'split' is added from the names of") for note in result.notes)


@pytest.mark.parametrize(
    "names", [("train/0", "train/1"), ("train-0", "train-1"), ("train/0", "other/0"), ("train", "tested")]
)
def test_one_split_or_other_names_are_no_splits(tmp_path: Path, names: tuple[str, ...]) -> None:
    ds, result = ingest(tmp_path, "jsonl", *names)
    assert (ds.schema.names, result.notes) == (["n"], ())


def test_a_dataset_dict_keeps_its_splits(tmp_path: Path) -> None:
    """The layout of `datasets.DatasetDict.save_to_disk`."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "dataset_dict.json").write_text('{"splits": ["train", "held out"]}')
    for split in ("train", "held out"):
        folder = source / split
        folder.mkdir()
        (folder / "dataset_info.json").write_text("{}")
        (folder / "state.json").write_text('{"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}')
        with pa.OSFile(str(folder / "data-00000-of-00001.arrow"), "wb") as sink:
            table = pa.table({"text": [f"{split} row"]})
            with pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
    assert penstock.ingest(source, tmp_path / "table").kind == "arrow"
    rows = penstock.load(tmp_path / "table").to_arrow().to_pylist()
    assert sorted((row["text"], row["split"]) for row in rows) == [
        ("held out row", "held out"),
        ("train row", "train"),
    ]


def test_a_split_column_of_the_source_remains(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / "source" / split).mkdir(parents=True)
        pq.write_table(pa.table({"split": [f"my {split}"]}), tmp_path / "source" / split / "0.parquet")
    penstock.ingest(tmp_path / "source", tmp_path / "table")
    assert sorted(penstock.load(tmp_path / "table")["split"][:]) == ["my test", "my train"]


def test_partitions_become_columns(tmp_path: Path) -> None:
    table = pa.table({"n": range(4), "year": [2023, 2023, 2024, 2024], "place": ["a b", "c", "a b", None]})
    pq.write_to_dataset(table, tmp_path / "source", partition_cols=["year", "place"])
    result = penstock.ingest(tmp_path / "source", tmp_path / "table")
    found = penstock.load(tmp_path / "table").to_arrow().sort_by("n")
    assert found.select(["n", "year", "place"]).to_pylist() == table.to_pylist()
    assert "column 'year' is added from the names of folders: 2023, 2024" in result.notes
