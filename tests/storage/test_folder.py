"""Behaviour specific to folders."""

import errno
import multiprocessing
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    CommitStateUnknownError,
    NotFoundError,
    StorageError,
)
from penstock.storage import FolderStore, open_store


def _claim(root: str, worker: int, keys: int) -> list[int]:
    store, won = open_store(root), []
    for index in range(keys):
        try:
            store.create(f"log/{index:04}", f"{worker} {index}".encode())
            won.append(index)
        except AlreadyExistsError:
            pass
    return won


def test_racing_processes_create_each_key_once(tmp_path: Path) -> None:
    keys, workers = 60, 4
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        won = pool.starmap(_claim, [(str(tmp_path), worker, keys) for worker in range(workers)])
    assert sorted(index for indices in won for index in indices) == list(range(keys))
    store = open_store(tmp_path)
    for worker, indices in enumerate(won):
        for index in indices:
            assert store.get(f"log/{index:04}") == f"{worker} {index}".encode()


def test_killed_writer_leaves_no_visible_object(tmp_path: Path) -> None:
    script = f"""
import os, signal
from penstock.storage import open_store
def chunks():
    yield b"half"
    os.kill(os.getpid(), signal.SIGKILL)
open_store({str(tmp_path)!r}).put_stream("a/k", chunks())
"""
    assert subprocess.run([sys.executable, "-c", script]).returncode == -9
    assert len(list(tmp_path.rglob(".tmp-*"))) == 1
    store = open_store(tmp_path)
    assert list(store.list()) == []
    with pytest.raises(NotFoundError):
        store.get("a/k")
    store.create("a/k", b"whole")
    assert [info.key for info in store.list()] == ["a/k"]


def test_temporary_files_are_removed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("k", b"1")
    store.create("c", b"2")
    with pytest.raises(AlreadyExistsError):
        store.create("c", b"3")
    assert sorted(os.listdir(tmp_path)) == ["c", "k"]


def test_folder_is_not_an_object(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("a/b", b"")
    with pytest.raises(StorageError, match="folder"):
        store.create("a", b"")
    with pytest.raises(StorageError, match="cannot put"):
        store.put("a", b"")
    with pytest.raises(StorageError, match="cannot create"):
        store.create("a/b/c", b"")
    store.delete(["a"])
    assert [info.key for info in store.list()] == ["a/b"]


def test_symlinks_to_folders_are_not_followed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "root")
    store.put("a/b", b"x")
    (tmp_path / "root/a/loop").symlink_to(tmp_path / "root")
    assert [info.key for info in store.list()] == ["a/b"]


def test_files_obey_the_umask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        FolderStore(tmp_path).put("k", b"")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "k").stat().st_mode) == 0o640


def test_permission_errors_are_access_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")  # simulated: root has access

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(AccessDeniedError, match="cannot read"):
        FolderStore(tmp_path).get("k")
    with pytest.raises(AccessDeniedError, match="cannot put"):
        FolderStore(tmp_path).put("k", b"")


def test_file_system_without_hard_links_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StorageError, match="no hard links"):
        FolderStore(tmp_path).create("k", b"")
    assert os.listdir(tmp_path) == []


class _BrokenDisk(FolderStore):
    """A folder on a file system that cannot sync the folders of these names."""

    def __init__(self, root: Path, *broken: str) -> None:
        super().__init__(root)
        self.broken = set(broken)
        self.synced: list[str] = []

    def _fsync(self, fd: int) -> None:  # type: ignore[override]
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if path.is_dir():
            if path.name in self.broken:
                raise OSError(errno.EIO, "Input/output error")
            self.synced.append(path.name)


@pytest.mark.parametrize("write", ["create", "put"])
def test_an_object_whose_folder_cannot_be_synced_is_an_error_until_it_is(tmp_path: Path, write: str) -> None:
    store = _BrokenDisk(tmp_path, "log")
    (tmp_path / "log").mkdir()
    with pytest.raises(StorageError, match=f"cannot {write} .*/log/1: Input/output error"):
        getattr(store, write)("log/1", b"1")
    assert (tmp_path / "log" / "1").read_bytes() == b"1", "it exists, but may not survive a crash"
    for read in (store.get, store.head):
        with pytest.raises(StorageError, match="Input/output error"):
            read("log/1")
    store.broken.clear()
    assert store.get("log/1") == b"1"
    assert store.synced[-1] == "log"


def test_a_folder_whose_entry_could_not_be_synced_is_synced_by_the_next_write(tmp_path: Path) -> None:
    store = _BrokenDisk(tmp_path / "table", "log")
    with pytest.raises(StorageError, match="Input/output error"):
        store.create("log/branch/1", b"1")
    assert list(FolderStore(tmp_path / "table").list()) == []
    store.broken.clear()
    store.synced.clear()
    store.create("log/branch/1", b"1")
    assert store.synced == ["log", "branch"]


def test_folders_that_another_process_created_are_synced_once(tmp_path: Path) -> None:
    (tmp_path / "table/log/branch").mkdir(parents=True)
    store = _BrokenDisk(tmp_path / "table")
    store.create("log/branch/1", b"1")
    store.create("log/branch/2", b"2")
    assert store.synced == ["table", "log", "branch", "branch"]


def test_a_table_that_was_removed_can_be_written_again(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "table")
    store.create("log/branch/1", b"1")
    shutil.rmtree(tmp_path / "table")
    store.create("log/branch/1", b"2")
    assert store.get("log/branch/1") == b"2"


def test_a_commit_in_a_folder_that_cannot_be_synced_is_unknown_until_it_can(tmp_path: Path) -> None:
    ds = penstock.create(tmp_path / "table", {"x": "int64"})
    [branch] = os.listdir(tmp_path / "table/log")
    store = _BrokenDisk(tmp_path / "table", branch)
    ds = penstock.load(store)
    ds.append({"x": [1]})
    with pytest.raises(CommitStateUnknownError):
        ds.commit()
    store.broken.clear()
    assert ds.commit() == "main@1"
    assert len(penstock.load(tmp_path / "table")) == 1


def test_a_tag_in_a_folder_that_cannot_be_synced_is_an_error(tmp_path: Path) -> None:
    penstock.create(tmp_path / "table", {"x": "int64"}).tags.create("first")
    [folder] = (tmp_path / "table/refs/tags").iterdir()
    ds = penstock.load(_BrokenDisk(tmp_path / "table", folder.name))
    with pytest.raises(StorageError, match="Input/output error"):
        ds.tags.delete("first")
