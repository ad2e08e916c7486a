"""A process that was forked after I/O reads through a sidecar."""

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

import pytest

from penstock.errors import (
    CorruptError,
    InvalidInputError,
    NotFoundError,
    SourceChangedError,
    StorageError,
    StorageTimeoutError,
)
from penstock.storage import ObjectStore, RetryPolicy, Store, _sidecar, open_store, thread_map
from penstock.types import ByteRange
from tests.servers import moto_port, new_location, s3_options
from tests.storage.proxy import FaultProxy

T = TypeVar("T")

FORK = multiprocessing.get_context("fork")
BODY = bytes(range(256)) * 4000
POLICY = RetryPolicy(deadline_s=240, attempt_timeout_s=60, initial_backoff_s=0.01, max_backoff_s=0.05)
ENDLESS = RetryPolicy(deadline_s=600, attempt_timeout_s=600)

# Python 3.12 and later warn about a fork of a multi-threaded process.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@contextmanager
def forked(act: Callable[[Connection], object]) -> Iterator[tuple[int, Connection]]:
    """Run `act` with one end of a pipe in a forked child, daemonic as the workers of a DataLoader are."""
    parent_end, child_end = FORK.Pipe()
    process = FORK.Process(target=_report, args=(act, child_end), daemon=True)
    process.start()
    child_end.close()
    try:
        assert process.pid is not None
        yield process.pid, parent_end
    finally:
        process.join(60)
        process.kill()
        process.join()
        parent_end.close()


def _report(act: Callable[[Connection], object], pipe: Connection) -> None:
    try:
        pipe.send(act(pipe))
    except BaseException:
        pipe.send(AssertionError(traceback.format_exc()))


def receive(pipe: Connection, within_s: float = 240) -> Any:
    assert pipe.poll(within_s), "the child hangs"
    result = pipe.recv()
    if isinstance(result, AssertionError):
        raise result
    return result


def in_fork(act: Callable[[], T]) -> T:
    with forked(lambda _: act()) as (_, pipe):
        result: T = receive(pipe)
        return result


def sidecar_pid() -> int:
    assert _sidecar._sidecar is not None
    return _sidecar._sidecar._process.pid


def is_gone(pid: int) -> bool:
    """Whether a process is gone within some seconds, without leaving a zombie."""
    return _eventually(lambda: not _exists(pid))


def has_ended(pid: int) -> bool:
    """Whether a process ends within some seconds; its parent may still have to reap it."""
    stat = Path(f"/proc/{pid}/stat")
    return _eventually(lambda: not _exists(pid) or (stat.exists() and ") Z " in stat.read_text()))


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 60
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def store() -> Store:
    """A store that this process has used, so that forked children cannot."""
    store = new_location("s3").open(POLICY)
    store.put("a/k", BODY)
    store.put("b", b"")
    assert store.get("a/k") == BODY
    return store


def all_reads(store: Store) -> list[object]:
    """The results and errors of every kind of read."""

    def outcome(read: Callable[[], object]) -> object:
        try:
            return read()
        except Exception as error:
            return type(error), str(error)

    return [
        outcome(lambda: bytes(store.get("a/k"))),
        outcome(lambda: bytes(store.get("b"))),
        outcome(lambda: bytes(store.get("a/k", byte_range=ByteRange(3, 70_000)))),
        outcome(lambda: bytes(store.get("a/k", byte_range=ByteRange(3, 3)))),
        outcome(lambda: bytes(store.get("a/k", etag=store.head("a/k").etag))),
        outcome(lambda: [bytes(part) for part in store.get_parts("a/k", [ByteRange(1, 9), ByteRange(9, 20)])]),
        outcome(lambda: store.head("a/k")),
        outcome(lambda: list(store.list())),
        outcome(lambda: list(store.list("a"))),
        outcome(lambda: list(store.list("nothing"))),
        outcome(lambda: store.get("missing")),
        outcome(lambda: store.head("missing")),
        outcome(lambda: store.get("../x")),
        outcome(lambda: store.get("a/k", etag='"other"')),
        outcome(lambda: store.get("a/k", byte_range=ByteRange(0, len(BODY) + 1))),
    ]


def test_forked_child_reads_what_its_parent_reads(store: Store) -> None:
    expected = all_reads(store)
    kinds = {item[0] for item in expected if type(item) is tuple}
    assert kinds == {NotFoundError, InvalidInputError, SourceChangedError, CorruptError}
    assert in_fork(lambda: thread_map(lambda _: all_reads(store), range(8), max_workers=8)) == [expected] * 8


def test_result_is_a_read_only_view(store: Store) -> None:
    def act() -> bool:
        view = store.get("a/k")
        assert isinstance(view, memoryview)
        return view.readonly

    assert in_fork(act)


def test_store_opened_in_the_child_shares_the_sidecar(store: Store) -> None:
    def act() -> int:
        reopened = pickle.loads(pickle.dumps(store))
        assert reopened.get("a/k") == BODY
        first = sidecar_pid()
        assert store.get("a/k") == BODY
        assert sidecar_pid() == first
        wrong = open_store("s3://bucket", options={"nonsense": "1"})
        with pytest.raises(InvalidInputError, match="nonsense"):
            wrong.get("a/k")
        return first

    assert in_fork(act) != os.getpid()


def test_forked_child_cannot_write(store: Store) -> None:
    def act() -> None:
        for write in (store.put, store.create):
            with pytest.raises(InvalidInputError, match=r"can read, but not write.*spawn"):
                write("new", b"x")
        with pytest.raises(InvalidInputError, match="spawn"):
            store.put_stream("new", [b"x"])
        with pytest.raises(InvalidInputError, match="spawn"):
            store.delete(["b"])

    in_fork(act)
    assert [info.key for info in store.list()] == ["a/k", "b"]


def test_clients_of_the_parent_are_never_freed(store: Store) -> None:
    assert isinstance(store, ObjectStore)
    clients = store._clients
    references = sys.getrefcount(clients)
    assert in_fork(lambda: (len(store._clients), sys.getrefcount(clients))) == (0, references)


def test_long_listings_run_concurrently_and_may_be_dropped() -> None:
    store = new_location("gs").open(POLICY)
    keys = [f"{index:04}" for index in range(1050)]
    thread_map(lambda key: store.put(key, b""), keys, max_workers=4)
    started = store.list()
    next(started)

    def act() -> None:
        for _ in range(3):
            dropped = store.list()
            assert next(dropped).key == keys[0]
        both = list(zip(store.list(), store.list("1"), strict=False))
        assert [first.key for first, _ in both] == keys[:50]
        assert [second.key for _, second in both] == keys[1000:]
        assert [info.key for info in store.list()] == keys
        with pytest.raises(InvalidInputError, match="continue a listing"):
            list(started)

    in_fork(act)


def test_sidecar_retries_and_reports_the_count() -> None:
    with FaultProxy(moto_port(), ["pass", "503", "503", "pass"]) as proxy:
        location = new_location("s3")
        store = open_store(location.uri, options=s3_options(proxy.endpoint), retry=POLICY)
        store.put("k", BODY)

        def act() -> int:
            assert store.get("k") == BODY
            return store.retries

        assert (in_fork(act), store.retries) == (2, 0)


def test_fork_of_a_fork_starts_its_own_sidecar(store: Store) -> None:
    def act() -> None:
        stopping = threading.Event()

        def read_on() -> None:  # so that locks are held when the process is forked
            while not stopping.is_set():
                assert store.get("a/k") == BODY

        readers = [threading.Thread(target=read_on) for _ in range(4)]
        for reader in readers:
            reader.start()
        store.get("b")
        mine = sidecar_pid()
        for _ in range(4):
            if (child := os.fork()) == 0:
                signal.alarm(240)
                os._exit(0 if store.get("a/k") == BODY and sidecar_pid() != mine else 1)
            assert os.waitpid(child, 0)[1] == 0
        stopping.set()
        for reader in readers:
            reader.join()
        assert sidecar_pid() == mine

    in_fork(act)


def test_waiting_callers_fail_at_once_when_the_sidecar_ends(store: Store) -> None:
    with FaultProxy(moto_port(), ["hang"]) as proxy:
        hanging = open_store(store.uri, options=s3_options(proxy.endpoint), retry=ENDLESS)

        def act(pipe: Connection) -> None:
            store.get("b")
            first = sidecar_pid()
            pipe.send(first)

            def wait(_: int) -> None:
                with pytest.raises(StorageError, match=r"cannot get .*/b: the sidecar .* has ended \(status -9\)"):
                    hanging.get("b")

            thread_map(wait, range(4), max_workers=4)
            assert store.get("a/k") == BODY
            assert sidecar_pid() != first
            assert is_gone(first)

        with forked(act) as (_, pipe):
            first = receive(pipe)
            assert _eventually(lambda: len(proxy.actions) == 4)
            os.kill(first, signal.SIGKILL)
            receive(pipe, within_s=60)


def test_read_after_the_sidecar_ended_fails_at_most_once(store: Store) -> None:
    def act() -> None:
        store.get("b")
        for _ in range(3):
            os.kill(sidecar_pid(), signal.SIGKILL)
            with suppress(StorageError):
                store.get("b")
            assert store.get("a/k") == BODY

    in_fork(act)


def test_stuck_sidecar_is_replaced(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sidecar, "_GRACE_S", 0.5)
    hasty = new_location("s3").open(RetryPolicy(deadline_s=0.5, attempt_timeout_s=0.5))

    def act() -> None:
        store.get("b")
        os.kill(sidecar_pid(), signal.SIGSTOP)
        with pytest.raises(StorageTimeoutError, match="does not respond"):
            hasty.get("b")
        assert store.get("a/k") == BODY

    in_fork(act)


def test_sidecar_that_cannot_start_is_a_storage_error(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def act() -> None:
        monkeypatch.setattr("sys.executable", "/nowhere/python")
        with pytest.raises(StorageError, match=r"cannot start the sidecar process.*/nowhere/python"):
            store.get("b")
        monkeypatch.setattr("sys.executable", "/bin/false")
        with pytest.raises(StorageError, match=r"has ended \(status"):
            store.get("b")

    in_fork(act)


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_sidecar_is_reaped_at_exit(store: Store) -> None:
    def act() -> int:
        store.get("b")
        return sidecar_pid()

    set_child_subreaper = ctypes.CDLL(None).prctl
    set_child_subreaper(36, 1, 0, 0, 0)  # this process adopts zombies, and reaps none
    try:
        assert is_gone(in_fork(act))
    finally:
        set_child_subreaper(36, 0, 0, 0, 0)


def test_sidecar_ends_with_a_killed_process_even_if_its_fork_lives_on(store: Store) -> None:
    def act(pipe: Connection) -> None:
        store.get("b")
        if (child := os.fork()) == 0:
            signal.alarm(240)
            signal.pause()
        pipe.send((sidecar_pid(), child))
        signal.pause()

    with forked(act) as (child, pipe):
        sidecar, grandchild = receive(pipe)
        os.kill(child, signal.SIGKILL)
        try:
            assert has_ended(sidecar)
            os.kill(grandchild, 0)
        finally:
            os.kill(grandchild, signal.SIGKILL)


def test_ctrl_c_interrupts_the_process_and_not_the_sidecar(store: Store) -> None:
    with FaultProxy(moto_port(), ["hang"]) as proxy:
        hanging = open_store(store.uri, options=s3_options(proxy.endpoint), retry=ENDLESS)

        def act(pipe: Connection) -> None:
            store.get("b")
            first = sidecar_pid()
            os.kill(first, signal.SIGINT)
            assert os.getpgid(first) != os.getpgrp()
            pipe.send("ready")
            with pytest.raises(KeyboardInterrupt):
                hanging.get("b")
            assert store.get("a/k") == BODY
            assert sidecar_pid() == first

        with forked(act) as (child, pipe):
            assert receive(pipe) == "ready"
            assert _eventually(lambda: len(proxy.actions) == 1)
            os.kill(child, signal.SIGINT)
            receive(pipe, within_s=60)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
def test_sidecar_inherits_no_files_and_hides_secrets(store: Store, tmp_path: Path) -> None:
    with open(tmp_path / "open", "wb") as file:
        os.set_inheritable(file.fileno(), True)

        def act() -> tuple[list[str], bytes]:
            store.get("b")
            process = Path(f"/proc/{sidecar_pid()}")
            links = [os.readlink(link) for link in (process / "fd").iterdir()]
            return links, (process / "cmdline").read_bytes()

        links, command = in_fork(act)
    assert str(tmp_path / "open") not in links
    assert links.count("/dev/null") == 2
    assert b"secret" not in command
