"""Every file of a source is taken, rejected or ignored, and counted once; kinds that are found are listed."""

import gzip
import json
import os
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock import FileCounts
from penstock.cli import main
from penstock.codecs import ImageCodec
from penstock.errors import InvalidInputError, NotFoundError, SampleError
from penstock.ingest import SOURCES
from penstock.testing import SourceTests
from tests.servers import new_location

IMAGE = bytes(ImageCodec("png").encode(np.zeros((8, 8, 3), np.uint8)))


def write(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Classes of images as people have them."""
    folder = write(
        tmp_path / "photos",
        {
            "cat/1.png": IMAGE,
            "cat/2.png": b"",
            "cat/3.png": IMAGE[:30],
            "cat/Thumbs.db": b"thumbnails",
            "dog/1.png": IMAGE,
            "dog/.DS_Store": b"desktop",
            "dog/1.txt": b"a good dog",
            "dog/empty.txt": b"",
            "_SUCCESS": b"",
            "labels.csv": b"file,age\ncat/1.png,3\ndog/1.png,4\ncat/2.png,3\ncat/3.png,3\n",
        },
    )
    os.mkfifo(folder / "pipe.png")
    return folder


def test_every_source_passes_the_conformance_tests() -> None:
    """`SourceTests` is subclassed for each source; it counts files with empty, hidden, unknown and damaged ones."""
    for path in Path(__file__).parent.glob("test_*.py"):
        if "(SourceTests)" in path.read_text():
            import_module(f"tests.ingest.{path.stem}")
    tested = {each.source.name for each in SourceTests.__subclasses__()}
    assert SOURCES.keys() - tested == {"numpy-rows", "numpy-samples"}, "the source numpy chooses between these"


def test_an_empty_image_is_rejected_and_all_files_are_counted(photos: Path, tmp_path: Path) -> None:
    result = penstock.ingest(photos, tmp_path / "table")
    files = result.files
    assert (files.listed, files.taken, files.rejected, files.ignored) == (11, 3, 3, 5)
    assert files.ignored_reasons == {"hidden": 2, "empty": 1, ".db": 1, ".txt": 1}
    rejected = {reject.name: reject.reason for reject in result.rejects}
    assert sorted(rejected) == ["cat/2.png", "cat/3.png", "pipe.png"]
    assert rejected["cat/2.png"] == "is empty: it has 0 bytes"
    assert rejected["pipe.png"] == "is not a file"
    with pytest.raises(SampleError, match="nothing was committed"):
        penstock.ingest(photos, tmp_path / "other", bad_samples="raise")


def test_a_dry_run_and_a_sync_count_the_same_files(photos: Path, tmp_path: Path) -> None:
    planned = penstock.ingest(photos, tmp_path / "table", dry_run=True).files
    assert (planned.listed, planned.taken, planned.rejected) == (11, 4, 2), "the damaged one is found when it is read"
    penstock.ingest(photos, tmp_path / "table")
    write(photos, {"cat/9.png": IMAGE, "cat/1.png": IMAGE + b"\0"})
    (photos / "labels.csv").write_bytes((photos / "labels.csv").read_bytes() + b"cat/9.png,1\n")
    [synced] = penstock.sync(tmp_path / "table")
    assert synced.rows == 1
    assert synced.files.listed == 12
    assert (synced.files.taken, synced.files.rejected) == (2, 3), "the image, and its labels"
    assert synced.files.ignored_reasons["already in the table"] == 1
    assert synced.files.ignored_reasons["changed since they were ingested"] == 1


def test_files_that_are_columns_of_the_same_rows_are_taken(tmp_path: Path) -> None:
    (tmp_path / "arrays").mkdir()
    for shard in range(2):
        np.save(tmp_path / "arrays" / f"images_{shard}.npy", np.zeros((5, 4, 4), np.uint8))
        np.save(tmp_path / "arrays" / f"labels_{shard}.npy", np.arange(5))
    first = penstock.ingest(tmp_path / "arrays", tmp_path / "table")
    assert (first.rows, first.files) == (10, FileCounts(taken=4))
    again = penstock.ingest(tmp_path / "arrays", tmp_path / "table")
    assert again.files == FileCounts(ignored_reasons={"already in the table": 4})


def test_folder_markers_of_a_bucket_are_ignored(tmp_path: Path) -> None:
    location = new_location("s3")
    location.open().put("photos/a.png", IMAGE)
    location.open().put("photos/sub", b"")  # what a marker `photos/sub/` is listed as
    result = penstock.ingest(f"{location.uri}/photos", tmp_path / "table", source_storage_options=location.options)
    assert result.files == FileCounts(taken=1, ignored_reasons={"empty": 1})


def test_the_command_line_shows_the_four_numbers(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["create", str(tmp_path / "table"), f"from-{photos}"]) == 0
    shown = capsys.readouterr().out
    assert "11 files listed: 3 taken, 3 rejected, 5 ignored (2 hidden, 1 empty, 1 .db, 1 .txt)" in shown
    assert main(["sync", str(tmp_path / "table"), "--json"]) == 0
    [synced] = json.loads(capsys.readouterr().out)["sources"]
    assert synced["files"] == {
        "listed": 11,
        "taken": 0,
        "rejected": 3,
        "ignored": 8,
        "ignored_reasons": {
            "hidden": 2,
            "empty": 1,
            "already in the table": 2,
            ".db": 1,
            ".txt": 1,
            "labels or an index of other files": 1,
        },
    }


def test_files_that_are_all_empty_are_named_so(tmp_path: Path) -> None:
    write(tmp_path, {"a.png": b"", "b.png": b"", ".c": b"x"})
    with pytest.raises(NotFoundError, match=r"no files in .* that can be read \(1 hidden; 2 empty\)"):
        penstock.ingest(tmp_path, "memory://")
    with pytest.raises(NotFoundError, match=r"no files in .*a\.png that can be read \(1 empty\)"):
        penstock.ingest(tmp_path / "a.png", "memory://")


def test_a_folder_of_several_kinds_lists_them_and_says_how_to_choose(tmp_path: Path) -> None:
    """As LeRobot lays out a dataset, with tables and videos."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = tmp_path / "robot"
    write(folder, {"meta/info.json": b"{}", "videos/top/file-000.mp4": b"video", "extra/labels.csv": b"a\n1\n"})
    (folder / "data").mkdir()
    pq.write_table(pa.table({"step": [0, 1]}), folder / "data" / "file-000.parquet")
    with pytest.raises(InvalidInputError) as raised:
        penstock.ingest(folder, tmp_path / "table")
    message = str(raised.value)
    assert "holds files of several kinds: 1 parquet, 1 csv, 2 of no known kind (1 .json, 1 .mp4)" in message
    assert "--as parquet" in message
    assert "or ingest one of its folders: data (parquet), extra (csv)" in message
    assert penstock.ingest(folder / "data", tmp_path / "table").rows == 2
    chosen = penstock.ingest(folder, tmp_path / "chosen", kind="parquet")
    assert (chosen.rows, chosen.files.taken, chosen.files.ignored) == (2, 1, 3)


def test_zip_files_are_not_read(tmp_path: Path) -> None:
    write(tmp_path, {"photos.zip": b"PK"})
    with pytest.raises(InvalidInputError, match=r"names end in \.zip\); unpack the \.zip files first"):
        penstock.ingest(tmp_path, "memory://")


def test_compressed_labels_next_to_images_are_read(tmp_path: Path) -> None:
    lines = b'{"file_name": "a.png", "caption": "one"}\n{"file_name": "b.png", "caption": "two"}\n'
    folder = write(tmp_path / "in", {"a.png": IMAGE, "b.png": IMAGE, "captions.jsonl.gz": gzip.compress(lines)})
    result = penstock.ingest(folder, tmp_path / "table")
    assert result.files == FileCounts(taken=3)
    assert penstock.load(tmp_path / "table")["caption"][:] == ["one", "two"]
    write(folder, {"captions.jsonl.gz": b"no gzip"})
    with pytest.raises(InvalidInputError, match=r"captions\.jsonl\.gz, next to the images, cannot be parsed"):
        penstock.ingest(folder, tmp_path / "other")
