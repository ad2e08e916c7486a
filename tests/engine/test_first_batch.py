"""The first batches of a run wait for their own pages: not for blocks, and no byte is read twice for it."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import Column, Dataset, Image, Shuffle, Tensor
from penstock.engine.workers._reading import SpanReader
from penstock.storage import open_store
from tests.engine.reading import Int64Array, joined
from tests.engine.test_bytes import RecordingStore, Sorted, read_for, size_of

BATCH_SIZE = 32
SHUFFLE = Shuffle(block_bytes=32 << 10, lanes=4, spread=20)


class RemoteStore(RecordingStore):
    is_local = False


@pytest.fixture(scope="module")
def remote_table() -> Sorted:
    return Sorted(RemoteStore(open_store("memory://")))


@pytest.fixture(autouse=True)
def one_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that is slower than its reads would see those of the next epoch; and hedges read bytes twice."""
    monkeypatch.setattr("penstock.storage._fetch._HEDGE_MIN_S", 1e9)
    can_plan = SpanReader._can_plan
    monkeypatch.setattr(
        SpanReader, "_can_plan", lambda self: can_plan(self) and self._planning_epoch <= self._reading_epoch
    )


def rows_from(ds: Dataset, consumed: int, *, batches: int | None = None, **options: Any) -> Int64Array:
    chosen: dict[str, Any] = {"shuffle": SHUFFLE, "num_workers": 1, "batch_size": BATCH_SIZE, **options}
    with ds.pytorch(**chosen) as loader:
        loader.load_state_dict(loader.state_dict() | {"consumed": consumed})
        return joined([batch["n"].numpy() for batch, _ in zip(loader, range(batches or len(loader)), strict=False)])


def in_parts_and_whole(
    ds: Dataset, store: RecordingStore, consumed: int, **options: Any
) -> list[tuple[list[int], int]]:
    """The rest of an epoch and the bytes that it reads, with blocks in parts at first and without."""
    found = []
    for first_bytes in (2 << 10, 1 << 30):
        store.reads.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("penstock.engine.planning._whole_blocks._FIRST_BYTES", first_bytes)
            rows = rows_from(ds, consumed, **options)
        read = sum(end - start for key, start, end in store.reads if key.startswith("data/"))
        found.append((rows.tolist(), read))
    return found


@pytest.mark.parametrize("bad_samples", ["raise", "replace"])
@pytest.mark.parametrize("consumed", [0, 100 * BATCH_SIZE], ids=["fresh", "resumed"])
def test_the_first_batch_reads_its_pages(remote_table: Sorted, consumed: int, bad_samples: str) -> None:
    remote_table.store.reads.clear()
    rows = rows_from(remote_table.ds, consumed, batches=1, bad_samples=bad_samples)
    pages = remote_table.pages(rows, ["x"])
    assert len(np.unique(rows // 32)) * 32 * 1024 >= 2.5 * size_of(pages), "its blocks are much larger"
    assert read_for(remote_table.store.reads, pages) <= 1.5 * size_of(pages), "with requests in flight for the next"


@given(
    st.sampled_from((8 << 10, 32 << 10, 128 << 10)),
    st.integers(1, 6),
    st.sampled_from((0.5, 3.0, 20.0, 1000.0)),
    st.integers(1, 300),
    st.floats(0, 1),
)
@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
def test_parts_change_neither_the_order_nor_the_bytes(
    remote_table: Sorted, block_bytes: int, lanes: int, spread: float, batch_size: int, share: float
) -> None:
    shuffle = Shuffle(block_bytes=block_bytes, lanes=lanes, spread=spread)
    (rows, read), (same, whole) = in_parts_and_whole(
        remote_table.ds, remote_table.store, round(share * 6400), shuffle=shuffle, batch_size=batch_size
    )
    assert rows == same
    assert read <= whole, "pages between others that were consumed before a resume may be left out"


def test_parts_share_no_pages_of_columns_that_are_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.engine._sizing._MAX_CACHE_BYTES", 0)
    store = RemoteStore(open_store("memory://"))
    kinds = {"x": Tensor("uint8", (1024,)), "y": Tensor("uint8", (512,)), "n": Tensor("int64")}
    ds = penstock.create(store, {name: Column(kind, page_bytes=4096) for name, kind in kinds.items()})
    ds.append({"x": np.zeros((4096, 1024), np.uint8), "y": np.zeros((4096, 512), np.uint8), "n": np.arange(4096)})
    ds.commit()
    (rows, read), (same, whole) = in_parts_and_whole(ds, store, 0)
    assert rows == same
    assert read == whole


def test_the_first_batch_does_not_import_pandas(tmp_path: Path) -> None:
    """It takes longer than all else, and pyarrow imports it for its first conversion to numpy."""
    ds = penstock.create(str(tmp_path), {"x": Tensor("uint8", (4,)), "image": Image("png"), "t": str, "label": int})
    images = np.zeros((8, 5, 6, 3), np.uint8)
    ds.append({"x": images[:, 0, :4, 0], "image": list(images), "t": list("abcdefgh"), "label": np.arange(8)})
    ds.commit()
    program = f"""
import sys, penstock
with penstock.load({str(tmp_path)!r}).numpy(batch_size=4, shuffle=True, num_workers=2) as loader:
    assert len(next(iter(loader))["t"]) == 4
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
