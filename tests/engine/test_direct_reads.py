"""Large rows are read directly into batches; the tests of order and resume cover such a table too."""

from collections import Counter
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock import Shuffle
from penstock.errors import CorruptError
from penstock.table import RowPages
from tests.engine.reading import LARGE_BYTES, Int64Array, batch_of, joined, large
from tests.servers import new_location

pytestmark = pytest.mark.usefixtures("not_resident")

MIXED: dict[str, Any] = {"shuffle": Shuffle(block_bytes=6 * LARGE_BYTES, lanes=3), "batch_size": 8}


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts of rows read into batches, of reads into the slab, and of pages that need parsing."""
    counted: Counter[str] = Counter()
    module: Any = import_module("penstock.engine.window._table_window")
    for holder, name in ((RowPages, "read"), (module, "read_direct"), (module, "read_pages")):
        real = getattr(holder, name)

        def counting(*args: Any, name: str = name, real: Any = real) -> Any:
            counted[name] += len(args[0].pages) if name == "read" else 1
            return real(*args)

        monkeypatch.setattr(holder, name, counting)
    return counted


@pytest.mark.parametrize("kind", ["folder"])
@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"shuffle": False}, {"batch_size": 3}], ids=str)
@pytest.mark.parametrize("rows_per_page", [1, 2, 4])
def test_large_rows_are_read_directly_into_batches(
    kind: str, options: dict[str, Any], rows_per_page: int, reads: Counter[str]
) -> None:
    """Each with its page, if it has one of its own; else runs of pages are read directly into the slab."""
    store = new_location(kind).open()
    large(store, 100, 61, rows_per_page=rows_per_page)
    with penstock.load(store).pytorch(**(MIXED | options)) as loader:
        for _ in range(2):
            seen = joined([batch_of(batch).real for batch in loader])
            assert np.array_equal(np.sort(seen), np.arange(161))
    assert (reads["read"] >= 2 * 161) == (rows_per_page == 1)  # and some of the third epoch
    assert (reads["read_direct"] > 0) == (rows_per_page > 1)


@pytest.mark.parametrize("options", [{}, {"shuffle": False}, {"batch_size": 3}], ids=str)
def test_a_resumed_run_reads_directly_into_batches(
    tmp_path: Path, options: dict[str, Any], reads: Counter[str]
) -> None:
    """And none of the consumed rows."""
    ds, _ = large(str(tmp_path / "t"), 161)
    with ds.pytorch(**(MIXED | options)) as loader:
        batches = iter(loader)
        before = [batch_of(next(batches)).real for _ in range(len(loader) // 2)]
        state = loader.state_dict()
    reads.clear()
    with ds.pytorch(**(MIXED | options)) as loader:
        loader.load_state_dict(state)
        after = [batch_of(batch).real for batch in loader]
    assert np.array_equal(np.sort(joined(before + after)), np.arange(161))
    assert reads["read"] > 0
    assert reads["read_direct"] == 0


def test_held_batches_are_not_overwritten(tmp_path: Path) -> None:
    ds, _ = large(str(tmp_path / "t"), 150)
    with ds.pytorch(**MIXED) as loader:
        held = [batch for _ in range(3) for batch in loader]
    rows: list[Int64Array] = [batch_of(batch).real for batch in held]
    assert Counter(joined(rows).tolist()) == Counter(dict.fromkeys(range(150), 3))


def test_rows_that_pad_the_last_step_are_read_directly_too(tmp_path: Path, reads: Counter[str]) -> None:
    ds, _ = large(str(tmp_path / "t"), 61)
    seen: list[Int64Array] = []
    for rank in range(3):
        with ds.pytorch(**MIXED, distributed=(rank, 3)) as loader:
            seen += [batch_of(batch).real for batch in loader]
    assert sorted(joined(seen).tolist()) == list(range(61))
    assert reads["read"] > 61


@pytest.mark.parametrize("options", [{}, {"num_workers": 0}, {"shuffle": False}], ids=str)
def test_a_damaged_page_is_never_delivered(tmp_path: Path, options: dict[str, Any]) -> None:
    ds, _ = large(str(tmp_path / "t"), 120)
    path = max((tmp_path / "t" / "data").iterdir(), key=lambda file: file.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)
    with pytest.raises(CorruptError, match="checksum"):
        list(map(batch_of, ds.pytorch(**(MIXED | options))))
    with ds.pytorch(**(MIXED | options), bad_samples="replace") as loader:
        batches = list(loader)
    flagged = torch.cat([batch["n"][batch["_pad"]] for batch in batches])
    real = sorted(joined([batch_of(batch).real for batch in batches]).tolist())
    assert 1 <= len(flagged) <= 4
    assert len(real) == len(set(real)) == 120 - len(flagged)
    assert {bad.row_id for bad in loader.stats().bad_samples} == set(range(120)) - set(real)


def test_rows_that_are_read_directly_take_no_room_in_the_window(tmp_path: Path, reads: Counter[str]) -> None:
    """So a budget far below the window of the shuffle reads each byte once."""
    ds, _ = large(str(tmp_path / "t"), 1000)
    shuffle = replace(MIXED["shuffle"], spread=1)
    with ds.pytorch(**MIXED | {"shuffle": shuffle}, memory_budget=1 << 20) as loader:
        rows = joined([batch_of(batch).real for batch in loader])
        stats = loader.stats()
    assert np.array_equal(np.sort(rows), np.arange(1000))
    assert stats.window_peak_bytes < 20 * LARGE_BYTES
    assert stats.bytes <= 2.5 * 1000 * LARGE_BYTES  # of two epochs
    assert reads["read"] >= 1000
