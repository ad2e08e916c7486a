"""Behaviour specific to folders."""

import errno
import gc
import importlib
import multiprocessing
import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import penstock
from penstock.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    CommitStateUnknownError,
    CorruptError,
    NotFoundError,
    SourceChangedError,
    StorageError,
)
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
    assert bytes(store.get("log/1")) == b"1"
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
    assert bytes(store.get("log/branch/1")) == b"2"


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
    with pytest.raises(StorageError, match=r"stopped responding while .*/refs/tags/first/"):
        ds.tags.delete("first")


_MANY_FILES = """
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
import numpy as np
import penstock
from penstock import Column, Tensor

class Cycle:
    pass

SIZE = 200_000  # large enough to be mapped
column = Column(Tensor("uint8", (SIZE,)), page_bytes=SIZE, file_bytes=SIZE)
for name in "ab":
    ds = penstock.create(f"{sys.argv[1]}/{name}", {"x": column})
    ds.append({"x": np.full((160, SIZE), 7, np.uint8)})
    ds.commit()
for _ in range(3):
    for name in "ab":
        ds = penstock.load(f"{sys.argv[1]}/{name}")
        cycle = Cycle()
        cycle.ds, cycle.cycle = ds, cycle  # only the garbage collector frees it
        assert ds["x"][:].sum() == 7 * 160 * SIZE
        with ds.pytorch(batch_size=16, num_workers=2) as loader:
            assert sum(len(batch["x"]) for batch in loader) == 160
            used = [os.open("/dev/null", os.O_RDONLY) for _ in range(150)]  # by the rest of the process
            assert sum(len(batch["x"]) for batch in loader) == 160
        [os.close(fd) for fd in used]
        assert sum(len(row["x"]) for row in ds[::40]) == 4 * SIZE
        assert len([ds.pytorch()[i] for i in range(0, 160, 7)]) == 23
"""


def test_tables_of_more_files_than_a_process_may_open_are_read(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", _MANY_FILES, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def _open_below(folder: Path) -> int:
    targets = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if fd.isdigit() and os.path.islink(f"/proc/self/fd/{fd}")
    ]
    return sum(target.startswith(f"{folder}/") for target in targets)


def test_open_files_are_closed_by_close_and_with_the_last_reference(tmp_path: Path) -> None:
    importlib.import_module("torch")  # before: it leaves reference cycles with the frames of its importer
    ds = penstock.create(tmp_path, {"x": "int64"})
    for number in range(3):
        ds.append({"x": [number]})
    ds.commit()
    gc.disable()  # by reference, not by the garbage collector
    try:
        store = FolderStore(tmp_path)
        other = penstock.load(tmp_path)
        samples = penstock.load(store).pytorch()
        assert [int(samples[i]["x"]) for i in range(3)] == [0, 1, 2]
        before = _open_below(tmp_path)
        assert before == 3
        other_samples = other.pytorch()
        assert int(other_samples[0]["x"]) == 0
        assert _open_below(tmp_path) == before + 1
        store.close()
        assert _open_below(tmp_path) == 1
        assert int(penstock.load(store)["x"][1]) == 1
        assert int(penstock.load(store).pytorch()[1]["x"]) == 1
        assert _open_below(tmp_path) == 2
        del other, other_samples
        assert _open_below(tmp_path) == 1
        del samples, store
        assert _open_below(tmp_path) == 0
    finally:
        gc.enable()


def test_a_mapped_file_that_was_truncated_is_corrupt(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("k", bytes(1 << 20))
    whole = [ByteRange(0, 1 << 20)]
    assert sum(map(len, store.get_parts("k", whole))) == 1 << 20
    os.truncate(tmp_path / "k", 1 << 19)
    with pytest.raises(CorruptError, match=r"/k is 524288 bytes long.*it was truncated or replaced: restore it"):
        list(store.get_parts("k", whole))


def test_a_map_outlives_its_file_and_store(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.put("k", bytes(range(256)) * 4096)
    [view] = store.get_parts("k", [ByteRange(5000, 1 << 20)])
    store.delete(["k"])
    del store
    assert bytes(view) == (bytes(range(256)) * 4096)[5000:]
    with pytest.raises(TypeError, match="read-only"):
        view[0] = 1
