"""Several readers, each with some lanes and some of the shared window: the same batches, whoever of them dies."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Column, Dataset, Shuffle, Tensor, Text, Workers
from penstock.engine import _sizing
from penstock.engine.window import BuildTask, TableTask, WindowRows
from penstock.errors import CorruptError
from penstock.plan import SpanSteps
from penstock.table import RawColumns, RowPages
from tests.engine.test_bad_samples import page_of
from tests.engine.watch import reader_processes

ROWS = 3000
ORDER: dict[str, Any] = {
    "batch_size": 16,
    "shuffle": Shuffle(block_bytes=4000, lanes=6, spread=1, seed=3),
    "memory_budget": 4 << 20,
}
PROCESSES: dict[str, Any] = {"num_workers": Workers(2, "process")}


@pytest.fixture(autouse=True)
def _several_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader for each builder, and no table is small enough to stay in the window."""
    monkeypatch.setattr(_sizing, "_BUILDERS_PER_READER", 1)
    monkeypatch.setattr(_sizing.LoaderSizing, "_fits", lambda *_, **__: False)


def new_table(path: Any, rows: int = ROWS) -> Dataset:
    made = penstock.create(
        path,
        {
            "n": int,
            "x": Column(Tensor("float32", (20,)), page_bytes=2048),
            "text": Column(Text(), nullable=True, page_bytes=1024),
            "maybe": Column(Tensor("float32", (3,)), nullable=True),
        },
    )
    values = np.arange(20 * rows, dtype=np.float32).reshape(-1, 20)
    made.append(
        {
            "n": range(rows),
            "x": values,
            "text": [f"row {k}" * (k % 9) if k % 7 else None for k in range(rows)],
            "maybe": [row[:3] if k % 5 else None for k, row in enumerate(values)],
        }
    )
    made.commit()
    return made


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return new_table(tmp_path_factory.mktemp("readers") / "t")


def values(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: column if isinstance(column, list) else column.tolist() for name, column in batch.items()}


def batches(data: Any, **options: Any) -> list[Any]:
    with data.numpy(**{**ORDER, **options}) as loader:
        return [values(batch) for _ in range(2) for batch in loader]


@pytest.mark.parametrize("ranks", [1, 4])
def test_the_batches_are_the_same(ds: Dataset, ranks: int) -> None:
    """With four ranks lanes are shared."""
    place = {"distributed": (ranks - 1, ranks)}
    assert batches(ds, **PROCESSES, **place) == batches(ds, num_workers=0, **place)


def test_rows_of_mixtures_and_weights_are_the_same(ds: Dataset, tmp_path: Path) -> None:
    other = new_table(tmp_path / "other", 500)
    mixed = penstock.mix({"a": ds, "b": other}, weights={"a": 0.7, "b": 0.3}, stop=1500)
    for data in (mixed, ds.weighted(np.arange(1, ROWS + 1) % 11, rows=900)):
        assert batches(data, **PROCESSES) == batches(data, num_workers=0)


def test_a_resume_and_a_death_of_each_reader_lose_nothing(ds: Dataset) -> None:
    expected = batches(ds, num_workers=0)
    with ds.numpy(**ORDER, **PROCESSES) as loader:
        seen = [values(batch) for _, batch in zip(range(50), loader, strict=False)]
        state = loader.state_dict()
        assert len(reader_processes()) == 2
    with ds.numpy(**ORDER, **PROCESSES) as loader:
        loader.load_state_dict(state)
        for _ in range(2):
            for batch in loader:
                seen.append(values(batch))
                if len(seen) in (60, 120, 250):
                    readers = reader_processes()
                    os.kill(readers[len(seen) // 60 % len(readers)], signal.SIGKILL)
    assert seen[: len(expected)] == expected


def test_bad_rows_are_the_same(tmp_path: Path) -> None:
    made = new_table(tmp_path / "t")
    for name, row in (("x", 70), ("text", 1500)):
        path, middle, _ = page_of(made, tmp_path / "t", name, row)
        data = bytearray(path.read_bytes())
        data[middle] ^= 16
        path.write_bytes(data)
    with pytest.raises(CorruptError):
        batches(made, **PROCESSES)
    several, one = (batches(made, bad_samples="replace", **each) for each in (PROCESSES, {"num_workers": 0}))
    assert several == one
    assert any(any(batch["_pad"]) for batch in one)


@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), st.booleans(), st.booleans(), st.data())
@settings(deadline=None)
def test_the_parts_of_a_task_are_the_task(owners: list[int], constant: bool, whole: bool, data: st.DataObject) -> None:
    rows = len(owners)
    from_files = np.array(data.draw(st.lists(st.booleans(), min_size=rows, max_size=rows)))
    pages = RowPages(["a", "b"], np.where(from_files[:, None], np.arange(5 * rows).reshape(rows, 5) % 2, -1))
    blocks = [RawColumns({}) for _ in range(4)]
    task = TableTask(
        table=0,
        places=slice(None) if whole else 2 * np.arange(rows),
        located=WindowRows(
            np.arange(rows) * 3,
            blocks,
            np.arange(rows) % 4,
            np.arange(rows),
            {"x": pages},
        ),
        samples=None,
        padding=np.arange(rows) % 2 == 0,
        epochs=4 if constant else np.arange(rows) // 3,
        positions=np.arange(rows) + 100,
        damaged=tuple(data.draw(st.sets(st.integers(0, rows - 1)))),
        slab_capacity=77,
    )
    steps = SpanSteps(0, 0, 0, (rows if whole else 2 * rows,), (rows,), True, False)
    keys = np.arange(steps.rows) * 7
    parts: list[BuildTask] = []
    for owner in range(3):
        mine = np.flatnonzero(np.array(owners) == owner)
        part = [
            TableTask(
                table=0,
                places=mine if whole else task.places[mine],  # type: ignore[index]
                located=task.located.take(mine),
                samples=None,
                padding=task.padding[mine],  # type: ignore[index]
                epochs=4 if constant else task.epochs[mine],  # type: ignore[index]
                positions=task.positions[mine],  # type: ignore[index]
                damaged=tuple(np.flatnonzero(np.isin(mine, task.damaged)).tolist()),
                slab_capacity=70 + owner,
            )
        ]
        own = np.zeros_like(keys)
        own[part[0].places] = keys[part[0].places]
        parts.append(BuildTask(steps, part if len(mine) else [], own))
    joined = BuildTask.joined(parts)
    [table] = joined.tables
    here = np.arange(steps.rows)[task.places]
    assert np.array_equal(np.arange(steps.rows)[table.places], here)
    assert joined.keys is not None
    assert np.array_equal(joined.keys[here], keys[here])
    assert np.array_equal(table.located.slab_rows, task.located.slab_rows)
    found = [table.located.blocks[number] for number in table.located.block_index.tolist()]
    assert all(one is blocks[index % 4] for index, one in enumerate(found))
    assert np.array_equal(table.located.rows, np.arange(rows))
    read = table.located.files["x"]
    assert np.array_equal(read.elsewhere, np.flatnonzero(~from_files))
    assert [[read.keys[row[0]], *row[1:]] for row in read.pages[from_files].tolist()] == [
        [pages.keys[row[0]], *row[1:]] for row in pages.pages[from_files].tolist()
    ]
    assert np.array_equal(table.padding, task.padding)  # type: ignore[arg-type]
    assert np.array_equal(table.each_epoch, task.each_epoch)
    assert np.array_equal(table.positions, task.positions)  # type: ignore[arg-type]
    assert table.damaged == tuple(sorted(task.damaged))
