"""What a source may be and what is taken from it: a single file, a declared schema, selected columns, samples."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import safetensors.numpy

import penstock
from penstock.cli import main
from penstock.codecs import ImageCodec
from penstock.errors import InvalidInputError, NotFoundError
from penstock.storage import open_store
from tests.servers import new_location


@pytest.mark.parametrize("kind", ["folder", "memory", "s3"])
def test_a_single_file_is_a_source(kind: str, tmp_path: Path) -> None:
    location = new_location(kind)
    store = location.open()
    store.put("data/a.jsonl", b'{"x": 1}\n')
    store.put("data/b.jsonl", b'{"x": 2}\n')
    uri = f"{location.uri}/data/a.jsonl"
    result = penstock.ingest(uri, tmp_path / "table", source_storage_options=location.options)
    assert (result.rows, result.files.taken, result.source) == (1, 1, uri)
    assert penstock.ingest(uri, tmp_path / "table", source_storage_options=location.options).files.taken == 0
    folder = penstock.ingest(f"{location.uri}/data", tmp_path / "table", source_storage_options=location.options)
    assert (folder.rows, sorted(penstock.load(tmp_path / "table")["x"][:].tolist())) == (2, [1, 1, 2])
    [synced] = penstock.sync(tmp_path / "table", uri, source_storage_options=location.options)
    assert synced.source == uri
    with pytest.raises(NotFoundError):
        penstock.ingest(f"{location.uri}/data/none.jsonl", tmp_path / "t", source_storage_options=location.options)


def test_a_single_file_is_a_source_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "_a.jsonl").write_text('{"x": 1}\n')
    for _ in range(2):
        assert main(["create", str(tmp_path / "table"), f"from-{tmp_path}/_a.jsonl"]) == 0
    assert "1 row" in capsys.readouterr().out
    assert len(penstock.load(tmp_path / "table")) == 1


def write_csv(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "a.csv").write_text("id,x,kind\n007,1,cat\n008,2,dog\n")
    return folder


SCHEMA = {"id": "text", "x": "float32?", "kind": "label=dog,cat"}


def check_declared(ds: penstock.Dataset) -> None:
    assert str(ds.schema) == "id: text\nx: float32?\nkind: label(2 classes)"
    assert (list(ds["id"][:]), ds["kind"][:].tolist()) == (["007", "008"], [1, 0])


def test_a_schema_gives_kinds_to_the_columns_of_a_source(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "source")
    assert str(penstock.ingest(source, tmp_path / "t", dry_run=True).schema) == "id: int64\nx: int64\nkind: text"
    penstock.ingest(source, tmp_path / "table", schema=SCHEMA)
    check_declared(penstock.load(tmp_path / "table"))
    (source / "b.csv").write_text("id,x,kind\n009,3,cat\n")
    assert [result.rows for result in penstock.sync(tmp_path / "table")] == [1]
    assert penstock.load(tmp_path / "table")["id"][2] == "009"
    with pytest.raises(InvalidInputError, match=r"there is no column 'y'"):
        penstock.ingest(source, tmp_path / "t", schema={"y": "text"})
    with pytest.raises(InvalidInputError, match=r"column 'x': 'flot' is not a type"):
        penstock.ingest(source, tmp_path / "t", schema={"x": "flot"})


def test_a_schema_for_a_source_on_the_command_line(tmp_path: Path) -> None:
    source = write_csv(tmp_path / "source")
    options = [word for name, text in SCHEMA.items() for word in ("--column", f"{name}:{text}")]
    assert main(["create", str(tmp_path / "a"), f"from-{source}", *options]) == 0
    check_declared(penstock.load(tmp_path / "a"))
    (tmp_path / "schema.json").write_text(json.dumps(SCHEMA))
    assert main(["create", str(tmp_path / "b"), f"from-{source}", "--schema", str(tmp_path / "schema.json")]) == 0
    check_declared(penstock.load(tmp_path / "b"))


def test_a_schema_fits_parquet_and_transforms(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    pq.write_table(pa.table({"x": [[1.0] * 14] * 3, "n": [1, 2, 3]}), tmp_path / "source" / "a.parquet")
    for transform in (None, halved):
        table = tmp_path / f"table-{transform is None}"
        penstock.ingest(tmp_path / "source", table, schema={"x": "float32[14]", "n": "int8"}, transform=transform)
        ds = penstock.load(table)
        assert str(ds.schema) == "x: float32[14]\nn: int8"
        assert ds["x"][0].tolist() == ([1.0] if transform is None else [0.5]) * 14


def halved(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"x": [value / 2 for value in row["x"]]}


def write_parquet_with_other_columns(folder: Path) -> None:
    pq.write_table(pa.table({"x": [1], "y": ["one"]}), folder / "a.parquet")
    pq.write_table(pa.table({"x": [2], "y": [[2]]}), folder / "b.parquet")
    pq.write_table(pa.table({"x": [3], "z": [3]}), folder / "c.parquet")


def write_jsonl_with_other_keys(folder: Path) -> None:
    (folder / "a.jsonl").write_text('{"x": 1, "y": "one"}\n')
    (folder / "b.jsonl").write_text('{"x": 2}\n{"x": 3, "z": [1, "mixed"]}\n')


def write_npz_with_objects(folder: Path) -> None:
    np.savez(folder / "a.npz", x=np.array([1, 2, 3]), y=np.array([None, 1], dtype=object))


def write_safetensors_of_other_lengths(folder: Path) -> None:
    safetensors.numpy.save_file({"x": np.array([1, 2, 3]), "y": np.zeros(7)}, folder / "a.safetensors")


@pytest.mark.parametrize(
    "write",
    [
        write_parquet_with_other_columns,
        write_jsonl_with_other_keys,
        write_npz_with_objects,
        write_safetensors_of_other_lengths,
    ],
)
def test_columns_that_are_left_out_reject_nothing(write: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    write(tmp_path / "source")
    result = penstock.ingest(tmp_path / "source", tmp_path / "table", columns=["x"])
    assert (result.rows, result.rejects, result.schema.names) == (3, (), ["x"])
    assert sorted(np.ravel(penstock.load(tmp_path / "table")["x"][:]).tolist()) == [1, 2, 3]


ANY_SHAPE, ONE_SHAPE = penstock.Image("png"), penstock.Image("png", (8, 6, 3), inferred=True)
SHAPE_NOTE = (
    "column 'image': all sampled images have shape (8, 6, 3);"
    " loaders stack them until an image of another shape is added"
)


def write_images(folder: Path, count: int) -> None:
    folder.mkdir()
    for number in range(count):
        pixels = np.full((8, 6, 3), number, np.uint8)
        (folder / f"{number:03}.png").write_bytes(ImageCodec("png").encode(pixels))


def test_images_of_one_shape_stack_until_a_sync_finds_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    write_images(source, 100)
    result = penstock.ingest(source, tmp_path / "table")
    assert (result.rows, result.schema["image"].kind, result.notes) == (100, ONE_SHAPE, (SHAPE_NOTE,))
    ds = penstock.load(tmp_path / "table")
    assert next(iter(ds.numpy(batch_size=100)))["image"].shape == (100, 8, 6, 3)
    assert main(["create", str(tmp_path / "t"), f"from-{source}", "--dry-run"]) == 0
    assert f"{SHAPE_NOTE}." in " ".join(capsys.readouterr().out.split())
    (source / "other.png").write_bytes(ImageCodec("png").encode(np.zeros((5, 5, 3), np.uint8)))
    [synced] = penstock.sync(tmp_path / "table")
    assert (synced.rows, synced.rejects, synced.schema["image"].kind) == (1, (), ANY_SHAPE)
    [note] = synced.notes
    assert "an image of another shape was added" in note
    found = next(iter(penstock.load(tmp_path / "table").numpy(batch_size=101)))["image"]
    assert sorted({image.shape for image in found}) == [(5, 5, 3), (8, 6, 3)]
    old = penstock.load(tmp_path / "table", version=ds.version)
    assert next(iter(old.numpy(batch_size=100)))["image"].shape == (100, 8, 6, 3)


def test_an_image_of_another_shape_that_was_not_sampled_is_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_images(tmp_path / "source", 100)
    (tmp_path / "source" / "001.png").write_bytes(ImageCodec("png").encode(np.zeros((8, 6), np.uint8)))

    def interrupt(progress: penstock.IngestProgress) -> None:
        if progress.files_done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        penstock.ingest(tmp_path / "source", tmp_path / "resumed", progress=interrupt)
    result = penstock.ingest(tmp_path / "source", tmp_path / "resumed")
    assert (result.resumed_rows, result.schema["image"].kind) == (100, ANY_SHAPE), "a staged part has it too"
    assert penstock.load(tmp_path / "resumed")["image"][1].shape == (8, 6)
    assert main(["create", str(tmp_path / "new"), f"from-{tmp_path}/source"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert shown.count(SHAPE_NOTE) == shown.count("an image of another shape was added") == 1


def test_images_of_a_declared_shape_reject_others(tmp_path: Path) -> None:
    write_images(tmp_path / "source", 4)
    (tmp_path / "source" / "9.png").write_bytes(ImageCodec("png").encode(np.zeros((5, 5, 3), np.uint8)))
    result = penstock.ingest(tmp_path / "source", tmp_path / "declared", schema={"image": "image[8,6,3]"})
    [reject] = result.rejects
    assert (reject.name, "(8, 6, 3), got 5 x 5 pixels" in reject.reason) == ("9.png", True)
    assert penstock.load(tmp_path / "declared")["image"][:].shape == (4, 8, 6, 3)


def test_archives_whose_arrays_share_no_rows_are_samples(tmp_path: Path) -> None:
    store = open_store(tmp_path / "source")
    (tmp_path / "source").mkdir()
    for number in range(3):
        np.savez(
            tmp_path / "source" / f"{number}.npz",
            image=np.full((8, 6, 3), number, np.uint8),
            label=np.int64(number),
            pose=np.zeros(7, np.float32),
        )
    assert len(list(store.list())) == 3
    result = penstock.ingest(tmp_path / "source", tmp_path / "table")
    assert (result.rows, result.rejects) == (3, ())
    ds = penstock.load(tmp_path / "table")
    assert str(ds.schema) == "image: uint8[8, 6, 3]\nlabel: int64\npose: float32[7]"
    assert ds["label"][:].tolist() == [0, 1, 2]
