"""Bad samples: named where they are not wanted, replaced where they are, always by the same, and never too many."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock import Bytes, Column, Dataset, Image, Mask, Tensor, Text
from penstock.engine import BadSample
from penstock.errors import CorruptError, SampleError
from tests.adapters.transforms import Broken, always_fails, fails_at_threes, rewritten

ROWS = 120
BAD = (7, 40, 41, 119)
NO_PICTURE = b"\x89PNG\r\n\x1a\n and then nothing"
MIXED: dict[str, Any] = {"shuffle": True, "shuffle_block": 4096, "lanes": 3}


@pytest.fixture(scope="module")
def ds() -> Dataset:
    """Pictures of which four are none; the first pixel says which row it is."""
    made = penstock.create(
        "memory://",
        {"n": Column(Tensor("int64"), page_bytes=128), "p": Column(Image("png", (8, 8, 3)), page_bytes=1024)},
    )
    rows = [{"n": k, "p": NO_PICTURE if k in BAD else np.full((8, 8, 3), k, np.uint8)} for k in range(ROWS)]
    made.append(rows[:50])
    made.append(rows[50:])
    made.commit()
    return made


def read(ds: Any, **options: Any) -> list[tuple[int, bool]]:
    """The rows in the order they came, each with whether it stands in for another; columns belong together."""
    found: list[tuple[int, bool]] = []
    for batch in ds.pytorch(**{"batch_size": 16, "on_bad_sample": "replace", **options}):
        if "p" in batch:
            assert torch.equal(batch["p"][:, 0, 0, 0].long(), batch["n"])
        found += zip(batch["n"].tolist(), batch["_pad"].tolist(), strict=True)
    return found


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_bad_sample_is_named_in_its_place(ds: Dataset, num_workers: int) -> None:
    loader = ds.pytorch(batch_size=5, num_workers=num_workers)
    seen: list[int] = []
    with pytest.raises(SampleError, match="column 'p': cannot decode png") as caught:
        seen.extend(n for batch in loader for n in batch["n"].tolist())
    assert caught.value.__notes__ == ["in row 7 of the table (row id 7)"]
    assert seen == list(range(5))
    assert loader.stats().bad_samples == ()
    assert "_pad" not in next(iter(ds[:5].pytorch(batch_size=5)))


@pytest.mark.parametrize("choice", ["replace", "skip"])
def test_bad_samples_are_replaced_and_marked(ds: Dataset, choice: str) -> None:
    found = read(ds, on_bad_sample=choice)
    assert [n for n, stands_in in found if not stands_in] == [k for k in range(ROWS) if k not in BAD]
    assert [k for k, (_, stands_in) in enumerate(found) if stands_in] == list(BAD)
    assert not {n for n, _ in found} & set(BAD)


def test_the_same_row_stands_in_whatever_the_machine_is(ds: Dataset) -> None:
    whole = read(ds, **MIXED)
    assert sorted(n for n, stands_in in whole if not stands_in) == [k for k in range(ROWS) if k not in BAD]
    for options in (
        {"batch_size": 5},
        {"batch_size": 120, "num_workers": 0},
        {"num_workers": 4, "prefetch_factor": 4},
        {"memory_budget": 1 << 20},
        {"worker_type": "thread", "num_workers": 1},
        {"worker_type": "process", "num_workers": 1},
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
    assert read(ds, seed=1, **MIXED) != whole


def test_the_same_row_stands_in_after_a_resume() -> None:
    made = penstock.create("memory://", {"n": Column(Tensor("int64"), page_bytes=1024)})
    made.append({"n": np.arange(9000)})
    made.commit()
    options: dict[str, Any] = {
        "batch_size": 100, "shuffle": True, "shuffle_block": 8192, "lanes": 2, "transform": fails_at_threes,
        "on_bad_sample": "replace", "bad_sample_limit": 10_000,
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
def test_only_rows_of_the_selection_stand_in(ds: Dataset, key: Any) -> None:
    chosen = list(range(ROWS))[key] if isinstance(key, slice) else key
    found = read(ds[key])
    assert {n for n, _ in found} <= set(chosen) - set(BAD)
    assert [n for n, stands_in in found if not stands_in] == [k for k in chosen if k not in BAD]
    assert read(ds[key], batch_size=3, num_workers=0) == found


def test_large_rows_are_replaced_though_a_block_has_one() -> None:
    made = penstock.create("memory://", {"n": int, "b": Bytes()})
    made.append([{"n": k, "b": bytes([k]) * 300_000} for k in range(12)])
    made.commit()

    def decode(data: bytes) -> int:
        if data[0] in (0, 5):
            raise Broken("no")
        return data[0]

    found = [
        pair
        for batch in made.pytorch(batch_size=4, shuffle=True, decode={"b": decode}, on_bad_sample="replace")
        for pair in zip(batch["n"].tolist(), batch["b"], batch["_pad"].tolist(), strict=True)
    ]
    assert all(n == b for n, b, _ in found)
    assert sorted(n for n, _, stands_in in found if not stands_in) == [1, 2, 3, 4, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_rows_that_a_transform_cannot_take_are_replaced(ds: Dataset, num_workers: int) -> None:
    found = read(ds, columns=["n"], transform=fails_at_threes, num_workers=num_workers)
    assert [k for k, (_, stands_in) in enumerate(found) if stands_in] == list(range(3, ROWS, 10))
    assert all(n == k for k, (n, stands_in) in enumerate(found) if not stands_in)
    assert not any(n % 10 == 3 for n, _ in found)
    assert read(ds, columns=["n"], transform=fails_at_threes, batch_size=7) == found


def test_a_transform_that_writes_to_its_sample_writes_once(ds: Dataset) -> None:
    found = read(ds, columns=["n"], transform=rewritten)
    assert all(n == 1000 + k for k, (n, stands_in) in enumerate(found) if not stands_in)
    assert all(1000 <= n < 1000 + ROWS for n, _ in found)


def test_bad_bytes_and_bad_transforms_together(ds: Dataset) -> None:
    loader = ds.pytorch(batch_size=16, transform=fails_at_threes, on_bad_sample="replace")
    found = [pair for batch in loader for pair in zip(batch["n"].tolist(), batch["_pad"].tolist(), strict=True)]
    spoilt = sorted({*BAD, *range(3, ROWS, 10)})
    assert [k for k, (_, stands_in) in enumerate(found) if stands_in] == spoilt
    assert not {n for n, _ in found} & set(spoilt)
    assert sorted({bad.row_id for bad in loader.stats().bad_samples}) == spoilt


def test_a_transform_that_takes_nothing_ends_the_run(ds: Dataset) -> None:
    with pytest.raises(SampleError, match="every other row tried in its place; the first reason: always"):
        list(ds.pytorch(batch_size=4, columns=["n"], transform=always_fails, on_bad_sample="replace"))


def test_the_report_names_rows_epochs_and_reasons(ds: Dataset) -> None:
    loader = ds.pytorch(batch_size=16, on_bad_sample="replace", num_workers=2, **MIXED)
    for _ in range(2):
        list(loader)
        loader.close()
    stats = loader.stats()
    assert stats.bad_count == len(stats.bad_samples) == 8
    for epoch in range(2):
        assert {bad.row_id for bad in stats.bad_samples if bad.epoch == epoch} == set(BAD)
    assert all("column 'p': cannot decode png" in bad.reason for bad in stats.bad_samples)
    assert "bad samples were replaced" in str(stats)


def test_a_function_is_told_first_and_may_refuse(ds: Dataset) -> None:
    told: list[BadSample] = []
    found = read(ds, on_bad_sample=told.append)
    assert [k for k, (_, stands_in) in enumerate(found) if stands_in] == list(BAD)
    assert [bad.row_id for bad in told] == list(BAD)

    def refuse(bad: BadSample) -> None:
        if bad.row_id == 41:
            raise Broken(f"row {bad.row_id} matters")

    seen: list[int] = []
    with pytest.raises(Broken, match="row 41 matters"):
        seen.extend(n for batch in ds.pytorch(batch_size=4, on_bad_sample=refuse) for n in batch["n"].tolist())
    assert len(seen) == 40


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_too_many_bad_samples_end_the_run_in_their_place(ds: Dataset, limit: int) -> None:
    loader = ds.pytorch(batch_size=4, on_bad_sample="replace", bad_sample_limit=limit, num_workers=3)
    seen: list[int] = []
    with pytest.raises(SampleError, match=f"{limit + 1} samples were bad, more than bad_sample_limit={limit} allows"):
        seen.extend(n for batch in loader for n in batch["n"].tolist())
    assert loader.stats().bad_count == limit + 1
    assert len(seen) == BAD[limit] // 4 * 4


def test_as_many_bad_samples_as_are_allowed_end_nothing(ds: Dataset) -> None:
    """Those of the epochs that are read ahead do not count."""
    loader = ds.pytorch(batch_size=4, on_bad_sample="replace", bad_sample_limit=4, num_workers=3)
    assert len(list(loader)) == 30
    assert loader.stats().bad_count == 4


def test_a_share_of_bad_samples_ends_a_run_that_is_rotting() -> None:
    made = penstock.create("memory://", {"n": Column(Tensor("int64"), page_bytes=1024)})
    made.append({"n": np.arange(3000)})
    made.commit()
    with pytest.raises(SampleError, match=r"more than bad_sample_limit=0.01 allows"):
        list(made.pytorch(batch_size=50, transform=fails_at_threes, on_bad_sample="replace"))
    loader = made.pytorch(batch_size=50, transform=fails_at_threes, on_bad_sample="replace", bad_sample_limit=0.2)
    assert sum(int(batch["_pad"].sum()) for batch in loader) == 300


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


@pytest.mark.parametrize("shape", ["fixed", "loose"])
@pytest.mark.parametrize("options", [{}, MIXED, {"num_workers": 0}, {"batch_size": 3}], ids=str)
def test_rows_of_a_damaged_page_are_replaced_and_no_others(tmp_path: Path, options: dict[str, Any], shape: str) -> None:
    """The page's bits have flipped: that is corruption, and stops a run that is not told to go on."""
    made = penstock.create(
        tmp_path / "t",
        {
            "n": Column(Tensor("int64"), page_bytes=256),
            "fixed": Column(Tensor("float32", (64,)), page_bytes=2048, file_bytes=16384),
            "loose": Column(Text(), page_bytes=1024, file_bytes=8192),
            "m": Column(Mask("png", (4, 4)), page_bytes=1024),
        },
    )
    n = np.arange(200)
    x = np.repeat(n, 64).reshape(-1, 64).astype(np.float32)
    masks = [np.full((4, 4), 300 * k, np.uint16) for k in n]
    made.append({"n": n, "fixed": x, "loose": [f"{k} " * 40 for k in n], "m": masks})
    made.commit()
    path, middle, rows = page_of(made, tmp_path / "t", shape, 77)
    assert 1 < len(rows) < 100
    data = bytearray(path.read_bytes())
    data[middle] ^= 16
    path.write_bytes(data)
    with pytest.raises(CorruptError):
        list(made.pytorch(**{"batch_size": 16, **options}))
    loader = made.pytorch(**{"batch_size": 16, "on_bad_sample": "replace", **options})
    real: list[int] = []
    flagged = 0
    for batch in loader:
        assert torch.equal(batch["fixed"][:, 5].long(), batch["n"])
        assert batch["loose"] == [f"{k} " * 40 for k in batch["n"].tolist()]
        assert torch.equal(batch["m"][:, 1, 1].long(), 300 * batch["n"])
        real += batch["n"][~batch["_pad"]].tolist()
        flagged += int(batch["_pad"].sum())
    assert sorted(real) == [k for k in range(200) if k not in rows]
    assert flagged == len(rows)
    assert {bad.row_id for bad in loader.stats().bad_samples} == set(rows)


def test_gray_pictures_of_which_one_is_bad_are_still_one_tensor() -> None:
    made = penstock.create("memory://", {"n": int, "m": Column(Mask("png", (4, 4)), nullable=True)})
    rows: list[dict[str, Any]] = [
        {"n": k, "m": None if k == 2 else np.full((4, 4), 300 * k, np.uint16)} for k in range(8)
    ]
    rows[5]["m"] = NO_PICTURE
    made.append(rows)
    made.commit()
    [batch] = made.pytorch(batch_size=8, on_bad_sample="replace")
    assert isinstance(batch["m"], torch.Tensor)
    assert batch["_pad"].tolist() == [k == 5 for k in range(8)]
    there = batch["m_mask"]
    assert torch.equal(batch["m"][:, 0, 0].long(), 300 * batch["n"] * there)
