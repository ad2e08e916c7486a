"""Bad samples: located errors, deterministic replacements, callbacks and limits."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock import BadSample, BadSamples, Bytes, Column, Dataset, Image, Mask, Shuffle, Tensor, Text, Workers
from penstock.errors import CorruptError, SampleError
from tests.adapters.transforms import BrokenError, always_fails, fails_at_threes, rewritten

ROWS = 120
BAD = (7, 40, 41, 119)
PNG_HEADER_BYTES = 45
SHUFFLE = Shuffle(block_bytes=4096, lanes=3)
MIXED: dict[str, Any] = {"shuffle": SHUFFLE}


def truncated(pixels: Any) -> bytes:
    """A PNG that ends where its pixels begin."""
    return bytes(Image("png").to_array([pixels])[0].as_py()[:PNG_HEADER_BYTES])


@pytest.fixture(scope="module")
def ds() -> Dataset:
    """Images of which four cannot be decoded; the first pixel is the row number."""
    made = penstock.create(
        "memory://",
        {"n": Column(Tensor("int64"), page_bytes=128), "p": Column(Image("png", (8, 8, 3)), page_bytes=1024)},
    )
    images = [np.full((8, 8, 3), k, np.uint8) for k in range(ROWS)]
    rows = [{"n": k, "p": truncated(image) if k in BAD else image} for k, image in enumerate(images)]
    made.append(rows[:50])
    made.append(rows[50:])
    made.commit()
    return made


def read(ds: Any, **options: Any) -> list[tuple[int, bool]]:
    """The rows in the order they came, each with its replacement flag; checks that columns belong together."""
    found: list[tuple[int, bool]] = []
    for batch in ds.pytorch(**{"batch_size": 16, "bad_samples": "replace", **options}):
        if "p" in batch:
            assert torch.equal(batch["p"][:, 0, 0, 0].long(), batch["n"])
        found += zip(batch["n"].tolist(), batch["_pad"].tolist(), strict=True)
    return found


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_bad_sample_raises_at_its_position(ds: Dataset, num_workers: int) -> None:
    loader = ds.pytorch(batch_size=5, num_workers=num_workers)
    seen: list[int] = []
    with pytest.raises(SampleError, match="column 'p': cannot decode png") as caught:
        seen.extend(n for batch in loader for n in batch["n"].tolist())
    assert caught.value.__notes__ == ["in row 7 of the table (row id 7)"]
    assert seen == list(range(5))
    assert loader.stats().bad_samples == ()
    assert "_pad" not in next(iter(ds[:5].pytorch(batch_size=5)))


@pytest.mark.parametrize("choice", ["replace", "skip"])
def test_bad_samples_are_replaced_and_flagged(ds: Dataset, choice: str) -> None:
    found = read(ds, bad_samples=choice)
    assert [n for n, replaced in found if not replaced] == [k for k in range(ROWS) if k not in BAD]
    assert [k for k, (_, replaced) in enumerate(found) if replaced] == list(BAD)
    assert not {n for n, _ in found} & set(BAD)


def test_replacements_do_not_depend_on_workers_memory_or_ranks(ds: Dataset) -> None:
    whole = read(ds, **MIXED)
    assert sorted(n for n, replaced in whole if not replaced) == [k for k in range(ROWS) if k not in BAD]
    for options in (
        {"batch_size": 5},
        {"batch_size": 120, "num_workers": 0},
        {"num_workers": 4, "prefetch_factor": 4},
        {"memory_budget": 1 << 20},
        {"num_workers": 1},
        {"num_workers": Workers(1, "process")},
    ):
        assert read(ds, **MIXED, **options) == whole
    step = [
        list(
            zip(*(read(ds, batch_size=4, distributed=(rank, 3), **MIXED)[k : k + 4] for rank in range(3)), strict=True)
        )
        for k in range(0, 40, 4)
    ]
    together = sorted(pair for rows in step for ranks in rows for pair in ranks)
    assert together == sorted(whole)
    assert read(ds, shuffle=replace(SHUFFLE, seed=1)) != whole


def test_replacements_are_the_same_after_a_resume() -> None:
    made = penstock.create("memory://", {"n": Column(Tensor("int64"), page_bytes=1024)})
    made.append({"n": np.arange(9000)})
    made.commit()
    options: dict[str, Any] = {
        "batch_size": 100, "shuffle": Shuffle(block_bytes=8192, lanes=2), "transform": fails_at_threes,
        "bad_samples": BadSamples(limit=10_000),
    }  # fmt: skip
    whole = [batch["n"].tolist() for batch in made.pytorch(**options)]
    assert any(n % 10 != 3 for numbers in whole for n in numbers)
    for steps in (1, 30, 61):
        loader = made.pytorch(**options)
        batches = iter(loader)
        for _ in range(steps):
            next(batches)
        resumed = made.pytorch(**options)
        resumed.load_state_dict(loader.state_dict())
        assert [batch["n"].tolist() for batch in resumed] == whole[steps:]


@pytest.mark.parametrize("key", [slice(0, 45), [41, 3, 99, 7, 12, 13, 14, 15], slice(None, None, -1)], ids=str)
def test_replacements_come_from_the_selection(ds: Dataset, key: Any) -> None:
    chosen = list(range(ROWS))[key] if isinstance(key, slice) else key
    found = read(ds[key])
    assert {n for n, _ in found} <= set(chosen) - set(BAD)
    assert [n for n, replaced in found if not replaced] == [k for k in chosen if k not in BAD]
    assert read(ds[key], batch_size=3, num_workers=0) == found


def test_large_rows_are_replaced_in_blocks_of_one_row() -> None:
    made = penstock.create("memory://", {"n": int, "b": Bytes()})
    made.append([{"n": k, "b": bytes([k]) * 300_000} for k in range(12)])
    made.commit()

    def decode(data: bytes) -> int:
        if data[0] in (0, 5):
            raise BrokenError("no")
        return data[0]

    found = [
        pair
        for batch in made.pytorch(batch_size=4, shuffle=True, decode={"b": decode}, bad_samples="replace")
        for pair in zip(batch["n"].tolist(), batch["b"], batch["_pad"].tolist(), strict=True)
    ]
    assert all(n == b for n, b, _ in found)
    assert sorted(n for n, _, replaced in found if not replaced) == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_rows_that_fail_in_a_transform_are_replaced(ds: Dataset, num_workers: int) -> None:
    found = read(ds.select(["n"]), transform=fails_at_threes, num_workers=num_workers)
    assert [k for k, (_, replaced) in enumerate(found) if replaced] == list(range(3, ROWS, 10))
    assert all(n == k for k, (n, replaced) in enumerate(found) if not replaced)
    assert not any(n % 10 == 3 for n, _ in found)
    assert read(ds.select(["n"]), transform=fails_at_threes, batch_size=7) == found


def test_a_transform_that_modifies_its_sample_is_applied_once(ds: Dataset) -> None:
    found = read(ds.select(["n"]), transform=rewritten)
    assert all(n == 1000 + k for k, (n, replaced) in enumerate(found) if not replaced)
    assert all(1000 <= n < 1000 + ROWS for n, _ in found)


def test_undecodable_rows_and_failing_transforms_together(ds: Dataset) -> None:
    loader = ds.pytorch(batch_size=16, transform=fails_at_threes, bad_samples="replace")
    found = [pair for batch in loader for pair in zip(batch["n"].tolist(), batch["_pad"].tolist(), strict=True)]
    bad_rows = sorted({*BAD, *range(3, ROWS, 10)})
    assert [k for k, (_, replaced) in enumerate(found) if replaced] == bad_rows
    assert not {n for n, _ in found} & set(bad_rows)
    assert sorted({bad.row_id for bad in loader.stats().bad_samples}) == bad_rows


def test_a_transform_that_always_fails_ends_the_run(ds: Dataset) -> None:
    with pytest.raises(SampleError, match="every other row tried in its place; the first reason: always"):
        list(ds.select(["n"]).pytorch(batch_size=4, transform=always_fails, bad_samples="replace"))


def test_stats_list_rows_epochs_and_reasons(ds: Dataset) -> None:
    loader = ds.pytorch(batch_size=16, bad_samples="replace", num_workers=2, **MIXED)
    for _ in range(2):
        list(loader)
        loader.close()
    stats = loader.stats()
    assert stats.bad_count == len(stats.bad_samples) == 8
    for epoch in range(2):
        assert {bad.row_id for bad in stats.bad_samples if bad.epoch == epoch} == set(BAD)
    assert all("column 'p': cannot decode png" in bad.reason for bad in stats.bad_samples)
    assert "bad samples were replaced" in str(stats)


def test_the_callback_is_called_first_and_may_raise(ds: Dataset) -> None:
    reported: list[BadSample] = []
    found = read(ds, bad_samples=BadSamples(callback=reported.append))
    assert [k for k, (_, replaced) in enumerate(found) if replaced] == list(BAD)
    assert [bad.row_id for bad in reported] == list(BAD)

    def refuse(bad: BadSample) -> None:
        if bad.row_id == 41:
            raise BrokenError(f"row {bad.row_id} matters")

    seen: list[int] = []
    with pytest.raises(BrokenError, match="row 41 matters"):
        seen.extend(
            n
            for batch in ds.pytorch(batch_size=4, bad_samples=BadSamples(callback=refuse))
            for n in batch["n"].tolist()
        )
    assert len(seen) == 40


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_the_limit_ends_the_run_at_the_bad_sample(ds: Dataset, limit: int) -> None:
    loader = ds.pytorch(batch_size=4, bad_samples=BadSamples(limit=limit), num_workers=3)
    seen: list[int] = []
    with pytest.raises(
        SampleError, match=rf"{limit + 1} samples were bad, more than BadSamples\(limit={limit}\) allows"
    ):
        seen.extend(n for batch in loader for n in batch["n"].tolist())
    assert loader.stats().bad_count == limit + 1
    assert len(seen) == BAD[limit] // 4 * 4


def test_the_limit_itself_is_allowed(ds: Dataset) -> None:
    """Bad samples of prefetched epochs do not count."""
    loader = ds.pytorch(batch_size=4, bad_samples=BadSamples(limit=4), num_workers=3)
    assert len(list(loader)) == 30
    assert loader.stats().bad_count == 4


def test_a_fractional_limit_ends_the_run() -> None:
    made = penstock.create("memory://", {"n": Column(Tensor("int64"), page_bytes=1024)})
    made.append({"n": np.arange(3000)})
    made.commit()
    with pytest.raises(SampleError, match=r"more than BadSamples\(limit=0.01\) allows"):
        list(made.pytorch(batch_size=50, transform=fails_at_threes, bad_samples="replace"))
    loader = made.pytorch(batch_size=50, transform=fails_at_threes, bad_samples=BadSamples(limit=0.2))
    assert sum(int(batch["_pad"].sum()) for batch in loader) == 300


@pytest.mark.parametrize(("limit", "allowed"), [(0.0, 0), (0.001, 1), (0.01, 10), (0.0299, 29)])
def test_a_share_of_a_thousand_rows_ends_the_run_at_the_next_bad_one(limit: float, allowed: int) -> None:
    made = penstock.create("memory://", {"n": Column(Tensor("int64"), page_bytes=1024)})
    made.append({"n": np.arange(1000)})
    made.commit()
    loader = made.pytorch(batch_size=5, transform=fails_at_threes, bad_samples=BadSamples(limit=limit))
    with pytest.raises(SampleError, match=rf"{allowed + 1} samples were bad"):
        list(loader)
    assert loader.stats().bad_count == allowed + 1


def test_the_limit_holds_for_each_epoch(ds: Dataset) -> None:
    loader = ds.pytorch(batch_size=4, bad_samples=BadSamples(limit=len(BAD)))
    for _ in range(3):
        assert len(list(loader)) == 30
    assert loader.stats().bad_count == 3 * len(BAD)


def page_of(ds: Dataset, folder: Path, name: str, row: int) -> tuple[Path, int, range]:
    """The file, a byte in the middle of the page, and the rows of the page that holds a row's column."""
    reader = ds._reader
    field = reader.snapshot.schema[name]
    start = 0
    for fragment in reader.tree.fragments(reader.snapshot.nodes):
        for file in fragment.files_of(field.id):
            for page in range(len(file.page_rows)):
                first = start + file.row_start + int(file.page_ends[page] - file.page_rows[page])
                rows = range(first, first + int(file.page_rows[page]))
                if row in rows:
                    return folder / file.key, (file.offsets[page] + file.offsets[page + 1]) // 2, rows
        start += fragment.rows
    raise AssertionError(row)


@pytest.mark.parametrize("shape", ["fixed", "variable"])
@pytest.mark.parametrize("options", [{}, MIXED, {"num_workers": 0}, {"batch_size": 3}], ids=str)
def test_only_rows_of_a_damaged_page_are_replaced(tmp_path: Path, options: dict[str, Any], shape: str) -> None:
    """A flipped bit is corruption, and ends a run that is not tolerant."""
    made = penstock.create(
        tmp_path / "t",
        {
            "n": Column(Tensor("int64"), page_bytes=256),
            "fixed": Column(Tensor("float32", (64,)), page_bytes=2048, file_bytes=16384),
            "variable": Column(Text(), page_bytes=1024, file_bytes=8192),
            "m": Column(Mask("png", (4, 4)), page_bytes=1024),
        },
    )
    n = np.arange(200)
    x = np.repeat(n, 64).reshape(-1, 64).astype(np.float32)
    masks = [np.full((4, 4), 300 * k, np.uint16) for k in n]
    made.append({"n": n, "fixed": x, "variable": [f"{k} " * 40 for k in n], "m": masks})
    made.commit()
    path, middle, rows = page_of(made, tmp_path / "t", shape, 77)
    assert 1 < len(rows) < 100
    data = bytearray(path.read_bytes())
    data[middle] ^= 16
    path.write_bytes(data)
    with pytest.raises(CorruptError):
        list(made.pytorch(**{"batch_size": 16, **options}))
    loader = made.pytorch(**{"batch_size": 16, "bad_samples": "replace", **options})
    real: list[int] = []
    flagged = 0
    for batch in loader:
        assert torch.equal(batch["fixed"][:, 5].long(), batch["n"])
        assert batch["variable"] == [f"{k} " * 40 for k in batch["n"].tolist()]
        assert torch.equal(batch["m"][:, 1, 1].long(), 300 * batch["n"])
        real += batch["n"][~batch["_pad"]].tolist()
        flagged += int(batch["_pad"].sum())
    assert sorted(real) == [k for k in range(200) if k not in rows]
    assert flagged == len(rows)
    assert {bad.row_id for bad in loader.stats().bad_samples} == set(rows)


def test_grayscale_images_with_a_bad_one_stay_one_tensor() -> None:
    made = penstock.create("memory://", {"n": int, "m": Column(Mask("png", (4, 4)), nullable=True)})
    rows: list[dict[str, Any]] = [
        {"n": k, "m": None if k == 2 else np.full((4, 4), 300 * k, np.uint16)} for k in range(8)
    ]
    rows[5]["m"] = truncated(rows[5]["m"])
    made.append(rows)
    made.commit()
    [batch] = made.pytorch(batch_size=8, bad_samples="replace")
    assert isinstance(batch["m"], torch.Tensor)
    assert batch["_pad"].tolist() == [k == 5 for k in range(8)]
    there = batch["m_mask"]
    assert torch.equal(batch["m"][:, 0, 0].long(), 300 * batch["n"] * there)
