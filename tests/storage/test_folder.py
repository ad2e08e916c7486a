"""What only a folder can get wrong."""

import multiprocessing
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import AccessDenied, AlreadyExistsError, NotFoundError, StorageError
from penstock.storage import FolderStore, open_store


def _claim(root: str, worker: int, keys: int) -> list[int]:
    store, won = open_store(root), []
    for number in range(keys):
        try:
            store.create(f"log/{number:04}", f"{worker} {number}".encode())
            won.append(number)
        except AlreadyExistsError:
            pass
    return won


def test_racing_processes_share_the_keys_out(tmp_path: Path) -> None:
    keys, workers = 60, 4
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        won = pool.starmap(_claim, [(str(tmp_path), worker, keys) for worker in range(workers)])
    assert sorted(number for numbers in won for number in numbers) == list(range(keys))
    store = open_store(tmp_path)
    for worker, numbers in enumerate(won):
        for number in numbers:
            assert store.get(f"log/{number:04}") == f"{worker} {number}".encode()


def test_a_killed_writer_leaves_nothing_to_see(tmp_path: Path) -> None:
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


def test_no_temporary_files_stay(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("k", b"1")
    store.create("c", b"2")
    with pytest.raises(AlreadyExistsError):
        store.create("c", b"3")
    assert sorted(os.listdir(tmp_path)) == ["c", "k"]


def test_a_folder_is_no_object(tmp_path: Path) -> None:
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


def test_links_to_folders_are_not_followed(tmp_path: Path) -> None:
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


def test_refusals_are_access_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")  # by hand: root would be let in

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(AccessDenied, match="cannot read"):
        FolderStore(tmp_path).get("k")
    with pytest.raises(AccessDenied, match="cannot put"):
        FolderStore(tmp_path).put("k", b"")


def test_a_file_system_without_links_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StorageError, match="no hard links"):
        FolderStore(tmp_path).create("k", b"")
    assert os.listdir(tmp_path) == []
