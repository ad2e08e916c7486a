"""Odd names and links: the object is rejected and reported, and the ingest goes on."""

import os
from pathlib import Path

import pytest

import penstock
from penstock.errors import NotFoundError, SampleError, StorageError
from penstock.storage import ObjectInfo, list_source, open_store
from penstock.testing import FakeGcs

ODD = {b"\xff.jsonl": r"\xff.jsonl", b"a\\b.jsonl": r"a\b.jsonl", b"a\nb.jsonl": r"a\nb.jsonl"}


def line(text: str) -> str:
    return f'{{"text": "{text}"}}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    source, outside = tmp_path / "source", tmp_path / "outside"
    (source / "inner").mkdir(parents=True)
    outside.mkdir()
    (source / "0.jsonl").write_text(line("good"))
    (source / "inner" / "1.jsonl").write_text(line("inner"))
    (outside / "2.jsonl").write_text(line("outside"))
    (source / "inside.jsonl").symlink_to(source / "0.jsonl")
    return source


def texts(ds: penstock.Dataset) -> list[str]:
    return sorted(ds["text"][:])


def test_an_odd_name_rejects_only_its_file(folder: Path, tmp_path: Path) -> None:
    for name in ODD:
        with open(os.path.join(os.fsencode(folder), name), "w") as file:
            file.write(line("odd"))
    (folder / "loop.jsonl").symlink_to("loop.jsonl")
    (folder / "broken.jsonl").symlink_to("missing")
    (folder / ".#hidden").symlink_to("missing")
    result = penstock.ingest(folder, tmp_path / "table")
    assert texts(penstock.load(tmp_path / "table")) == ["good", "good", "inner"]
    assert {reject.name: reject.reason.split(";")[0] for reject in result.rejects} == {
        **dict.fromkeys(ODD.values(), "its name has a backslash, a control character, or bytes that are not UTF-8"),
        "loop.jsonl": "is a link that leads to no file",
        "broken.jsonl": "is a link that leads to no file",
    }
    assert penstock.ingest(folder, tmp_path / "table", dry_run=True).rejects == result.rejects
    with pytest.raises(SampleError, match=r"more than 4 rows or files could not be read"):
        penstock.ingest(folder, tmp_path / "other", bad_samples=penstock.BadSamples(limit=4))
    with pytest.raises(SampleError, match=r"nothing was committed"):
        penstock.ingest(folder, tmp_path / "other", bad_samples="raise")


def test_links_out_of_the_source_are_followed_only_with_follow_links(folder: Path, tmp_path: Path) -> None:
    (folder / "file.jsonl").symlink_to(tmp_path / "outside" / "2.jsonl")
    (folder / "linked").symlink_to(tmp_path / "outside")
    (folder / "inner" / "up").symlink_to(folder)
    result = penstock.ingest(folder, tmp_path / "table")
    assert texts(penstock.load(tmp_path / "table")) == ["good", "good", "inner"]
    assert {reject.name: reject.reason.split(";")[0] for reject in result.rejects} == {
        "file.jsonl": "is a link out of the folder",
        "linked": "is a link to a folder",
        "inner/up": "is a link to a folder that contains it",
    }
    result = penstock.ingest(folder, tmp_path / "followed", follow_links=True)
    assert [reject.name for reject in result.rejects] == ["inner/up"]
    assert texts(penstock.load(tmp_path / "followed")) == ["good", "good", "inner", "outside", "outside"]
    (tmp_path / "outside" / "3.jsonl").write_text(line("new"))
    [synced] = penstock.sync(tmp_path / "followed")
    assert synced.rows == 1


def test_a_linked_source_folder_is_a_source(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    assert penstock.ingest(tmp_path / "link", tmp_path / "table").rejects == ()
    assert texts(penstock.load(tmp_path / "table")) == ["good", "good", "inner"]


def test_a_listing_is_in_key_order(folder: Path) -> None:
    for name in ("inner.jsonl", "inner-1", "inner0"):
        (folder / name).write_text("x")
    keys = [item.key for item in list_source(open_store(folder), follow_links=False) if isinstance(item, ObjectInfo)]
    assert keys == sorted(keys)
    assert keys == [item.key for item in open_store(folder).list()]


def test_a_folder_of_unreadable_names_has_no_files(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "loop").symlink_to("loop")
    with pytest.raises(
        NotFoundError, match=r"no files in .* that can be read \(loop is a link that leads to no file\)"
    ):
        penstock.ingest(tmp_path / "source", tmp_path / "table")


def test_an_odd_key_of_a_bucket_rejects_only_its_object(tmp_path: Path) -> None:
    with FakeGcs() as server:
        server.add("data/a\\b.jsonl", line("odd").encode())
        server.add("data/good.jsonl", line("good").encode())
        result = penstock.ingest(f"{server.uri}/data", tmp_path / "table", source_storage_options=server.options)
        assert [reject.name for reject in result.rejects] == ["a\\b.jsonl"]
        assert texts(penstock.load(tmp_path / "table")) == ["good"]
        server.add("data/a//b.jsonl", line("odd").encode())
        with pytest.raises(StorageError, match=r"a name with an empty part.*data/a//b.jsonl.*; rename or remove it"):
            penstock.ingest(f"{server.uri}/data", tmp_path / "table", source_storage_options=server.options)
