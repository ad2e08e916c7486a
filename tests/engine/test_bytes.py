"""The cost of an epoch: bytes read over all ranks, manifests per step, and shuffle quality."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import Column, Dataset, Shuffle, Tensor
from penstock.engine.workers._reading import SpanReader
from penstock.storage import Store, open_store
from penstock.testing import CountingStore
from penstock.types import ByteRange
from tests.engine.reading import Int64Array, joined, of_fragments
from tests.engine.watch import soon

ROWS = 6401
X_BYTES = 1024


class RecordingStore(CountingStore):
    """Records reads in order."""

    is_local = True

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.reads: list[tuple[str, int, int]] = []

    def get(self, key: str, *, byte_range: ByteRange | None = None, etag: str | None = None) -> memoryview:
        found = super().get(key, byte_range=byte_range, etag=etag)
        start = 0 if byte_range is None else byte_range.start
        self.reads.append((key, start, start + len(found)))
        return found

    def count(self, prefix: str) -> int:
        return sum(key.startswith(prefix) for key, _, _ in self.reads)


@dataclass
class Sorted:
    """A table sorted by class, in one fragment: 200 blocks of eight pages."""

    store: RecordingStore = field(default_factory=lambda: RecordingStore(open_store("memory://")))

    def __post_init__(self) -> None:
        x = np.zeros((ROWS, X_BYTES), np.uint8)
        self.ds = penstock.create(
            self.store,
            {
                "n": Column(Tensor("int64"), page_bytes=256),
                "x": Column(Tensor("uint8", (X_BYTES,)), page_bytes=4 * X_BYTES, file_bytes=1 << 20),
            },
        )
        self.ds.append({"n": np.arange(ROWS), "x": x})
        self.ds.commit()

    def pages(self, rows: Int64Array, columns: Sequence[str] = ("n", "x")) -> dict[tuple[str, int], int]:
        """The pages that hold some rows, by where they start, and where they end."""
        [fragment] = self.ds._session.tree.fragments(self.ds._session.snapshot.nodes)
        found: dict[tuple[str, int], int] = {}
        for file in (file for name in columns for file in fragment.files_of(self.ds.schema[name].id)):
            inside = rows[(rows >= file.row_start) & (rows < file.row_start + file.page_ends[-1])] - file.row_start
            for page in np.unique(np.searchsorted(file.page_ends, inside, side="right")).tolist():
                found[file.key, file.offsets[page]] = file.offsets[page + 1]
        return found


def size_of(pages: dict[tuple[str, int], int]) -> int:
    return sum(end - start for (_, start), end in pages.items())


def read_for(reads: Sequence[tuple[str, int, int]], pages: dict[tuple[str, int], int]) -> int:
    """Bytes of their files that were read until all those pages had been: what comes then is for the next epoch."""
    missing, files, total = dict(pages), {key for key, _ in pages}, 0
    for key, start, end in reads:
        if not missing:
            break
        if key in files:
            total += end - start
            for page in [page for page in missing if page[0] == key and start <= page[1] < end]:
                del missing[page]
    assert not missing
    return total


@pytest.fixture(scope="module")
def sorted_table() -> Sorted:
    return Sorted()


TRIES = 3
SHUFFLE = Shuffle(block_bytes=32 << 10, lanes=4, spread=1)
SHUFFLED: dict[str, Any] = {"shuffle": SHUFFLE, "num_workers": 1}


def read_bytes(table: Sorted, ranks: int, **options: Any) -> tuple[float, float]:
    """How many times a byte of the first epoch is read over all ranks, and what the loader says.

    The least of a few tries: on a busy machine a thread may read ahead for the next epoch while another one still holds
    the last page of this one.
    """
    return min((_read_bytes(table, ranks, **options) for _ in range(TRIES)), key=itemgetter(0))


def _read_bytes(table: Sorted, ranks: int, **options: Any) -> tuple[float, float]:
    total, factors, seen = 0, set(), []
    for rank in range(ranks):
        table.store.reads.clear()
        with table.ds.pytorch(distributed=(rank, ranks), **options) as loader:
            rows = joined([batch["n"].numpy() for batch in loader])
            factors.add(loader.stats().read_factor)
        seen.append(rows)
        total += read_for(table.store.reads, table.pages(rows))
    assert np.array_equal(np.unique(joined(seen)), np.arange(ROWS))
    [factor] = factors
    return total / size_of(table.pages(np.arange(ROWS))), factor


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_each_byte_is_read_once_where_ranks_divide_the_lanes(sorted_table: Sorted, ranks: int) -> None:
    factor, said = read_bytes(sorted_table, ranks, batch_size=32, **SHUFFLED)
    assert 1.0 <= factor <= 1.05
    assert said == 1.0


@pytest.mark.parametrize(("ranks", "batch_size"), [(3, 16), (7, 16), (6, 2), (3, 1)])
def test_otherwise_stats_report_the_read_factor(sorted_table: Sorted, ranks: int, batch_size: int) -> None:
    factor, said = read_bytes(sorted_table, ranks, batch_size=batch_size, **SHUFFLED)
    assert 1.05 < factor <= 1.05 * said
    assert said <= 1.3 * factor


def test_each_byte_is_read_once_in_order(sorted_table: Sorted) -> None:
    factor, said = read_bytes(sorted_table, 1, batch_size=32, shuffle=False)
    assert 1.0 <= factor <= 1.05
    assert said == 1.0


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_resumed_run_does_not_read_consumed_rows(
    sorted_table: Sorted, share: float, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    can_plan = SpanReader._can_plan
    monkeypatch.setattr(  # a loop that is slower than its reads would see those of the next epoch
        SpanReader, "_can_plan", lambda self: can_plan(self) and self._planning_epoch <= self._reading_epoch
    )
    options: dict[str, Any] = {**SHUFFLED, "batch_size": 32}
    with sorted_table.ds.pytorch(**options) as loader:
        batches = iter(loader)
        for _ in range(round(share * len(loader))):
            next(batches)
        state = loader.state_dict()
    sorted_table.store.reads.clear()
    with sorted_table.ds.pytorch(**options, distributed=(0, ranks)) as loader:
        loader.load_state_dict(state)
        rest = joined([batch["n"].numpy() for batch in loader])
    pages = sorted_table.pages(rest, ["x"])  # small columns are cached in groups of pages
    assert read_for(sorted_table.store.reads, pages) <= 1.05 * size_of(pages)


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_the_first_batch_reads_parts_of_blocks(
    sorted_table: Sorted, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.planning._whole_blocks._FIRST_LOCAL_BYTES", 16 << 10)
    options: dict[str, Any] = {"shuffle": replace(SHUFFLE, block_bytes=256 << 10), "num_workers": 1, "batch_size": 8}
    with sorted_table.ds.pytorch(**options) as loader:
        state = loader.state_dict() | {"consumed": round(share * ROWS / 8) * 8}
    sorted_table.store.reads.clear()
    with sorted_table.ds.pytorch(**options) as loader:
        loader.load_state_dict(state)
        rows = next(iter(loader))["n"].numpy()
    pages = sorted_table.pages(rows, ["x"])
    assert read_for(sorted_table.store.reads, pages) <= 0.5 * 4 * (256 << 10)


def test_the_window_stays_within_budget_and_reads_each_byte_once() -> None:
    store = RecordingStore(open_store("memory://"))
    ds = penstock.create(store, {"x": Column(Tensor("uint8", (X_BYTES,)), page_bytes=32 * X_BYTES)})
    ds.append({"x": np.zeros((40_000, X_BYTES), np.uint8)})
    ds.commit()
    shuffle = replace(SHUFFLE, block_bytes=128 << 10)
    options: dict[str, Any] = {**SHUFFLED, "shuffle": shuffle, "batch_size": 50, "memory_budget": 12 << 20}
    with ds.pytorch(**options) as loader:
        for _ in range(3):
            assert sum(len(batch["x"]) for batch in loader) == 40_000
        stats = loader.stats()
    assert stats.notes == ()
    assert stats.window_peak_bytes <= stats.budget_bytes
    assert stats.bytes <= 3 * 1.05 * 40_000 * X_BYTES + stats.budget_bytes  # the next epoch has been begun


class BusyStore(CountingStore):
    """Counts the reads of data that have started and that have ended; a read takes a moment, as from a bucket."""

    def __init__(self, store: Store, *, is_local: bool) -> None:
        super().__init__(store)
        self.is_local = is_local
        self.started = self.ended = 0

    def get(self, key: str, *, byte_range: ByteRange | None = None, etag: str | None = None) -> memoryview:
        if not key.startswith("data/"):
            return super().get(key, byte_range=byte_range, etag=etag)
        with self._lock:
            self.started += 1
        time.sleep(0.001)
        try:
            return super().get(key, byte_range=byte_range, etag=etag)
        finally:
            with self._lock:
                self.ended += 1


@pytest.mark.parametrize("shuffle", [False, True], ids=["in order", "shuffled"])
@pytest.mark.parametrize("is_local", [True, False], ids=["local", "remote"])
def test_at_most_the_next_epoch_is_prefetched_and_nothing_while_idle(is_local: bool, shuffle: bool) -> None:
    store = BusyStore(open_store("memory://"), is_local=is_local)
    ds = penstock.create(store, {"x": Column(Tensor("uint8", (X_BYTES,)), page_bytes=8 * X_BYTES, file_bytes=64 << 10)})
    ds.append({"x": np.zeros((600, X_BYTES), np.uint8)})
    ds.commit()
    table_bytes = 600 * X_BYTES
    with ds.pytorch(batch_size=30, num_workers=2, shuffle=shuffle) as loader:
        for epoch in range(1, 4):
            assert sum(len(batch["x"]) for batch in loader) == 600
            assert soon(lambda: store.started == store.ended), "requests in flight complete"
            started = store.started
            time.sleep(0.2)
            assert store.started == started, "nothing is requested between epochs"
            assert store.bytes["get"] <= 1.2 * (epoch + 1) * table_bytes
        batches = iter(loader)
        next(batches)
        assert soon(lambda: store.started == store.ended)
        time.sleep(0.2)
        assert store.bytes["get"] <= 1.2 * 5 * table_bytes, "nor beyond the next epoch while a step takes long"
        del batches
        started = store.started
        time.sleep(0.2)
        assert store.started == started, "nor after an iterator was dropped"


def entropy(labels: Int64Array, batch_size: int) -> float:
    """Mean entropy of the labels of a batch, in bits."""
    found = []
    for batch in labels[: len(labels) // batch_size * batch_size].reshape(-1, batch_size):
        shares = np.unique(batch, return_counts=True)[1] / batch_size
        found.append(-(shares * np.log2(shares)).sum())
    return float(np.mean(found))


@pytest.mark.parametrize(("lanes", "spread"), [(4, 25), (24, 4)])
def test_label_entropy_of_a_sorted_table_is_close_to_a_true_shuffle(
    sorted_table: Sorted, lanes: int, spread: float
) -> None:
    options = {**SHUFFLED, "shuffle": replace(SHUFFLE, lanes=lanes, spread=spread)}
    with sorted_table.ds.select(["n", "x"]).pytorch(batch_size=64, **options) as loader:
        rows = joined([batch["n"].numpy() for batch in loader])
        quality = loader.stats().quality
    labels = np.arange(ROWS) * 100 // ROWS
    true = np.random.default_rng(0).permutation(ROWS)
    assert entropy(labels[rows], 64) >= 0.9 * entropy(labels[true], 64)
    drawn = [len(np.unique(batch // 32)) for batch in rows[: ROWS // 64 * 64].reshape(-1, 64)]
    assert quality is not None
    assert quality.blocks_per_batch == pytest.approx(np.mean(drawn), rel=0.15)
    assert quality.expected == pytest.approx(200 * (1 - (1 - 1 / 200) ** 64), rel=0.02)
    assert quality.ratio > 0.7


def test_a_poor_shuffle_is_reported(sorted_table: Sorted) -> None:
    options = {**SHUFFLED, "shuffle": replace(SHUFFLE, lanes=1, spread=1)}
    with sorted_table.ds.pytorch(batch_size=64, **options) as loader:
        for _ in loader:
            pass
        stats = loader.stats()
    assert stats.quality is not None
    assert stats.quality.ratio < 0.2
    assert str(stats.quality) in str(stats)


@pytest.mark.parametrize("shuffle", [Shuffle(block_bytes=1000, lanes=4, spread=2), False], ids=["shuffled", "in order"])
def test_a_step_reads_only_the_manifests_of_its_rows(shuffle: bool | Shuffle) -> None:
    """Of 32 fragments each; five times the fragments cost only the nodes above them."""
    counts = []
    for fragments in (80 * 32, 400 * 32):
        store = RecordingStore(open_store("memory://"))
        ds = of_fragments(store, fragments, 1000)
        store.reads.clear()
        options: dict[str, Any] = {"batch_size": 10, "shuffle": shuffle}
        with ds.select(["_row_id"]).pytorch(**options) as loader:
            batches = iter(loader)
            for _ in range(20):
                assert len(next(batches)["_row_id"]) == 10
            state = loader.state_dict()
        leaves, above = -(-fragments // 32), len(list(_inner(ds)))
        assert above < leaves / 8
        counts.append(store.count("manifests/") - above)
        assert counts[-1] <= (12 if shuffle else 4) < leaves
        store.reads.clear()
        again = penstock.load(store)
        with again.select(["_row_id"]).pytorch(**options) as loader:
            loader.load_state_dict({**state, "consumed": 3 * len(ds) // 4})
            next(iter(loader))
        assert store.count("manifests/") - above <= (12 if shuffle else 4)
    assert abs(counts[0] - counts[1]) <= 4


def _inner(ds: Dataset) -> Sequence[str]:
    """The nodes above the leaves."""
    found: list[str] = []
    waiting = list(ds._session.snapshot.nodes)
    while waiting:
        node = waiting.pop()
        if node.level:
            found.append(node.id)
            waiting += ds._session.tree.load(node).nodes
    return found
