"""A process that was forked after I/O reads by a sidecar."""

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

from penstock.errors import CorruptError, InvalidInputError, NotFoundError, SourceChanged, StorageError, StorageTimeout
from penstock.storage import ObjectStore, RetryPolicy, Store, _sidecar, open_store, run_all
from penstock.types import ByteRange
from tests.servers import moto_port, new_place, s3_options
from tests.storage.proxy import FaultProxy

T = TypeVar("T")

FORK = multiprocessing.get_context("fork")
BODY = bytes(range(256)) * 4000
POLICY = RetryPolicy(deadline_s=20, attempt_timeout_s=5, initial_backoff_s=0.01, max_backoff_s=0.05)

# Since 3.12 Python warns of what these tests are about.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@contextmanager
def forked(act: Callable[[Connection], object]) -> Iterator[tuple[int, Connection]]:
    """Run `act` with one end of a pipe in a copy of this process, daemonic as the workers of a DataLoader are."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_report, args=(act, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        assert process.pid is not None
        yield process.pid, ours
    finally:
        process.join(20)
        process.kill()
        process.join()
        ours.close()


def _report(act: Callable[[Connection], object], pipe: Connection) -> None:
    try:
        pipe.send(act(pipe))
    except BaseException:
        pipe.send(AssertionError(traceback.format_exc()))


def hear(pipe: Connection) -> Any:
    assert pipe.poll(60), "the copy hangs"
    answer = pipe.recv()
    if isinstance(answer, AssertionError):
        raise answer
    return answer


def in_fork(act: Callable[[], T]) -> T:
    with forked(lambda _: act()) as (_, pipe):
        answer: T = hear(pipe)
        return answer


def sidecar_pid() -> int:
    assert _sidecar._sidecar is not None
    return _sidecar._sidecar._process.pid


def is_gone(pid: int) -> bool:
    """Say whether nothing is left of a process soon, not even a zombie."""
    return _soon(lambda: not _exists(pid))


def has_ended(pid: int) -> bool:
    """Say whether a process ends soon; its zombie may be left to whoever is to reap it."""
    stat = Path(f"/proc/{pid}/stat")
    return _soon(lambda: not _exists(pid) or (stat.exists() and ") Z " in stat.read_text()))


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _soon(happens: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not happens():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture
def store() -> Store:
    """A store that this process has used, so that its copies cannot."""
    store = new_place("s3").open(POLICY)
    store.put("a/k", BODY)
    store.put("b", b"")
    assert store.get("a/k") == BODY
    return store


def everything(store: Store) -> list[object]:
    """Read in every way there is, whatever comes of it."""

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


def test_a_copy_reads_what_its_parent_reads(store: Store) -> None:
    expected = everything(store)
    kinds = {item[0] for item in expected if type(item) is tuple}
    assert kinds == {NotFoundError, InvalidInputError, SourceChanged, CorruptError}
    assert in_fork(lambda: run_all(lambda _: everything(store), range(8), max_workers=8)) == [expected] * 8


def test_what_is_read_is_a_view_that_nobody_can_change(store: Store) -> None:
    def act() -> bool:
        view = store.get("a/k")
        assert isinstance(view, memoryview)
        return view.readonly

    assert in_fork(act)


def test_a_store_opened_in_the_copy_reads_too(store: Store) -> None:
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


def test_a_copy_does_not_write(store: Store) -> None:
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


def test_clients_of_the_parent_are_never_dropped(store: Store) -> None:
    assert isinstance(store, ObjectStore)
    clients = store._clients
    references = sys.getrefcount(clients)
    assert in_fork(lambda: (len(store._clients), sys.getrefcount(clients))) == (0, references)


def test_long_listings_run_side_by_side_and_may_be_dropped() -> None:
    store = new_place("gs").open(POLICY)
    keys = [f"{number:04}" for number in range(1050)]
    run_all(lambda key: store.put(key, b""), keys, max_workers=4)
    begun = store.list()
    next(begun)

    def act() -> None:
        for _ in range(3):
            dropped = store.list()
            assert next(dropped).key == keys[0]
        both = list(zip(store.list(), store.list("1"), strict=False))
        assert [first.key for first, _ in both] == keys[:50]
        assert [second.key for _, second in both] == keys[1000:]
        assert [info.key for info in store.list()] == keys
        with pytest.raises(InvalidInputError, match="go on with a listing"):
            list(begun)

    in_fork(act)


def test_retries_are_the_sidecars_and_are_counted() -> None:
    with FaultProxy(moto_port(), ["pass", "503", "503", "pass"]) as proxy:
        place = new_place("s3")
        store = open_store(place.uri, options=s3_options(proxy.endpoint), retry=POLICY)
        store.put("k", BODY)

        def act() -> int:
            assert store.get("k") == BODY
            return store.retries

        assert (in_fork(act), store.retries) == (2, 0)


def test_copies_of_copies_have_sidecars_of_their_own(store: Store) -> None:
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
                signal.alarm(30)
                os._exit(0 if store.get("a/k") == BODY and sidecar_pid() != mine else 1)
            assert os.waitpid(child, 0)[1] == 0
        stopping.set()
        for reader in readers:
            reader.join()
        assert sidecar_pid() == mine

    in_fork(act)


def test_whoever_waits_for_a_sidecar_that_ends_is_told_at_once(store: Store) -> None:
    with FaultProxy(moto_port(), ["hang"]) as proxy:
        hanging = open_store(store.uri, options=s3_options(proxy.endpoint))

        def act() -> None:
            store.get("b")
            first = sidecar_pid()
            killer = threading.Timer(0.5, os.kill, [first, signal.SIGKILL])
            killer.start()
            started = time.monotonic()

            def wait(_: int) -> None:
                with pytest.raises(StorageError, match=r"cannot get .*/b: the process .* has ended \(status -9\)"):
                    hanging.get("b")

            run_all(wait, range(4), max_workers=4)
            assert time.monotonic() - started < 5
            assert store.get("a/k") == BODY
            assert sidecar_pid() != first
            assert is_gone(first)

        in_fork(act)


def test_a_read_after_the_sidecar_has_ended_works_or_says_so_once(store: Store) -> None:
    def act() -> None:
        store.get("b")
        for _ in range(3):
            os.kill(sidecar_pid(), signal.SIGKILL)
            with suppress(StorageError):
                store.get("b")
            assert store.get("a/k") == BODY

    in_fork(act)


def test_a_sidecar_that_is_stuck_is_replaced(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_sidecar, "_GRACE_S", 0.5)
    hasty = new_place("s3").open(RetryPolicy(deadline_s=0.5, attempt_timeout_s=0.5))

    def act() -> None:
        store.get("b")
        os.kill(sidecar_pid(), signal.SIGSTOP)
        with pytest.raises(StorageTimeout, match="does not answer"):
            hasty.get("b")
        assert store.get("a/k") == BODY

    in_fork(act)


def test_a_sidecar_that_cannot_start_says_so(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def act() -> None:
        monkeypatch.setattr("sys.executable", "/nowhere/python")
        with pytest.raises(StorageError, match=r"cannot start the process.*/nowhere/python"):
            store.get("b")
        monkeypatch.setattr("sys.executable", "/bin/false")
        with pytest.raises(StorageError, match=r"has ended \(status"):
            store.get("b")

    in_fork(act)


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_nothing_is_left_of_a_sidecar_after_its_process(store: Store) -> None:
    def act() -> int:
        store.get("b")
        return sidecar_pid()

    set_child_subreaper = ctypes.CDLL(None).prctl
    set_child_subreaper(36, 1, 0, 0, 0)  # zombies that a copy leaves become this process's, which reaps none
    try:
        assert is_gone(in_fork(act))
    finally:
        set_child_subreaper(36, 0, 0, 0, 0)


def test_a_sidecar_ends_with_a_process_that_is_killed_whatever_copies_of_it_live_on(store: Store) -> None:
    def act(pipe: Connection) -> None:
        store.get("b")
        if (child := os.fork()) == 0:
            signal.alarm(60)
            signal.pause()
        pipe.send((sidecar_pid(), child))
        signal.pause()

    with forked(act) as (child, pipe):
        sidecar, grandchild = hear(pipe)
        os.kill(child, signal.SIGKILL)
        try:
            assert has_ended(sidecar)
            os.kill(grandchild, 0)
        finally:
            os.kill(grandchild, signal.SIGKILL)


def test_ctrl_c_gets_through_to_the_process_and_not_to_the_sidecar(store: Store) -> None:
    with FaultProxy(moto_port(), ["hang"]) as proxy:
        hanging = open_store(store.uri, options=s3_options(proxy.endpoint))

        def act(pipe: Connection) -> float:
            store.get("b")
            first = sidecar_pid()
            os.kill(first, signal.SIGINT)
            assert os.getpgid(first) != os.getpgrp()
            pipe.send("ready")
            with pytest.raises(KeyboardInterrupt):
                hanging.get("b")
            interrupted = time.monotonic()
            assert store.get("a/k") == BODY
            assert sidecar_pid() == first
            return interrupted

        with forked(act) as (child, pipe):
            assert hear(pipe) == "ready"
            time.sleep(0.5)
            sent = time.monotonic()
            os.kill(child, signal.SIGINT)
            assert hear(pipe) - sent < 2


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")
def test_a_sidecar_inherits_nothing_and_shows_nothing(store: Store, tmp_path: Path) -> None:
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
