"""Behaviour specific to folders."""

import multiprocessing
import os
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import AccessDeniedError, AlreadyExistsError, NotFoundError, SourceChangedError, StorageError
from penstock.storage import FolderStore, open_store
from penstock.types import ByteRange


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


class RewrittenDuringRead(FolderStore):
    """A folder in which another process rewrites a file in place after a reader has opened it."""

    rewrite: Callable[[Path], object] | None = None

    def _open(self, key: str) -> tuple[int, os.stat_result]:
        opened = super()._open(key)
        if self.rewrite is not None:
            rewrite, self.rewrite = self.rewrite, None
            rewrite(self._root / key)
        return opened


@pytest.mark.parametrize("byte_range", [None, ByteRange(2, 6)])
@pytest.mark.parametrize("rewrite", [lambda path: path.write_bytes(b"new data"), lambda path: os.truncate(path, 3)])
def test_a_file_rewritten_during_a_read_has_changed(
    tmp_path: Path, rewrite: Callable[[Path], object], byte_range: ByteRange | None
) -> None:
    store = RewrittenDuringRead(tmp_path)
    store.put("k", b"old data")
    listed = store.head("k")
    store.rewrite = rewrite
    with pytest.raises(SourceChangedError, match="k no longer has etag"):
        store.get("k", byte_range=byte_range, etag=listed.etag)


def test_a_file_is_not_read_within_the_clock_tick_of_its_last_write(tmp_path: Path) -> None:
    """Many kernels stamp writes with a clock that ticks every 10 ms: a second write in a tick leaves no trace."""
    store, path = FolderStore(tmp_path), tmp_path / "k"

    def write(data: bytes, tick_s: float) -> None:
        path.write_bytes(data)
        os.utime(path, (tick_s, tick_s))

    write(b"old data", tick_s := time.time())
    etag = store.head("k").etag
    first = bytes(store.get("k", byte_range=ByteRange(0, 4), etag=etag))
    if time.time() - tick_s < 0.01:
        write(b"new_____", tick_s)
    second = bytes(store.get("k", byte_range=ByteRange(4, 8), etag=etag))
    assert first + second in (b"old data", b"new_____")
