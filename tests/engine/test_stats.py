"""Statistics of a loader, and the sentence that names the bottleneck."""

import pickle
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import Column, Dataset, Loader, Shuffle, Tensor, Text
from penstock.engine._stats import StageTimes, StatsCollector
from penstock.runners import available_cores
from penstock.storage import RetryPolicy, open_store
from penstock.testing import CountingStore, Fault, FaultyStore
from tests.adapters.transforms import slow
from tests.servers import moto_port, new_location, s3_options
from tests.storage.proxy import FaultProxy

ROWS = 2000
WIDTH = 256
PAGE_ROWS = 10
ROW_BYTES = WIDTH * 4
MIXED: dict[str, Any] = {"shuffle": Shuffle(block_bytes=4 * PAGE_ROWS * ROW_BYTES, lanes=4)}


def fill(place: Any, rows: int = ROWS, **options: Any) -> Dataset:
    """Pages of ten rows, for many requests."""
    column = Column(Tensor("float32", (WIDTH,)), page_bytes=PAGE_ROWS * ROW_BYTES)
    ds = penstock.create(place, {"x": column}, **options)
    ds.append({"x": np.repeat(np.arange(rows, dtype=np.float32), WIDTH).reshape(rows, WIDTH)})
    ds.commit()
    return ds


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return fill(tmp_path_factory.mktemp("stats") / "t")


BUSY_S = 2e-3


def busy(row: Any) -> Any:
    """Takes processor time."""
    ends = time.thread_time() + BUSY_S
    while time.thread_time() < ends:
        pass
    return row


def read(loader: Loader, pause_s: float = 0.0) -> None:
    for _ in loader:
        if pause_s:
            time.sleep(pause_s)


def test_stats_before_reading(ds: Dataset) -> None:
    stats = ds.pytorch(batch_size=10).stats()
    assert (stats.rows, stats.batches, stats.bytes, stats.gets, stats.rows_per_s, stats.gets_per_gb) == (0,) * 6
    assert stats.bottleneck == "bottleneck: nothing has been read yet"
    assert stats.bottleneck in str(stats)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_stats_match_the_requests_of_the_store(num_workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.storage._fetch._HEDGE_MIN_S", 60.0)  # independent of machine load
    store = CountingStore(open_store("memory://"))
    table = fill(store)
    with table.pytorch(batch_size=64, num_workers=num_workers, **MIXED) as loader:
        started = time.perf_counter()
        store.reset()
        read(loader)
        took = time.perf_counter() - started
        loader.close()
        stats = loader.stats()
    assert (stats.rows, stats.batches) == (ROWS, len(loader))
    assert 0 < stats.first_batch_s <= stats.seconds <= took
    assert stats.rows_per_s == pytest.approx(ROWS / stats.seconds)
    assert ROWS * ROW_BYTES <= stats.bytes <= store.bytes["get"]
    assert 0 < stats.gets <= store.requests["get"]
    assert stats.gets_per_gb == pytest.approx(1e9 * stats.gets / stats.bytes)
    assert 0 < stats.latency_s[0] <= stats.latency_s[1] <= stats.latency_s[2] <= took
    assert (stats.retries, stats.hedges, stats.bad_count, stats.bad_samples) == (0, 0, 0, ())
    assert stats.read_factor == 1
    assert 0 < stats.window_peak_bytes <= stats.budget_bytes
    assert set(stats.stages) == {"fetch", "worker", "transform", "loop"}
    for stage in stats.stages.values():
        assert min(stage.busy_s, stage.starved_s, stage.blocked_s) >= 0
    assert stats.stages["loop"].starved_s <= took
    assert stats.stages["worker"].busy_s >= stats.stages["transform"].busy_s > 0
    assert stats.quality is not None
    assert stats.quality.blocks_per_batch > 1
    assert 0 < stats.quality.ratio <= 1
    text = str(stats)
    for part in (f"{ROWS:,} rows in", "GETs", "window", "busy", "shuffle: a batch draws from", stats.bottleneck):
        assert part in text


def test_counters_of_a_worker_are_a_small_message() -> None:
    """A message below 4 KiB, whatever was counted; percentiles are rounded up a little."""
    collector = StatsCollector()
    latencies = [1e-7, 1e-3, *np.linspace(0.02, 0.08, 1001), 1e4]
    for seconds in latencies:
        collector.record_get(10**9, seconds)
        collector.add_time("worker", "busy", seconds)
    counters = collector.of_process(retries=3)
    assert len(pickle.dumps(counters)) < 2048
    for number, share in enumerate((0.5, 0.95, 0.99)):
        exact = sorted(latencies)[int(len(latencies) * share)]
        assert exact <= counters.latency_s[number] <= 1.05 * exact


def test_an_ended_worker_waits_for_nothing() -> None:
    worker, collector = StatsCollector(), StatsCollector()
    worker.window_bytes, worker.window_peak_bytes, worker.unanswered_since = 10, 20, 1.5
    worker.record_get(100, 0.1)
    worker.add_time("loop", "starved", 1.0)
    worker.note("a note")
    for pid in (1, 2, 2):
        collector.record_process(pid, pickle.loads(pickle.dumps(worker.of_process(retries=1))))
    collector.forget_requests(1)
    totals = collector.totals()
    assert (totals.bytes, totals.gets, totals.retries, totals.notes) == (200, 2, 2, ("a note",))
    assert (totals.window_bytes, totals.window_peak_bytes, totals.unanswered_since) == (10, 40, 1.5)
    assert totals.stages["loop"].starved_s == 0, "its loop is no loop of the user"
    collector.forget_requests(2)
    assert collector.totals().unanswered_since is None


def test_quality_is_none_without_shuffle(ds: Dataset) -> None:
    loader = ds.pytorch(batch_size=64)
    read(loader)
    assert loader.stats().quality is None


def test_ranks_that_do_not_divide_the_lanes_read_bytes_more_than_once(ds: Dataset) -> None:
    assert ds.pytorch(distributed=(0, 2), **MIXED).stats().read_factor == 1
    assert ds.pytorch(distributed=(0, 3), **MIXED).stats().read_factor > 1


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_slow_store_is_the_bottleneck(num_workers: int) -> None:
    place = new_location("memory")
    fill(place.uri, 400)
    store = FaultyStore(place.open(), Fault("delay", "get", key="data/*", times=10**6, delay_s=0.5))
    loader = penstock.load(store).pytorch(
        batch_size=10, num_workers=num_workers, memory_budget=1 << 20,
        shuffle=Shuffle(block_bytes=PAGE_ROWS * ROW_BYTES, lanes=1),
    )  # fmt: skip
    read(loader)
    assert loader.stats().bottleneck.startswith("bottleneck: storage; the loop waited")
    assert loader.stats().latency_s[0] >= 0.5


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_slow_transform_is_the_bottleneck(ds: Dataset, num_workers: int) -> None:
    loader = ds[:200].pytorch(batch_size=10, num_workers=num_workers, transform=slow)
    read(loader)
    assert "bottleneck: your transform;" in loader.stats().bottleneck


def test_a_slow_loop_is_the_bottleneck(ds: Dataset) -> None:
    loader = ds[:400].pytorch(batch_size=10, num_workers=2)
    read(loader, pause_s=0.02)
    assert loader.stats().bottleneck.startswith("bottleneck: the training loop; it waited for data")


@pytest.mark.parametrize(
    ("fetch", "cpu_share", "said"),
    [
        (StageTimes(3.0, 0.0, 4.0), 0.2, "memory; fetching waited for room in the window, raise memory_budget"),
        (StageTimes(3.0, 0.0, 4.0), 0.95, "reading, decoding and gathering; the loop waited 90% of the time, and all"),
        (StageTimes(9.0, 0.0, 0.0), 0.2, "storage; the loop waited 90% of the time"),
        (StageTimes(9.0, 0.0, 0.0), 0.95, "reading, decoding and gathering; the loop waited 90% of the time, and all"),
        (StageTimes(1.0, 0.0, 0.0), 0.2, "planning; the loop waited 90% of the time"),
    ],
)
def test_waiting_for_rows_has_a_cause(ds: Dataset, fetch: StageTimes, cpu_share: float, said: str) -> None:
    """More memory, or a faster store, does not help where all cores are busy."""
    stages = {
        "fetch": fetch, "worker": StageTimes(2.0, 8.0, 0.0), "transform": StageTimes(0.0, 0.0, 0.0),
        "loop": StageTimes(1.0, 9.0, 0.0),
    }  # fmt: skip
    cpu_s = 10.0 * cpu_share * available_cores()
    stats = replace(ds.pytorch(batch_size=10).stats(), batches=1, seconds=10.0, stages=stages, cpu_s=cpu_s)
    assert stats.bottleneck.startswith(f"bottleneck: {said}")


@pytest.mark.parametrize("num_workers", [2, penstock.Workers(2, "process")])
def test_processor_time_of_all_threads_and_processes_is_counted(ds: Dataset, num_workers: Any) -> None:
    """All but what worker processes had not sent when the last batch came."""
    loader = ds[:300].pytorch(batch_size=10, num_workers=num_workers, transform=busy)
    read(loader)
    assert loader.stats().cpu_s >= 100 * BUSY_S


def test_late_gets_are_hedged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.storage._fetch._HEDGE_MIN_S", 0.5)  # a busy machine delays others by less
    place = new_location("memory")
    fill(place.uri, 6000)
    late = [Fault("delay", "get", key="data/*", skip=59 + 50 * k, times=1, delay_s=15.0) for k in range(9)]
    store = FaultyStore(place.open(), *late)
    loader = penstock.load(store).pytorch(
        batch_size=PAGE_ROWS, num_workers=2, memory_budget=1 << 20,
        shuffle=Shuffle(block_bytes=PAGE_ROWS * ROW_BYTES, spread=0, lanes=1),
    )  # fmt: skip
    waits, numbers = [], []
    mark = time.perf_counter()
    for batch in loader:
        waits.append(time.perf_counter() - mark)
        numbers += batch["x"][:, 0].tolist()
        mark = time.perf_counter()
    assert sorted(numbers) == list(range(6000))
    fired = sum(store.fired.values())
    stats = loader.stats()
    assert fired >= 5, "the store was late often enough"
    assert fired - 1 <= stats.hedges <= 0.05 * stats.gets + 1
    assert max(waits) < 12, "and no batch waited for it"


def test_retries_are_counted() -> None:
    place = new_location("s3")
    fill(place.uri, 400, storage_options=place.options)
    policy = RetryPolicy(deadline_s=240, attempt_timeout_s=60, initial_backoff_s=0.01, max_backoff_s=0.05)
    with FaultProxy(moto_port(), ["503", "pass"] * 100) as proxy:
        table = penstock.load(open_store(place.uri, options=s3_options(proxy.endpoint), retry=policy))
        before = table._reader.store.retries
        assert before > 0
        with table.pytorch(batch_size=50, num_workers=2, **MIXED) as loader:
            assert loader.stats().retries == 0
            found = sorted(n for batch in loader for n in batch["x"][:, 0].tolist())
            assert loader.stats().retries > 0
    assert found == list(range(400))


@pytest.mark.parametrize("progress", ["line", "table"])
def test_progress_goes_to_standard_error(ds: Dataset, progress: Any, capfd: pytest.CaptureFixture[str]) -> None:
    with ds[:400].pytorch(batch_size=100, progress=progress) as loader:
        read(loader)
    out, err = capfd.readouterr()
    assert out == ""
    assert "step 4/4" in err
    assert "bottleneck" in err
    assert ("starved" in err) == (progress == "table")


def test_no_progress_by_default(ds: Dataset, capfd: pytest.CaptureFixture[str]) -> None:
    read(ds[:400].pytorch(batch_size=100))
    assert capfd.readouterr() == ("", "")


def test_loaders_have_separate_statistics(ds: Dataset, tmp_path: Path) -> None:
    one, other = ds.pytorch(batch_size=100), ds[:500].pytorch(batch_size=100)
    read(one)
    read(other)
    read(other)
    assert (one.stats().rows, other.stats().rows) == (2000, 1000)


def test_many_tiny_fragments_are_noted() -> None:
    store = CountingStore(open_store("memory://"))
    table = penstock.create(store, {"n": int, "t": Text()})
    for start in range(0, 240, 2):
        table.append({"n": [start, start + 1], "t": ["a", "b"]})
    table.commit()
    with penstock.load(store).pytorch(batch_size=16, shuffle=True, num_workers=0) as loader:
        assert sorted(n for batch in loader for n in batch["n"].tolist()) == list(range(240))
        [note] = loader.stats().notes
    assert note.startswith("the table has 120 fragments of ")
    assert "merge them with penstock.compact('memory://')" in note
    penstock.compact(store)
    assert penstock.load(store).pytorch(batch_size=16).stats().notes == ()


def test_rows_are_counted_without_padding(ds: Dataset) -> None:
    seen = 0
    for rank in range(3):
        with ds[:100].pytorch(batch_size=16, distributed=(rank, 3)) as loader:
            read(loader)
            seen += loader.stats().rows
    assert seen == 100


def test_quality_is_at_most_that_of_a_uniform_shuffle() -> None:
    """Fragments of few rows make more blocks than their average size suggests."""
    table = penstock.create("memory://", {"n": int})
    for start in range(0, 64, 2):
        table.append({"n": [start, start + 1]})
    table.append({"n": np.arange(64, 5000)})
    table.commit()
    with table[:400].pytorch(batch_size=50, shuffle=Shuffle(block_bytes=2000)) as loader:
        read(loader)
        quality = loader.stats().quality
    assert quality is not None
    assert quality.blocks_per_batch <= quality.expected


def test_the_read_factor_is_measured_if_pages_are_read_repeatedly(ds: Dataset) -> None:
    shuffle = Shuffle(block_bytes=4 * PAGE_ROWS * ROW_BYTES, lanes=4, spread=40)
    with ds.pytorch(batch_size=16, shuffle=shuffle, memory_budget=1 << 20) as loader:
        read(loader)
        loader.close()
        stats = loader.stats()
    assert stats.read_factor == pytest.approx(stats.bytes / (ROWS * ROW_BYTES), rel=0.05)
    assert stats.read_factor > 2
    assert f"each byte is read {stats.read_factor:.2f} times" in str(stats)
