"""Nothing hangs: the loop pauses, workers die, functions raise or exit, at any message and for every kind of column."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import Bytes, Column, Dataset, Image, Json, Shuffle, Tensor, Text, Workers
from penstock.errors import InvalidInputError, SampleError, text_of
from tests.engine.watch import our_threads, soon, threads_end, worker_processes

pytestmark = pytest.mark.timeout(250)

ROWS = 96
BATCH: dict[str, Any] = {"batch_size": 8, "shuffle": Shuffle(block_bytes=60_000, spread=1, lanes=4)}
THREADS, PROCESSES = Workers(2, "thread"), Workers(2, "process")
EITHER = pytest.mark.parametrize("workers", [THREADS, PROCESSES], ids=["threads", "processes"])
PAUSE_S = 0.7
"""Longer than a worker process waits until it sends statistics."""


def _image(row: int) -> Any:
    return np.random.default_rng(row).integers(0, 256, (100 + row % 7, 90 + row % 5, 3), np.uint8)


# Each large enough for a batch of it to fill the buffer of a socket.
KINDS: dict[str, Callable[[int], Any]] = {
    "fixed": lambda row: np.full(6000, row % 251, np.uint8),
    "ragged": lambda row: np.full(3000 + row, row, np.int32),
    "text": lambda row: f"{row:05}" * 20_000,
    "json": lambda row: {"row": [row] * 20_000},
    "bytes": lambda row: bytes([row % 251]) * 100_000,
    "image": _image,
}
SCHEMA: dict[str, Any] = {
    "fixed": Tensor("uint8", (6000,)), "ragged": Tensor("int32", (None,)), "text": Text(), "json": Json(),
    "bytes": Bytes(), "image": Image("png"),
}  # fmt: skip


def table_of_all_kinds(uri: str) -> Dataset:
    made = penstock.create(
        uri,
        {"n": Column(Tensor("int64"), page_bytes=64)} | {name: Column(kind) for name, kind in SCHEMA.items()},
    )
    made.append([{"n": row} | {name: value(row) for name, value in KINDS.items()} for row in range(ROWS)])
    made.commit()
    return made


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return table_of_all_kinds(str(tmp_path_factory.mktemp("hangs") / "t"))


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    assert threads_end(), our_threads()
    assert soon(lambda: not worker_processes()), worker_processes()


class Thing:
    """An object that a function returns."""

    def __init__(self, n: int) -> None:
        self.n, self.load = n, os.urandom(60_000)


def objects(sample: dict[str, Any]) -> dict[str, Any]:
    return {"n": sample["n"], "objects": Thing(int(sample["n"]))}


COLUMNS: dict[str, tuple[str, dict[str, Any]]] = {name: (name, {}) for name in KINDS} | {
    "encoded images": ("image", {"decode": False}),
    "objects": ("fixed", {"transform": objects}),
    "texts of a function": ("text", {"batch_transform": lambda batch: batch}),
}


def options_of(kind: str) -> dict[str, Any]:
    """With two worker processes."""
    _, options = COLUMNS[kind]
    workers = PROCESSES if "transform" in str(options) else Workers(4, "process")
    return {"num_workers": workers, **BATCH, **options}


def check(batch: dict[str, Any], kind: str) -> list[int]:
    """The rows of a batch, whose values are theirs."""
    rows = [int(n) for n in batch["n"]]
    if kind == "objects":
        assert [thing.n for thing in batch["objects"]] == rows
    elif kind != "encoded images":
        name = COLUMNS[kind][0]
        for row, value in zip(rows, batch[name], strict=True):
            expected = KINDS[name](row)
            assert np.array_equal(value, expected) if isinstance(expected, np.ndarray) else value == expected
    return rows


@EITHER
@pytest.mark.parametrize("kind", COLUMNS)
def test_a_loop_that_pauses_gets_every_row(ds: Dataset, kind: str, workers: Workers) -> None:
    """A pause fills the buffers of all sockets and the queues of all threads."""
    seen: list[int] = []
    options = options_of(kind) | ({"num_workers": THREADS} if workers is THREADS else {})
    with ds.select(["n", COLUMNS[kind][0]]).numpy(**options) as loader:
        for step, batch in enumerate(loader):
            seen += check(batch, kind)
            if step in (0, 1, 6):
                time.sleep(PAUSE_S)
    assert sorted(seen) == list(range(ROWS))


class AtMessages:
    """Does something in the loop's process before each message that it sends or receives."""

    def __init__(self, patch: pytest.MonkeyPatch, act: Callable[[int], None]) -> None:
        self.count = 0
        for name in ("receive", "send"):
            patch.setattr(f"penstock.runners._channel.Channel.{name}", self._acting(name, act))

    def _acting(self, name: str, act: Callable[[int], None]) -> Callable[..., Any]:
        from penstock.runners._channel import Channel

        call = getattr(Channel, name)

        def acting(channel: Channel, *args: Any) -> Any:
            self.count += 1
            act(self.count)
            return call(channel, *args)

        return acting


@pytest.mark.parametrize("kind", ["fixed", "text", "objects"])
def test_a_pause_at_every_message_stops_nothing(ds: Dataset, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    AtMessages(monkeypatch, lambda _: time.sleep(0.03))
    with ds.select(["n", COLUMNS[kind][0]]).numpy(**options_of(kind)) as loader:
        assert sorted(row for batch in loader for row in check(batch, kind)) == list(range(ROWS))


def killed_at(ds: Dataset, kind: str, numbers: Any, patch: pytest.MonkeyPatch) -> int:
    """Read an epoch for each number, and kill a worker process at the message of that number."""
    killed: dict[int, int] = {}

    def kill(number: int) -> None:
        if number >= at and at not in killed and (pids := worker_processes()):  # which the first messages may precede
            killed[at] = pids[number % len(pids)]
            os.kill(killed[at], signal.SIGKILL)

    at = 0
    messages = AtMessages(patch, kill)
    with ds.select(["n", COLUMNS[kind][0]]).numpy(**options_of(kind)) as loader:
        for number in numbers:
            messages.count, at = 0, number
            assert sorted(row for batch in loader for row in check(batch, kind)) == list(range(ROWS)), number
    return len(killed)


def test_a_worker_that_is_killed_at_a_message_is_replaced(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    assert killed_at(ds, "texts of a function", (1, 2, 3, 5, 7), monkeypatch) == 5


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", COLUMNS)
def test_a_worker_that_is_killed_at_any_message_is_replaced(
    ds: Dataset, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert killed_at(ds, kind, range(1, 40), monkeypatch) > 10  # which is every message of an epoch


class UnshowableError(Exception):
    """An error that raises whatever is asked of it."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __reduce__(self) -> Any:
        raise KeyboardInterrupt


class Unpicklable:
    """Raises when it is pickled."""

    def __reduce__(self) -> Any:
        raise SystemExit("not pickled")


def _refuse(*_: Any) -> Any:
    raise RuntimeError("not here")


class NotUnpicklable:
    """Raises when it is unpickled."""

    def __reduce__(self) -> Any:
        return _refuse, ()


class FarError(Exception):
    """An error that cannot be unpickled."""

    def __reduce__(self) -> Any:
        return _refuse, ()


FAULTS: list[type[BaseException]] = [
    SystemExit, KeyboardInterrupt, GeneratorExit, BaseException, UnshowableError, FarError, BrokenPipeError, EOFError
]  # fmt: skip
RESULTS = [Unpicklable, NotUnpicklable]


def faulty(row: int, value: Any) -> Any:
    """Every fourth row has a fault of its own."""
    number, rest = divmod(row, 4)
    if rest != 2 or number >= len(FAULTS) + len(RESULTS):
        return value
    if number < len(FAULTS):
        raise FAULTS[number]("fault")
    return RESULTS[number - len(FAULTS)]()


def faulty_sample(sample: dict[str, Any]) -> dict[str, Any]:
    return {"n": sample["n"], "bytes": faulty(int(sample["n"]), sample["bytes"])}


def faulty_batch(batch: dict[str, Any]) -> dict[str, Any]:
    return {
        "n": batch["n"],
        "bytes": [faulty(int(n), value) for n, value in zip(batch["n"], batch["bytes"], strict=True)],
    }


def faulty_bytes(data: bytes) -> Any:
    return faulty(data[0], data)


FUNCTIONS: dict[str, dict[str, Any]] = {
    "transform": {"transform": faulty_sample},
    "batch_transform": {"batch_transform": faulty_batch},
    "decode": {"decode": {"bytes": faulty_bytes}},
}


def raised_by(loader: Any) -> BaseException:
    try:
        next(iter(loader))
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


@EITHER
@pytest.mark.parametrize("where", FUNCTIONS)
def test_whatever_a_function_raises_or_returns_ends_in_an_error(ds: Dataset, where: str, workers: Workers) -> None:
    """The next iteration reads on; no process dies of it."""
    options: dict[str, Any] = {"batch_size": 4, "memory_budget": 1 << 20, **FUNCTIONS[where]}
    with ds.select(["n", "bytes"]).numpy(num_workers=workers, **options) as loader:
        start = loader.state_dict()
        for number, fault in enumerate([*FAULTS, *RESULTS]):
            loader.load_state_dict({**start, "consumed": 4 * number})
            if fault in RESULTS and workers is THREADS:
                assert next(iter(loader))["n"].tolist() == list(range(4 * number, 4 * number + 4))
                continue
            error = raised_by(loader)
            names = {type(error).__name__, type(error.__cause__).__name__, text_of(error).partition(":")[0]}
            sent = isinstance(error, InvalidInputError) and "sent from one process to another" in str(error)
            in_column = where == "decode" and text_of(error).startswith("column 'bytes'")
            assert fault.__name__ in names or sent or in_column, (fault, error)
            assert workers is THREADS or isinstance(error, Exception), "a worker does not exit this program"
        loader.load_state_dict({**start, "consumed": 40})
        assert [int(n) for batch in loader for n in batch["n"]] == list(range(40, ROWS))
        assert not any("ended" in note for note in loader.stats().notes)


@EITHER
def test_a_sample_whose_error_cannot_be_shown_is_replaced(ds: Dataset, workers: Workers) -> None:
    def breaks(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["n"] == 5:
            raise UnshowableError
        return sample

    with ds.select(["n"]).numpy(num_workers=workers, batch_size=8, transform=breaks, bad_samples="replace") as loader:
        assert sum(len(batch["n"]) for batch in loader) == ROWS
        [bad] = loader.stats().bad_samples
        assert (bad.row_id, "cannot be shown" in bad.reason) == (5, True)


def exits_once(marker: Path, batch: dict[str, Any]) -> dict[str, Any]:
    made = marker / f"exited {batch['n'][0]}"
    if batch["n"][0] % 48 == 0 and not made.exists():
        made.touch()
        os._exit(5)
    return batch


def test_functions_that_exit_their_process_lose_no_row(ds: Dataset, tmp_path: Path) -> None:
    function = partial(exits_once, tmp_path)
    with ds.select(["n", "text"]).numpy(num_workers=PROCESSES, batch_size=8, batch_transform=function) as loader:
        assert [row for batch in loader for row in check(batch, "text")] == list(range(ROWS))
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("lanes", [2, 4], ids=["a process that only finishes", "all gather"])
def test_a_worker_that_could_not_start_once_starts_for_the_next_iteration(
    ds: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lanes: int
) -> None:
    code = (
        "import os, pathlib\n"
        "def same(batch):\n    return batch\n"
        "if {} and os.getpid() != {}:\n    raise SystemExit('not yet')\n"
    )
    (tmp_path / "starting.py").write_text(code.format(True, os.getpid()))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    import starting  # type: ignore[import-not-found]

    options: dict[str, Any] = {**BATCH, "shuffle": Shuffle(block_bytes=60_000, spread=1, lanes=lanes)}
    with ds.select(["n", "text"]).numpy(
        num_workers=Workers(3, "process"), batch_transform=starting.same, **options
    ) as loader:
        for _ in range(2):
            with pytest.raises(SampleError, match="SystemExit: not yet"):
                list(loader)
        (tmp_path / "starting.py").write_text(code.format(False, 0))
        assert sorted(row for batch in loader for row in check(batch, "text")) == list(range(ROWS))
    del sys.modules["starting"]


@EITHER
def test_a_forked_child_that_continues_an_iterator_gets_an_error(ds: Dataset, workers: Workers) -> None:
    with ds.select(["n", "text"]).numpy(num_workers=workers, **BATCH) as loader:
        batches = iter(loader)
        rows = check(next(batches), "text")
        child = os.fork()
        if not child:  # pragma: no cover
            status = 1
            try:
                next(batches)
            except InvalidInputError as error:
                status = 0 if "make a loader in the child process" in str(error) else 2
            with ds.select(["n", "text"]).numpy(num_workers=workers, **BATCH) as own:
                status += 4 * (len(list(own)) != len(loader))
            status += 8 * (len(list(loader)) != len(loader))  # from its start, with threads or processes of the child
            os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        rows += [row for batch in batches for row in check(batch, "text")]
        assert sorted(rows) == list(range(ROWS))


@EITHER
def test_closing_in_another_thread_at_the_start_of_a_run(ds: Dataset, workers: Workers) -> None:
    """The iteration that it meets ends or is complete; the next one reads every row."""
    found: list[str] = []
    with ds.select(["n"]).numpy(num_workers=workers, **BATCH) as loader:
        rounds = 40 if workers is THREADS else 5

        def close_soon(delay_s: float) -> None:
            time.sleep(delay_s)
            try:
                loader.close()
            except BaseException as error:
                found.append(repr(error))

        for number in range(rounds):
            closer = threading.Thread(
                target=close_soon, args=(0.0002 * number if workers is THREADS else 0.05 * number,)
            )
            closer.start()
            with suppress(InvalidInputError):
                assert len(list(loader)) == ROWS // 8
            closer.join()
            loader.set_epoch(0)
        assert found == []
        assert sorted(int(n) for batch in loader for n in batch["n"]) == list(range(ROWS))


def test_statistics_are_read_while_threads_count() -> None:
    from penstock.engine._stats import StatsCollector

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(100):
            collector = StatsCollector()
            threads = [threading.Thread(target=_count, args=(collector,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                collector.totals()
            assert collector.totals().stages["loop"].busy_s == 3
    finally:
        sys.setswitchinterval(interval)


def _count(collector: Any) -> None:
    for stage in ("fetch", "worker", "transform", "loop"):
        for state in ("busy", "starved", "blocked"):
            collector.add_time(stage, state, 1.0)
            time.sleep(0)  # while another thread reads


SCRIPT = """
import sys, penstock
class Error(Exception):
    made = []
    def __init__(self, row, why):
        super().__init__(row, why)
        self.row = row
class Other(Exception):
    class Inner(Exception):
        pass
def fails(batch):
    if batch["n"][0] == 8:
        Error.made.append(1)
        raise Error(8, "here")
    if batch["n"][0] == 16:
        raise Other.Inner("there")
    return batch
ds, workers = penstock.load(sys.argv[1]), penstock.Workers(2, "process")
loader = ds.select(["n"]).numpy(batch_size=8, num_workers=workers, batch_transform=fails)
batches = iter(loader)
next(batches)
try:
    next(batches)
except Error as error:
    assert (type(error), error.row, str(error)) == (Error, 8, "(8, 'here')"), error
    assert "in fails" in error.__notes__[-1]
loader.load_state_dict({**loader.state_dict(), "consumed": 16})
try:
    next(iter(loader))
except Other.Inner as error:
    assert str(error) == "there"
assert Error.made == [], "the class of this program stays as it is"
print("both")
"""


def test_an_error_of_the_script_keeps_its_type(ds: Dataset, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = [sys.executable, str(tmp_path / "train.py"), ds.uri]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert (done.returncode, done.stdout) == (0, "both\n"), done.stderr
