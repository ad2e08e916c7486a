"""The loader's contract: epochs, early exit, errors, state, resources and leases."""

import gc
import json
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock import Column, Dataset, Loader, Shuffle, Tensor, Text
from penstock.errors import (
    AccessDeniedError,
    CorruptError,
    InvalidInputError,
    PenstockWarning,
    SnapshotExpiredError,
    StorageError,
)
from penstock.storage import open_store
from penstock.testing import Fault, FaultyStore
from tests.adapters.transforms import BrokenError, fails_at_threes, slow
from tests.engine.watch import open_files, our_threads, resident_bytes, soon, threads_end

ROWS = 400
SCHEMA = {"n": Column(Tensor("int64"), page_bytes=512), "x": Column(Tensor("float32", (32,)), page_bytes=1024)}
SHUFFLE = Shuffle(block_bytes=2048, lanes=4)
MIXED: dict[str, Any] = {"shuffle": SHUFFLE}


def fill(ds: Dataset, rows: int = ROWS) -> Dataset:
    n = np.arange(rows)
    for part in np.array_split(n, 3):
        ds.append({"n": part, "x": np.repeat(part, 32).reshape(-1, 32).astype(np.float32)})
    ds.commit()
    return ds


@pytest.fixture(scope="module")
def ds() -> Dataset:
    return fill(penstock.create("memory://", SCHEMA))


@pytest.fixture(autouse=True)
def _no_threads_left() -> Iterator[None]:
    yield
    assert threads_end(), our_threads()


def numbers(batches: Any) -> list[int]:
    return [n for batch in batches for n in batch["n"].tolist()]


class TestEpochs:
    @pytest.mark.parametrize("num_workers", [0, 1, 3])
    def test_an_epoch_ends_and_the_next_one_has_another_order(self, ds: Dataset, num_workers: int) -> None:
        loader = ds.pytorch(batch_size=32, num_workers=num_workers, **MIXED)
        epochs = [numbers(loader) for _ in range(4)]
        assert all(sorted(epoch) == list(range(ROWS)) for epoch in epochs)
        assert len({tuple(epoch) for epoch in epochs}) == 4
        assert len(loader) == 13

    def test_an_iterator_that_has_ended_stays_ended(self, ds: Dataset) -> None:
        loader = ds.pytorch(batch_size=200)
        batches = iter(loader)
        assert len(list(batches)) == 2
        assert list(batches) == []
        assert next(batches, None) is None

    def test_set_epoch_selects_the_order(self, ds: Dataset) -> None:
        loader = ds.pytorch(batch_size=32, **MIXED)
        epochs = [numbers(loader) for _ in range(3)]
        for epoch in (2, 0, 1, 1):
            loader.set_epoch(epoch)
            assert numbers(loader) == epochs[epoch]
        assert numbers(loader) == epochs[2], "after the first comes the second"
        for epoch in range(3):  # the usual loop
            loader.set_epoch(epoch)
            assert numbers(loader) == epochs[epoch]

    def test_the_epoch_number_advances_after_an_early_exit(self, ds: Dataset) -> None:
        epochs = [numbers(loader) for loader in [ds.pytorch(batch_size=32, **MIXED)] for _ in range(3)]
        loader = ds.pytorch(batch_size=32, **MIXED)
        assert numbers(islice(loader, 3)) == epochs[0][:96]
        assert numbers(loader) == epochs[1]
        assert numbers(loader) == epochs[2]

    def test_without_shuffle_all_epochs_are_in_order(self, ds: Dataset) -> None:
        loader = ds.pytorch(batch_size=77)
        assert [numbers(loader) for _ in range(2)] == [list(range(ROWS))] * 2


class TestEarlyExit:
    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_breaking_out_of_a_loop_stops_its_threads(self, ds: Dataset, num_workers: int) -> None:
        loader = ds.pytorch(batch_size=8, num_workers=num_workers, **MIXED)
        for _ in range(3):
            for step, _ in enumerate(loader):
                assert our_threads()
                if step == 2:
                    break
            assert threads_end(), our_threads()
        assert sorted(numbers(loader)) == list(range(ROWS))

    def test_an_iterator_that_is_dropped_stops_its_threads(self, ds: Dataset) -> None:
        loader = ds.pytorch(batch_size=8, num_workers=2, **MIXED)
        batches = iter(loader)
        next(batches)
        del batches
        assert threads_end(), our_threads()

    def test_a_loader_that_is_dropped_stops_its_threads(self, ds: Dataset) -> None:
        loader = ds.pytorch(batch_size=8, num_workers=2, **MIXED)
        assert len(list(loader)) == 50
        assert our_threads(), "the next epoch is prefetched"
        del loader
        assert threads_end(), our_threads()

    def test_an_iterator_outlives_its_loader(self, ds: Dataset) -> None:
        batches = iter(ds.pytorch(batch_size=8, num_workers=2, **MIXED))
        gc.collect()
        assert sorted(numbers(batches)) == list(range(ROWS))

    def test_an_error_in_the_loop_stops_its_threads(self, ds: Dataset) -> None:
        loader = ds.pytorch(batch_size=8, num_workers=2)

        def train() -> None:
            for _ in loader:
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            train()
        assert threads_end(), our_threads()
        assert numbers(loader) == list(range(ROWS))

    def test_closing_twice_and_iterating_again(self, ds: Dataset) -> None:
        loader = ds.pytorch(batch_size=32, num_workers=2, **MIXED)
        loader.close()
        first = numbers(loader)
        loader.close()
        loader.close()
        assert threads_end(), our_threads()
        second = numbers(loader)
        assert sorted(first) == sorted(second) == list(range(ROWS))
        assert first != second

    def test_a_loader_is_a_context(self, ds: Dataset) -> None:
        with ds.pytorch(batch_size=32, num_workers=2) as loader:
            assert numbers(loader) == list(range(ROWS))
        assert threads_end(), our_threads()

    def test_closing_during_iteration_raises(self, ds: Dataset) -> None:
        loader = ds.pytorch(batch_size=8, num_workers=2)
        batches = iter(loader)
        next(batches)
        loader.close()
        with pytest.raises(InvalidInputError, match="closed while it was read"):
            list(batches)

    def test_a_new_iteration_ends_the_one_before(self, ds: Dataset) -> None:
        loader = ds.pytorch(batch_size=8, num_workers=2, **MIXED)
        first = iter(loader)
        next(first)
        assert sorted(numbers(loader)) == list(range(ROWS))
        with pytest.raises(InvalidInputError, match="another iteration of this loader has begun"):
            list(first)
        with pytest.raises(InvalidInputError, match=r"another iteration of this loader has begun.*a second loader"):
            list(zip(loader, loader, strict=True))
        assert sorted(numbers(loader)) == list(range(ROWS))

    def test_two_loaders_at_once(self, ds: Dataset) -> None:
        one = ds.pytorch(batch_size=8, **MIXED)
        other = ds.pytorch(batch_size=8, num_workers=3, shuffle=replace(SHUFFLE, seed=5))
        pairs = list(zip(one, other, strict=True))
        assert sorted(numbers(left for left, _ in pairs)) == list(range(ROWS))
        assert sorted(numbers(right for _, right in pairs)) == list(range(ROWS))
        for _ in islice(one, 3):  # one inside the other, as an evaluation inside a training loop
            assert sorted(numbers(other)) == list(range(ROWS))

    def test_a_loader_is_read_from_any_thread(self, ds: Dataset) -> None:
        found: list[list[int]] = []
        loaders = [ds.pytorch(batch_size=8, num_workers=1, **MIXED) for _ in range(4)]
        threads = [threading.Thread(target=lambda own=loader: found.append(numbers(own))) for loader in loaders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == 4
        assert all(each == found[0] for each in found)
        assert sorted(found[0]) == list(range(ROWS))


class TestErrors:
    @pytest.mark.parametrize("num_workers", [0, 1, 4])
    @pytest.mark.parametrize("batch_size", [1, 5, 64])
    def test_a_transform_error_is_raised_at_its_position(self, ds: Dataset, num_workers: int, batch_size: int) -> None:
        loader = ds[10:].pytorch(batch_size=batch_size, num_workers=num_workers, transform=fails_at_threes)
        seen: list[int] = []
        with pytest.raises(BrokenError, match="row 13 ends with a three") as caught:
            seen.extend(n for batch in loader for n in batch["n"].tolist())
        assert seen == list(range(10, 13 - (3 % batch_size if batch_size < 64 else 3)))
        assert caught.value.__notes__ == ["in row 13 of the table (row id 13)"]
        assert threads_end(), our_threads()
        with pytest.raises(BrokenError):
            list(loader)

    def test_a_batch_transform_error_is_raised_at_its_position(self, ds: Dataset) -> None:
        def picky(batch: dict[str, Any]) -> dict[str, Any]:
            if 100 in batch["n"]:
                raise BrokenError("a hundred")
            return batch

        seen: list[int] = []
        loader = ds.pytorch(batch_size=8, batch_transform=picky, num_workers=3)
        with pytest.raises(BrokenError, match="a hundred"):
            seen.extend(n for batch in loader for n in batch["n"].tolist())
        assert seen == list(range(96))

    def test_a_loader_can_resume_after_an_error(self, ds: Dataset) -> None:
        failing = [True]

        def once(sample: dict[str, Any]) -> dict[str, Any]:
            if failing[0] and sample["n"] == 50:
                raise BrokenError("once")
            return sample

        loader = ds.pytorch(batch_size=16, transform=once, num_workers=2)
        with pytest.raises(BrokenError):
            list(loader)
        state = loader.state_dict()
        failing[0] = False
        loader.load_state_dict(state)
        assert numbers(loader) == list(range(48, ROWS)), "it continues after the last delivered batch"
        assert numbers(loader) == list(range(ROWS))

    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_a_store_error_is_raised_and_the_loader_recovers(self, num_workers: int) -> None:
        store = FaultyStore(open_store("memory://"))
        table = fill(penstock.create(store, SCHEMA))
        loader = table.pytorch(batch_size=16, num_workers=num_workers)
        assert numbers(loader) == list(range(ROWS))
        loader.close()
        store.faults = (Fault("fail_before", "get", key="data/*", times=1000),)
        with pytest.raises(StorageError, match="injected by a test"):
            list(loader)
        store.faults = ()
        assert numbers(loader) == list(range(ROWS))

    def test_a_damaged_page_is_never_delivered(self, tmp_path: Path) -> None:
        table = fill(penstock.create(tmp_path / "t", SCHEMA))
        path = max((tmp_path / "t" / "data").iterdir(), key=lambda path: path.stat().st_size)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
        with pytest.raises(CorruptError):
            list(table.pytorch(batch_size=16))

    @pytest.mark.usefixtures("not_resident")
    def test_a_page_damaged_after_an_earlier_epoch_is_never_delivered(self, tmp_path: Path) -> None:
        table = penstock.create(tmp_path / "t", {"x": Tensor("float32", (32,))})
        table.append({"x": np.zeros((5000, 32), np.float32)})
        [path] = (tmp_path / "t" / "data").iterdir()
        with table.pytorch(batch_size=16) as loader:
            list(loader)
            with path.open("r+b") as file:
                file.seek(path.stat().st_size // 2)
                file.write(b"not a zero")
            with pytest.raises(CorruptError, match="page"):
                list(chain.from_iterable(repeat(loader, 100)))  # the first few may have been prefetched

    def test_a_version_that_vacuum_has_removed_is_expired(self, tmp_path: Path) -> None:
        table = fill(penstock.create(tmp_path / "t", SCHEMA))
        old = penstock.load(tmp_path / "t")
        loader = old.pytorch(batch_size=16)
        table.update(positions=slice(None), data={"x": np.zeros((ROWS, 32), np.float32)})
        table.commit()
        penstock.vacuum(table._session.store, older_than=timedelta(0))
        with pytest.raises(SnapshotExpiredError):
            list(loader)


class TestState:
    def test_a_state_is_small_and_points_after_the_last_batch(self, ds: Dataset) -> None:
        whole = numbers(ds.pytorch(batch_size=16, **MIXED))
        loader = ds.pytorch(batch_size=16, **MIXED)
        fresh = loader.state_dict()
        for step, batch in enumerate(loader):
            state = loader.state_dict()
            assert len(json.dumps(state)) < 1024
            if step in (0, 7, 24):
                other = ds.pytorch(batch_size=10, num_workers=0, **MIXED)
                other.load_state_dict(json.loads(json.dumps(state)))
                assert numbers(other) == whole[16 * (step + 1) :]
            assert batch["n"].tolist() == whole[16 * step : 16 * (step + 1)]
        again = ds.pytorch(batch_size=16, **MIXED)
        again.load_state_dict(fresh)
        assert numbers(again) == whole

    def test_states_before_and_after_the_end_of_an_epoch(self, ds: Dataset) -> None:
        for drop_last in (False, True):
            options = {"batch_size": 150, "drop_last": drop_last, **MIXED}
            loader = ds.pytorch(**options)
            steps = len(loader)
            epochs = [numbers(loader) for _ in range(3)]
            loader = ds.pytorch(**options)
            batches = iter(loader)
            for _ in range(steps):
                next(batches)
            before = loader.state_dict()
            assert next(batches, None) is None
            after = loader.state_dict()
            resumed = ds.pytorch(**options)
            resumed.load_state_dict(before)
            assert [numbers(resumed) for _ in range(3)] == [[], epochs[1], epochs[2]]
            resumed = ds.pytorch(**options)
            resumed.load_state_dict(after)
            assert [numbers(resumed) for _ in range(2)] == [epochs[1], epochs[2]]

    def test_set_epoch_of_the_loaded_epoch_keeps_the_position(self, ds: Dataset) -> None:
        loader = ds.pytorch(batch_size=16, **MIXED)
        epochs = [numbers(loader) for _ in range(4)]
        loader = ds.pytorch(batch_size=16, **MIXED)
        loader.set_epoch(2)
        assert numbers(islice(loader, 5)) == epochs[2][:80]
        state = loader.state_dict()
        resumed = ds.pytorch(batch_size=16, **MIXED)
        resumed.load_state_dict(state)
        found = []
        for epoch in range(state["epoch"], 4):  # as a training loop goes on
            resumed.set_epoch(epoch)
            found.append(numbers(resumed))
        assert found == [epochs[2][80:], epochs[3]]
        resumed.load_state_dict(state)
        resumed.set_epoch(1)
        assert numbers(resumed) == epochs[1], "another epoch begins at its beginning"

    def test_a_loader_goes_back_to_a_state_of_its_own(self, ds: Dataset) -> None:
        loader = ds.pytorch(batch_size=16, num_workers=2, **MIXED)
        first = numbers(islice(loader, 4))
        state = loader.state_dict()
        rest = numbers(ds.pytorch(batch_size=16, **MIXED))[64:]
        for _ in range(2):
            loader.load_state_dict(state)
            assert numbers(loader) == rest
        assert sorted(first + rest) == list(range(ROWS))

    def test_a_state_of_another_order_is_rejected(self, ds: Dataset) -> None:
        state = ds.pytorch(batch_size=16, **MIXED).state_dict()
        for other, difference in (
            (ds.pytorch(batch_size=16), "whether rows are shuffled"),
            (ds.pytorch(batch_size=16, shuffle=replace(SHUFFLE, seed=1)), "the seed: 0 there, 1 here"),
            (ds[:50].pytorch(batch_size=16, **MIXED), "the selection"),
            (ds.select(["n"]).pytorch(batch_size=16, **MIXED), "the selection"),
            (ds.pytorch(batch_size=16, shuffle=replace(SHUFFLE, lanes=2)), "the shuffle options"),
        ):
            with pytest.raises(InvalidInputError, match=f"differs in {difference}"):
                other.load_state_dict(state)
        for junk in ({}, {"epoch": 1}, None, {**state, "penstock": 99}, {**state, "order": {}}):
            with pytest.raises(InvalidInputError, match="state"):
                ds.pytorch(batch_size=16, **MIXED).load_state_dict(junk)  # type: ignore[arg-type]

    def test_a_state_of_another_version_says_which_to_open(self, tmp_path: Path) -> None:
        table = fill(penstock.create(tmp_path / "t", SCHEMA))
        loader = table.pytorch(batch_size=16)
        next(iter(loader))
        table.append({"n": [ROWS], "x": np.zeros((1, 32), np.float32)})
        table.commit()
        with pytest.raises(InvalidInputError, match=r"version main@1 \(penstock.load\(…, version='main@1'\)\)"):
            table.pytorch(batch_size=16).load_state_dict(loader.state_dict())
        resumed = penstock.load(tmp_path / "t", version="main@1").pytorch(batch_size=16)
        resumed.load_state_dict(loader.state_dict())
        assert numbers(resumed) == list(range(16, ROWS))


class TestResources:
    def test_two_hundred_epochs_do_not_leak(self, tmp_path: Path) -> None:
        table = penstock.create(tmp_path / "t", {**SCHEMA, "t": Text()})
        n = np.arange(60)
        table.append({"n": n, "x": np.zeros((60, 32), np.float32), "t": [f"row {k}" for k in n]})
        table.commit()
        with penstock.load(tmp_path / "t").pytorch(batch_size=16, num_workers=2, **MIXED) as loader:
            marks = []
            for epoch in range(200):
                assert sum(len(batch["n"]) for batch in loader) == 60
                if epoch in (40, 199):
                    gc.collect()
                    marks.append((resident_bytes(), open_files(), len(our_threads())))
        (bytes_before, files_before, threads_before), (bytes_after, files_after, threads_after) = marks
        assert bytes_after - bytes_before < 16 << 20
        assert files_after <= files_before + 2
        assert threads_after <= threads_before

    def test_a_hundred_early_exits_do_not_leak(self, ds: Dataset) -> None:
        loader = ds.pytorch(batch_size=16, num_workers=2, memory_budget=1 << 20, **MIXED)
        marks = []
        for turn in range(100):
            for _ in islice(loader, 2):
                pass
            if turn in (20, 99):
                assert threads_end(), our_threads()
                marks.append((resident_bytes(), open_files()))
        (bytes_before, files_before), (bytes_after, files_after) = marks
        assert bytes_after - bytes_before < 16 << 20
        assert files_after <= files_before + 2
        assert numbers(loader) != []
        stats = loader.stats()
        assert 0 <= stats.window_bytes <= stats.window_peak_bytes <= 1 << 20

    def test_a_hundred_loaders_do_not_leak(self, ds: Dataset) -> None:
        marks = []
        for turn in range(100):
            assert len(list(islice(ds.pytorch(batch_size=16, num_workers=2, **MIXED), 3))) == 3
            if turn in (20, 99):
                assert threads_end(), our_threads()
                marks.append((resident_bytes(), open_files()))
        (bytes_before, files_before), (bytes_after, files_after) = marks
        assert bytes_after - bytes_before < 16 << 20
        assert files_after <= files_before + 2


class TestLease:
    def leases(self, folder: Path) -> int:
        return len(list((folder / "leases").glob("*"))) if (folder / "leases").exists() else 0

    @pytest.fixture
    def place(self, tmp_path: Path) -> Path:
        fill(penstock.create(tmp_path / "t", SCHEMA))
        return tmp_path / "t"

    def test_a_version_is_leased_while_it_is_read(self, place: Path) -> None:
        loader = penstock.load(place).pytorch(batch_size=16)
        assert self.leases(place) == 0
        for step, _ in enumerate(loader):
            if step == 3:
                assert soon(lambda: self.leases(place) == 1)
        assert self.leases(place) == 1, "the next epoch is prefetched"
        numbers(loader)
        assert self.leases(place) == 1
        loader.close()
        assert soon(lambda: self.leases(place) == 0)

    def test_leases_are_released_after_reading(self, place: Path) -> None:
        table = penstock.load(place)
        for turn in range(20):
            loader = table.pytorch(batch_size=16, transform=slow, num_workers=penstock.Workers(2, "thread"))
            for _ in islice(loader, 1 + turn % 3):
                pass
            if turn % 2:
                loader.close()
        del loader
        assert threads_end()
        assert soon(lambda: self.leases(place) == 0)

    def test_without_write_access_a_warning_is_issued_once(self) -> None:
        place = "memory://without-lease"
        fill(penstock.create(place, SCHEMA))
        store = FaultyStore(
            open_store(place), Fault("fail_before", "put", key="leases/*", times=99, error=AccessDeniedError)
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):
                loader = penstock.load(store).pytorch(batch_size=16)
                assert numbers(loader) == list(range(ROWS))
                loader.close()
        ours = [warning for warning in caught if issubclass(warning.category, PenstockWarning)]
        assert ["SnapshotExpiredError" in str(warning.message) for warning in ours] == [True]


def test_repr(ds: Dataset) -> None:
    loader: Loader = ds.pytorch(batch_size=16)
    assert repr(loader) == "Loader(memory:// at main@1, 400 rows in 25 steps)"
    assert "rank 1 of 4" in repr(ds.pytorch(distributed=(1, 4)))


def test_tensors_of_a_loader_can_be_trained_on(ds: Dataset) -> None:
    model = torch.nn.Linear(32, 1)
    for batch in ds.pytorch(batch_size=64, shuffle=True):
        loss = (model(batch["x"])[:, 0] - batch["n"]).square().mean()
        loss.backward()
    assert model.weight.grad is not None
    assert model.weight.grad.abs().sum() > 0
