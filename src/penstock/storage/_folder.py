"""A store in a folder of a local or network file system."""

import errno
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path

from penstock.storage import _errors
from penstock.storage._buffers import MAX_BUFFERS, byte_view, new_buffer
from penstock.storage._keys import TEMPORARY_PREFIX, check_key, object_uri
from penstock.storage._local_files import OpenFiles, close_oldest_file, map_file, on_local_filesystem
from penstock.storage._store import ObjectInfo, Store
from penstock.types import Buffer, ByteRange

_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}
_MIN_MMAP_BYTES = 128 << 10
_MAX_READ_BYTES = 1 << 30  # the kernel reads at most 2 GiB per call
_MAX_TICK_S = 0.02
_Publish = Callable[[Path, Path, str], None]
_ABSENT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)


class FolderStore(Store):
    """Objects as files: published whole by `link` or `rename`, and synced with their folders before a call returns.

    Where a folder cannot be synced, the write fails, and its objects cannot be read back until the folder is synced:
    so no caller takes an object that it finds for one that is durable.
    """

    _fsync = staticmethod(os.fsync)

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = Path(os.path.abspath(root))
        self.uri = str(self._root)
        self.is_local = on_local_filesystem(self._root)
        self._open_files = OpenFiles()
        self._synced_folders: set[Path] = set()
        """Folders whose own entries are known to be durable."""
        self._unsynced_folders: set[Path] = set()
        """Folders with entries that may not be durable."""

    def __reduce__(self) -> tuple[object, ...]:
        return FolderStore, (self.uri,)

    def get(self, key: str, *, byte_range: ByteRange | None = None, etag: str | None = None) -> memoryview:
        """Read the file, or a range of it, into a new buffer."""
        uri = object_uri(self.uri, key)
        with self._reading(key) as (fd, status):
            if etag is not None:
                _check_unchanged(status, etag, uri)
                _wait_for_next_tick(status)
            requested = byte_range or ByteRange(0, status.st_size)
            _errors.check_bounds(uri, requested, status.st_size)
            view = new_buffer(requested.length)
            try:
                _read_range(fd, requested, view, uri)
            finally:  # a file that was cut short meanwhile has changed, and is not corrupt
                if etag is not None:
                    _check_unchanged(os.fstat(fd), etag, uri)
            return view.toreadonly()

    def get_parts(self, key: str, parts: Sequence[ByteRange]) -> Iterator[memoryview]:
        """Yield views of a memory map on a local file system, else copies.

        A map saves the copy, which costs more than verifying checksums. Files of a store never change, but on a network
        file system one can disappear while it is mapped, which would kill the process with SIGBUS.
        """
        uri = object_uri(self.uri, key)
        file = self._open_files.get(key, self._open)
        _errors.check_bounds(uri, parts[-1], file.size)
        with _translated("read", uri):
            if self.is_local and parts[-1].end - parts[0].start >= _MIN_MMAP_BYTES:
                _errors.check_bounds(uri, parts[-1], os.fstat(file.fd).st_size)  # it may have been truncated since
                start = parts[0].start
                whole = map_file(file.fd, start, parts[-1].end)
                yield from (whole[part.start - start : part.end - start] for part in parts)
                return
            for part in parts:
                view = new_buffer(part.length)
                _read_range(file.fd, part, view, uri)
                yield view.toreadonly()

    def read_into(self, key: str, start: int, buffers: Sequence[memoryview]) -> None:
        """Read the file directly into the buffers, with vectored reads."""
        uri = object_uri(self.uri, key)
        file = self._open_files.get(key, self._open)
        _errors.check_bounds(uri, ByteRange(start, start + sum(map(len, buffers))), file.size)
        with _translated("read", uri):
            for first in range(0, len(buffers), MAX_BUFFERS):
                start = _scatter(file.fd, start, buffers[first : first + MAX_BUFFERS], uri)

    def read_scattered(self, parts: Sequence[tuple[str, int, memoryview]]) -> None:
        """Read the ranges one by one; each costs little more than the system call."""
        if not hasattr(os, "preadv"):
            super().read_scattered(parts)
            return
        for key, start, buffer in parts:
            file = self._open_files.get(key, self._open)
            try:
                count = os.preadv(file.fd, (buffer,), start)
            except OSError:
                count = -1
            if count != len(buffer):
                self.read_into(key, start, [buffer])  # completes a short read, or raises the error

    def head(self, key: str) -> ObjectInfo:
        """Return a file's metadata."""
        with self._reading(key) as (_, status):
            return _info(key, status)

    def put(self, key: str, data: Buffer) -> None:
        """Write a temporary file beside the target, then rename it over the target."""
        self._write("put", key, [data], _replace)

    def create(self, key: str, data: Buffer) -> None:
        """Write a temporary file, then link it to its name, which fails if the name exists."""
        self._write("create", key, [data], _link)

    def put_stream(self, key: str, chunks: Iterable[Buffer]) -> None:
        """Write a temporary file chunk by chunk, then rename it over the target."""
        self._write("put", key, chunks, _replace)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """Walk the files in key order; links to folders are not followed."""
        folder, _, _ = prefix.rpartition("/")
        if folder:
            check_key(folder)
        with _translated("list", object_uri(self.uri, prefix)):
            yield from self._walk(f"{folder}/" if folder else "", prefix)

    def delete(self, keys: Sequence[str]) -> None:
        """Remove the files; folders stay, because removing an empty one races with its next writer."""
        for key in keys:
            check_key(key)
        for key in keys:
            with _translated("delete", object_uri(self.uri, key)), suppress(*_ABSENT):
                os.unlink(self._root / key)

    def close(self) -> None:
        """Close the files that are open for reading."""
        self._open_files.close()

    def _open(self, key: str) -> tuple[int, os.stat_result]:
        """Open a file; returns its descriptor, which the caller must close, and its status."""
        check_key(key)
        uri = object_uri(self.uri, key)
        with _translated("read", uri):
            if self._unsynced_folders and (folder := (self._root / key).parent) in self._unsynced_folders:
                self._sync_folder(folder)  # a writer reads back what it may have created, and must not trust it before
            try:
                fd = _open_file(f"{self.uri}/{key}", os.O_RDONLY)
            except _ABSENT as error:
                raise _errors.not_found(uri) from error
            try:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    raise _errors.not_found(uri)
            except BaseException:
                os.close(fd)
                raise
            return fd, status

    @contextmanager
    def _reading(self, key: str) -> Iterator[tuple[int, os.stat_result]]:
        fd, status = self._open(key)
        try:
            with _translated("read", object_uri(self.uri, key)):
                yield fd, status
        finally:
            os.close(fd)

    def _write(self, verb: str, key: str, chunks: Iterable[Buffer], publish: _Publish) -> None:
        check_key(key)
        target = self._root / key
        uri = object_uri(self.uri, key)
        temporary = target.with_name(TEMPORARY_PREFIX + secrets.token_hex(8))
        with _translated(verb, uri):
            fd = self._open_new(temporary)
        try:
            for chunk in chunks:
                with _translated(verb, uri):
                    _write_all(fd, chunk)
            with _translated(verb, uri):
                self._fsync(fd)
                publish(temporary, target, uri)
                self._sync_folder(target.parent)
        finally:
            os.close(fd)
            with suppress(OSError):
                os.unlink(temporary)

    def _open_new(self, path: Path) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        self._make_folder(path.parent)
        try:
            return _open_file(path, flags)
        except FileNotFoundError:  # the folder was removed since
            self._synced_folders.clear()
            self._make_folder(path.parent)
            return _open_file(path, flags)

    def _make_folder(self, folder: Path) -> None:
        """Create a folder and its parents, synced to disk; inside the root also those that another process created."""
        inside = folder.is_relative_to(self._root) and folder != self._root
        if folder in self._synced_folders or (not inside and folder.is_dir()):
            return
        self._make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        try:
            self._sync_folder(folder.parent)
        except OSError:
            with suppress(OSError):
                folder.rmdir()  # so that a later attempt syncs it
            raise
        self._synced_folders.add(folder)

    def _sync_folder(self, folder: Path) -> None:
        self._unsynced_folders.add(folder)
        fd = _open_file(folder, os.O_RDONLY)
        try:
            self._fsync(fd)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems cannot sync a folder
                raise
        finally:
            os.close(fd)
        self._unsynced_folders.discard(folder)

    def _walk(self, folder: str, prefix: str) -> Iterator[ObjectInfo]:
        try:
            with os.scandir(self._root / folder) as entries:
                found = sorted((entry.name + "/" * entry.is_dir(follow_symlinks=False), entry) for entry in entries)
        except _ABSENT:
            return
        for name, entry in found:
            key = folder + name
            if name.startswith(TEMPORARY_PREFIX) or not (key.startswith(prefix) or prefix.startswith(key)):
                continue
            if name.endswith("/"):
                yield from self._walk(key, prefix)
            elif key.startswith(prefix):
                with suppress(FileNotFoundError):
                    if not leads_nowhere(entry) and entry.is_file():
                        yield _info(key, entry.stat())


def leads_nowhere(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a link to itself."""
    try:
        entry.is_file()
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        return True
    return False


def _open_file(path: str | Path, flags: int) -> int:
    while True:
        try:
            return os.open(path, flags, 0o666)
        except OSError as error:  # the rest of the process may use many descriptors
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not close_oldest_file():
                raise


def _read_at(fd: int, view: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(fd, [view], offset)
    os.lseek(fd, offset, os.SEEK_SET)  # no other thread uses this descriptor
    return FileIO(fd, closefd=False).readinto(view)


def _read_range(fd: int, byte_range: ByteRange, view: memoryview, uri: str) -> None:
    done = 0
    while done < byte_range.length:
        count = _read_at(fd, view[done : done + _MAX_READ_BYTES], byte_range.start + done)
        if count == 0:
            _errors.check_bounds(uri, byte_range, byte_range.start + done)
        done += count


def _scatter(fd: int, start: int, buffers: Sequence[memoryview], uri: str) -> int:
    """Fill buffers from offset `start` on; returns the end offset."""
    end = start + sum(map(len, buffers))
    done = os.preadv(fd, buffers, start) if hasattr(os, "preadv") else 0
    for buffer in buffers if start + done < end else ():  # rare: a short read, or no preadv
        inside = min(max(done, 0), len(buffer))
        if inside < len(buffer):
            _read_range(fd, ByteRange(start + inside, start + len(buffer)), buffer[inside:], uri)
        start, done = start + len(buffer), done - len(buffer)
    return end


def _replace(temporary: Path, target: Path, _uri: str) -> None:
    os.replace(temporary, target)


def _link(temporary: Path, target: Path, uri: str) -> None:
    try:
        os.link(temporary, target)
    except FileExistsError as error:
        if os.path.isdir(target):
            raise _errors.failed("create", uri, "a folder has this name") from error
        # NFS can report a link that it made itself: the response was lost and the request retransmitted.
        if os.stat(temporary).st_nlink < 2:
            raise _errors.already_exists(uri) from error
    except OSError as error:
        if error.errno in _NO_LINKS:
            reason = "this file system has no hard links, so it cannot create objects atomically"
            raise _errors.failed("create", uri, reason) from error
        raise


def _write_all(fd: int, chunk: Buffer) -> None:
    view = byte_view(chunk)
    while view:
        view = view[os.write(fd, view) :]


class _translated:  # noqa: N801
    """Raises Penstock's errors for the system's; a class, because a generator costs more on the path of every page."""

    def __init__(self, verb: str, uri: str) -> None:
        self._verb, self._uri = verb, uri

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if not isinstance(error, OSError):
            return
        translate = _errors.failed
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            translate = _errors.access_denied
        elif isinstance(error, TimeoutError):
            translate = _errors.timed_out
        raise translate(self._verb, self._uri, str(error.strerror)) from error


def _check_unchanged(status: os.stat_result, etag: str, uri: str) -> None:
    if etag != _etag(status):
        raise _errors.source_changed(uri, etag)


def _wait_for_next_tick(status: os.stat_result) -> None:
    """Wait until a write to the file would change its modification time, which advances in clock ticks."""
    age_s = time.time() - status.st_mtime
    if 0 <= age_s < _MAX_TICK_S:
        time.sleep(_MAX_TICK_S - age_s)


def _etag(status: os.stat_result) -> str:
    return f'"{status.st_mtime_ns:x}-{status.st_size:x}-{status.st_ino:x}"'


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key=key, size=status.st_size, etag=_etag(status), modified_s=status.st_mtime_ns / 1e9)
