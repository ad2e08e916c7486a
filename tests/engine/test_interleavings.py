"""Orders of messages, deaths and calls that a run in worker processes seldom meets, arranged."""

import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock
from penstock import Workers
from penstock.device import Slot
from penstock.engine.assembly import BatchFormatter
from penstock.engine.workers import ProcessPool, ProcessRun
from penstock.engine.workers._messages import Build, Built, Published, Release, Run
from penstock.engine.workers._pool import Worker
from penstock.errors import InvalidInputError

READER = 0
BATCH, STEPS = 8, 12


class ScriptedPool(ProcessPool):
    """A reader and a builder whose messages are those of a script; tasks of the builder are answered at once."""

    def start(self) -> None:
        self.workers = [Worker(SimpleNamespace(pid=0)) for _ in range(2)]  # type: ignore[arg-type]
        self.inbox: list[tuple[int, Any, list[int]]] = []
        self.sent: list[Any] = []

    def open(self, begin: Callable[[], None]) -> None:
        begin()

    def send(self, worker: int, message: Any, descriptors: Sequence[int] = ()) -> None:
        self.sent.append(message)
        if isinstance(message, Build):
            self.inbox.append((worker, Built(message.window, message.number, message.rows, None, {}, None, None), []))

    def receive(self, *, wait: bool = True) -> Iterator[tuple[int, Any, list[int]]]:
        assert self.inbox or not wait, "the run waits, and nothing comes"
        messages, self.inbox = self.inbox, []
        return iter(messages)

    def replace(self, worker: int) -> int | None:
        return -9

    def sent_of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.sent if isinstance(message, kind)]

    def publish(self, *numbers: int) -> None:
        """Spans are published, to the memory of the last run that was started."""
        window = self.sent_of(Run)[-1].window
        self.inbox += [(READER, Published(window, number, (0, 0), 1, 0, None, None), []) for number in numbers]


@pytest.fixture
def pool(tmp_path: Path) -> ScriptedPool:
    ds = penstock.create(tmp_path / "t", {"n": int})
    ds.append({"n": range(BATCH * STEPS)})
    ds.commit()
    loader = ds.numpy(batch_size=BATCH, num_workers=Workers(1, "process"), memory_budget=1 << 20)
    engine = loader._engine
    made = ScriptedPool(engine._source, BatchFormatter(None, None, None, "list", {}, False), None, 1, engine.collector)
    made.start()
    return made


def new_run(pool: ScriptedPool) -> ProcessRun:
    run = ProcessRun(pool)
    run.start(0, 0)
    return run


def test_spans_published_before_others_when_a_reader_died_are_built_once(pool: ScriptedPool) -> None:
    """Its successor publishes all from the first one that was missing on; what was there is freed by it again."""
    run = new_run(pool)
    pool.publish(1, 2)
    pool.inbox.append((READER, None, []))
    run._receive(wait=False)
    assert [(start.first, start.number) for start in pool.sent_of(Run)] == [(0, 0), (0, 0)]
    pool.publish(0, 1, 2)
    delivered = [run.next_span() for _ in range(3)]
    assert [span.steps.number for span in delivered if span is not None] == [0, 1, 2]
    first, second = (start.window for start in pool.sent_of(Run))
    assert first != second
    run._receive(wait=False)
    built = [message.number for message in pool.sent_of(Build) if message.rows is None or not message.rows[0]]
    assert sorted(built) == [0, 1, 2]
    freed = [number for message in pool.sent_of(Release) for number in message.numbers]
    assert sorted(freed) == [0, 1, 2]


def test_a_run_is_stopped_by_another_thread_in_the_middle_of_a_dispatch(
    pool: ScriptedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, take = new_run(pool), pool.slots.take
    stopping: list[threading.Thread] = []

    def stop_and_take(mapped: Container[int]) -> Slot:
        if not stopping:
            stopping.append(threading.Thread(target=run.stop))
            stopping[0].start()
            stopping[0].join(0.5)  # it waits for the dispatch
        return take(mapped)

    monkeypatch.setattr(pool.slots, "take", stop_and_take)
    pool.publish(0, 1, 2)
    run.next_span()
    stopping[0].join()
    assert run.next_span() is None


def test_a_run_takes_no_message_of_the_next_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread is about to receive when another thread ends it by beginning the next run."""
    ds = penstock.create(tmp_path / "t", {"n": int})
    ds.append({"n": range(BATCH * STEPS)})
    ds.commit()
    receive = ProcessPool.receive
    entered, done = threading.Event(), threading.Event()
    rows: list[int] = []

    def late(pool: ProcessPool, *, wait: bool = True) -> Iterator[tuple[int, Any, list[int]]]:
        if threading.current_thread() is not old:
            assert done.wait(30)
            return receive(pool, wait=wait)
        if entered.is_set():
            return receive(pool, wait=wait)
        entered.set()
        time.sleep(1)  # now the next run begins, unless it waits, and its first rows are published
        try:
            return iter(list(receive(pool, wait=False)))
        finally:
            done.set()

    def read_on() -> None:
        with pytest.raises(InvalidInputError, match="another iteration"):
            list(before)

    with ds.numpy(batch_size=BATCH, num_workers=Workers(1, "process"), memory_budget=1 << 20) as loader:
        before = iter(loader)
        next(before)
        old = threading.Thread(target=read_on, daemon=True)
        new = threading.Thread(target=lambda: rows.extend(n for batch in loader for n in batch["n"]), daemon=True)
        monkeypatch.setattr(ProcessPool, "receive", late)
        old.start()
        assert entered.wait(30)
        loader.set_epoch(0)
        new.start()
        new.join(60)
        old.join(60)
        assert not new.is_alive(), "the new run waits for what the old one has taken"
        assert rows == list(range(BATCH * STEPS))
