"""The window in shared memory: ranges never overlap, freed memory goes back, and a reader that dies loses nothing."""

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Dataset, Epochs, Text, Workers
from penstock.device import Arena, Runs, SharedRegions, arena_bytes
from penstock.engine.planning import SpanSamples
from penstock.engine.window import BuildTask, TableTask, WindowRows
from penstock.plan import SpanSteps
from penstock.runners import read_pickled, write_pickled
from penstock.table import RowPages
from tests.engine.watch import our_threads, reader_processes, soon, threads_end, worker_processes

ROWS = 400


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    assert threads_end(), our_threads()
    assert soon(lambda: not worker_processes()), worker_processes()


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60), st.integers(1, 200))
@settings(deadline=None)
def test_runs_are_the_first_that_fit_and_discards_are_free(steps: list[tuple[bool, int]], capacity: int) -> None:
    used: dict[int, int] = {}

    def discard(start: int, end: int) -> None:
        assert all(end <= first or start >= first + size for first, size in used.items())

    runs = Runs(capacity, discard)
    for frees, size in steps:
        if frees and used:
            start = sorted(used)[size % len(used)]
            runs.free(start, used.pop(start))
            continue
        ends = [0, *(first + other for first, other in used.items())]
        free = [end for end in ends if all(end + size <= first or end >= first + used[first] for first in used)]
        found = runs.allocate(size)
        assert found == min((end for end in free if end + size <= capacity), default=None)
        start, capacity = runs.grow(size) if found is None else (found, capacity)
        assert 0 <= start <= capacity - size
        assert all(start + size <= first or start >= first + other for first, other in used.items())
        used[start] = size
    for start, size in used.items():
        runs.free(start, size)
    assert runs.allocate(capacity) == 0


def test_freed_memory_goes_back_to_the_system() -> None:
    """Blocks of growing sizes never fit where earlier ones were."""
    regions = SharedRegions.create()
    arena = Arena(regions)
    before: tuple[int, int] | None = None
    for size in range(1 << 20, 9 << 20, 1 << 19):
        start = arena.allocate(size)
        arena.bytes(start, size)[:] = 1
        if before is not None:
            arena.free(*before)
        before = start, size
    assert os.fstat(regions.fd).st_blocks * 512 <= 24 << 20  # of 80 that were written


def test_builders_cannot_write_to_the_window() -> None:
    regions = SharedRegions.create()
    regions.array(3, (10, 2), np.int64)[:] = 7
    mapped = SharedRegions(os.dup(regions.fd), writable=False).array(3, (10, 2), np.int64)
    assert (mapped == 7).all()
    with pytest.raises(ValueError, match="read-only"):
        mapped[0] = 1
    larger = regions.array(3, (1000, 2), np.int64)
    larger[999] = 8
    assert (larger[:10] == 7).all(), "a region grows in place"


def task_of(rows: int, places: Any) -> TableTask:
    files = {"x": RowPages(["a", "b"], np.arange(5 * rows).reshape(rows, 5))}
    located = WindowRows(np.arange(rows) * 3, [], np.zeros(0, np.int64), np.zeros(0, np.int64), files)
    return TableTask(
        table=1, places=places, located=located, samples=None, padding=np.arange(rows) % 2 == 0, epochs=4,
        positions=np.arange(rows) + 100, damaged=(2, 5), slab_capacity=77,
    )  # fmt: skip


@pytest.mark.parametrize("places", [slice(None), np.arange(8) * 2])
def test_a_task_is_the_same_in_another_process(places: Any) -> None:
    regions = SharedRegions.create()
    steps = SpanSteps(3, 0, 0, (8, 8), (8, 16), True, False)
    made = write_pickled(BuildTask(steps, [task_of(8, places)], np.arange(16)), Arena(regions))
    task: BuildTask = read_pickled(arena_bytes(SharedRegions(os.dup(regions.fd), writable=False), 0, *made))
    [rows] = task.tables
    assert task.steps == steps
    assert np.array_equal(np.arange(16)[rows.places][:8], np.arange(16)[places][:8])
    assert np.array_equal(rows.located.slab_rows, np.arange(8) * 3)
    assert rows.identity(3) == (1, 103, 4)
    if not isinstance(places, slice):
        assert task.identity(6) == (1, 103, 4)
        part = task.part(3, 13)  # places 4, 6, 8, 10, 12
        [few] = part.tables
        assert few.places.tolist() == [1, 3, 5, 7, 9]  # type: ignore[union-attr]
        assert few.located.slab_rows.tolist() == [6, 9, 12, 15, 18]
        assert few.located.files["x"].pages[:, 0].tolist() == [10, 15, 20, 25, 30]
        assert few.damaged == (0, 3)
        assert part.keys is not None
        assert part.keys.tolist() == list(range(3, 13))


def test_a_part_of_samples_has_their_rows() -> None:
    samples = SpanSamples(np.array([9, 8, 7]), np.array([0, 2, 5, 6]))
    assert [each.tolist() for each in samples.part(1, 3)] == [[8, 7], [0, 3, 4]]


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    made = penstock.create(tmp_path_factory.mktemp("shared") / "t", {"n": int, "t": Text()})
    made.append({"n": range(ROWS), "t": [f"row {k}" * (k % 9) for k in range(ROWS)]})
    made.commit()
    return made


def slow(batch: dict[str, Any]) -> dict[str, Any]:
    return batch


@pytest.mark.parametrize("options", [{}, {"batch_transform": slow}], ids=["gather", "function"])
def test_a_reader_or_a_template_that_dies_is_replaced(ds: Dataset, options: dict[str, Any]) -> None:
    """What the reader had published is built; without the template builders start by themselves."""
    order: dict[str, Any] = {
        "batch_size": 8,
        "shuffle": penstock.Shuffle(block_bytes=2000, lanes=4, spread=1),
        "memory_budget": 1 << 20,
    }
    with ds.numpy(num_workers=0, **order) as loader:
        expected = [(batch["n"].tolist(), batch["t"]) for _ in range(2) for batch in loader]
    seen: list[Any] = []
    with ds.numpy(num_workers=Workers(2, "process"), **order, **options) as loader:
        for epoch in range(2):
            for step, batch in enumerate(loader):
                seen.append((batch["n"].tolist(), batch["t"]))
                if (epoch, step) in ((0, 5), (0, 30), (1, 20)):
                    readers = reader_processes()
                    others = [pid for pid in worker_processes() if pid not in readers]
                    victim = others[0] if step == 5 else others[-1] if epoch else readers[0]
                    os.kill(victim, signal.SIGKILL)
    assert seen == expected


def shared_bytes() -> int:
    """Bytes of the shared memory that this process has descriptors of: the window, slots, what functions returned."""
    found: dict[int, int] = {}
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if "memfd:" in os.readlink(f"/proc/self/fd/{fd}"):
                status = os.stat(f"/proc/self/fd/{fd}")
                found[status.st_ino] = 512 * status.st_blocks
    return sum(found.values())


@pytest.mark.parametrize("options", [{}, {"batch_transform": slow}], ids=["gather", "function"])
def test_shared_memory_stays_within_the_budget(tmp_path: Path, options: dict[str, Any]) -> None:
    """Through epochs of documents whose sizes differ by a thousand times, which leave gaps of all sizes."""
    budget = 20 << 20
    rng = np.random.default_rng(0)
    made = penstock.create(tmp_path / "t", {"t": Text()})
    for _ in range(4):
        sizes = (rng.pareto(1.5, 4000) * 500).astype(int).clip(1, 100_000)
        made.append({"t": [rng.bytes(int(size)).hex() for size in sizes]})
    made.commit()
    order: dict[str, Any] = {
        "shuffle": penstock.Shuffle(lanes=4, block_bytes=1 << 20, spread=1),
        "memory_budget": budget,
    }
    peak = read = 0
    with made.numpy(batch_size=32, num_workers=Workers(2, "process"), until=Epochs(3), **order, **options) as loader:
        for batch in loader:
            read += sum(map(len, batch["t"]))
            peak = max(peak, shared_bytes())
    assert read > 4 * budget
    assert peak <= 1.1 * budget
