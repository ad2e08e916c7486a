"""Batches of numpy arrays, and what all loaders share: the order, the state, the randomness."""

from collections import namedtuple
from dataclasses import replace
from itertools import islice
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack

from penstock import BadSamples, Dataset, Shuffle, Workers
from penstock.errors import InvalidInputError
from tests.adapters import transforms
from tests.adapters.tables import MIXED, ROWS, drawn, mixed_table, numbers, row

SEEDED = Shuffle(seed=3, block_bytes=512)

Sample = dict[str, Any]
Pair = namedtuple("Pair", ["first", "second"])


@pytest.fixture(scope="module")
def ds() -> Dataset:
    return mixed_table()


def test_batches_equal_the_appended_rows(ds: Dataset) -> None:
    seen = []
    for batch in ds.numpy(**MIXED):
        for index, n in enumerate(batch["n"].tolist()):
            wanted = row(n)
            there = wanted.pop("maybe")
            assert batch["maybe_mask"][index] == (there is not None)
            assert there is None or batch["maybe"][index] == there
            for name, value in wanted.items():
                found = batch[name][index]
                assert np.array_equal(found, value) if isinstance(value, np.ndarray) else found == value, name
            seen.append(n)
    assert sorted(seen) == list(range(ROWS))
    assert seen != sorted(seen)


def test_arrays_keep_their_dtypes_and_are_writable(ds: Dataset) -> None:
    batch = next(iter(ds.numpy()))
    assert len(batch["n"]) == 64
    assert batch["half"].dtype == ml_dtypes.bfloat16
    assert batch["when"].dtype == np.dtype("datetime64[s]")
    assert batch["flag"].dtype == bool
    for value in batch.values():
        for array in value if isinstance(value, list) else [value]:
            assert not isinstance(array, np.ndarray) or array.flags.writeable


def test_ragged_columns_are_padded_with_ragged_pad(ds: Dataset) -> None:
    batch = next(iter(ds.numpy(batch_size=20, collate_fn="pad")))
    assert batch["tokens"].shape == (20, 4)
    assert batch["path"].shape == (20, 3, 2)
    assert batch["grid"].shape == (20, 2, 2)
    for n in range(20):
        for name in ("tokens", "path", "grid"):
            inside = tuple(slice(length) for length in batch[f"{name}_shape"][n])
            assert np.array_equal(batch[name][n][inside], row(n)[name])


def test_batches_export_dlpack(ds: Dataset) -> None:
    batch = next(iter(ds.numpy(batch_size=20)))
    for name in ("n", "x", "flag"):
        assert torch.equal(from_dlpack(batch[name]), torch.from_numpy(batch[name]))
        assert np.array_equal(np.from_dlpack(batch[name]), batch[name])
    for tokens in batch["tokens"]:
        assert from_dlpack(tokens).tolist() == tokens.tolist()
    of_torch = next(iter(ds.pytorch(batch_size=20)))
    assert np.array_equal(np.from_dlpack(of_torch["x"]), batch["x"])


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_state_of_pytorch_resumes_in_the_same_order(ds: Dataset, worker_type: Any) -> None:
    whole = numbers(ds.pytorch(batch_size=1, shuffle=SEEDED))
    first = ds.pytorch(batch_size=16, shuffle=SEEDED)
    before = numbers(islice(first, 4))
    with ds.numpy(batch_size=10, shuffle=SEEDED, num_workers=Workers(1, worker_type)) as second:
        second.load_state_dict(first.state_dict())
        middle = numbers(islice(second, 3))
        third = ds.pytorch(batch_size=7, shuffle=SEEDED)
        third.load_state_dict(second.state_dict())
    assert before + middle + numbers(third) == whole


def test_epochs_follow_each_other_and_can_be_set(ds: Dataset) -> None:
    loader = ds.numpy(**MIXED)
    epochs = [numbers(loader) for _ in range(3)]
    assert len({str(epoch) for epoch in epochs}) == 3
    loader.set_epoch(1)
    assert numbers(loader) == epochs[1]
    assert loader.stats().rows == 4 * ROWS
    assert len(loader) == 3


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_transforms_draw_the_same_random_values_as_in_pytorch(ds: Dataset, worker_type: Any) -> None:
    options: dict[str, Any] = {"shuffle": replace(SEEDED, seed=5)}
    of_torch = {
        n: noise.tolist()
        for batch in ds.pytorch(transform=transforms.noisy, num_workers=1, **options)
        for n, noise in zip(batch["n"].tolist(), batch["noise"], strict=True)
    }
    with ds.numpy(transform=drawn, num_workers=Workers(1, worker_type), **options) as loader:
        for batch in loader:
            assert isinstance(batch["draw"], np.ndarray)
            for n, noise in zip(batch["n"].tolist(), batch["draw"], strict=True):
                assert noise.tolist() == of_torch.pop(n)
    assert not of_torch


def test_samples_of_all_kinds_are_collated(ds: Dataset) -> None:
    def nested(sample: Sample) -> Sample:
        n = int(sample["n"])
        pair = Pair(np.full(2, n), {"inner": n / 2})
        values = {"pair": pair, "flag": n > 1, "tokens": sample["tokens"], "bare": (n, sample["text"])}
        return {**values, "uneven": np.zeros(n), "none": None if n else np.ones(1), "items": [n] * n}

    batch = next(iter(ds.numpy(batch_size=3, transform=nested)))
    assert batch["pair"].first.tolist() == [[0, 0], [1, 1], [2, 2]]
    assert batch["pair"].second["inner"].tolist() == [0, 0.5, 1]
    assert batch["flag"].tolist() == [False, False, True]
    assert [tokens.tolist() for tokens in batch["tokens"]] == [[], [0], [0, 1]]
    assert batch["bare"][0].tolist() == [0, 1, 2]
    assert batch["bare"][1] == ["row 0", "row 1", "row 2"]
    assert [len(value) for value in batch["uneven"]] == [0, 1, 2]
    assert batch["none"][1:] == [None, None]
    assert batch["items"] == [[], [1], [2, 2]]
    padded = next(iter(ds.numpy(batch_size=3, transform=nested, collate_fn="pad")))
    assert padded["uneven"].shape == (3, 2)
    assert padded["tokens_shape"].tolist() == [[0], [1], [2]]
    bare = next(iter(ds.numpy(batch_size=3, transform=lambda sample: (sample["n"], sample["text"]))))
    assert bare[0].tolist() == [0, 1, 2]
    assert bare[1] == ["row 0", "row 1", "row 2"]


def test_sample_and_batch_transforms_combine(ds: Dataset) -> None:
    def doubled(batch: Sample) -> Sample:
        return {"double": batch["n"] * 2}

    assert next(iter(ds.numpy(batch_size=3, batch_transform=doubled)))["double"].tolist() == [0, 2, 4]
    assert next(iter(ds.numpy(batch_size=3, collate_fn=lambda samples: [int(s["n"]) for s in samples]))) == [0, 1, 2]


def test_bad_samples_are_replaced_by_the_same_rows_as_in_pytorch(ds: Dataset) -> None:
    options: dict[str, Any] = {"bad_samples": BadSamples(limit=0.5), **MIXED}
    view = ds.select(["n"])
    of_torch = [
        (batch["n"].tolist(), batch["_pad"].tolist())
        for batch in view.pytorch(transform=transforms.rewritten, **options)
    ]
    loader = view.numpy(transform=transforms.rewritten, **options)
    assert [(batch["n"].tolist(), batch["_pad"].tolist()) for batch in loader] == of_torch
    assert sorted(bad.row_id for bad in loader.stats().bad_samples) == list(range(3, ROWS, 10))


def test_ranks_partition_the_rows(ds: Dataset) -> None:
    ranks = [ds.numpy(batch_size=8, distributed=(rank, 3), **MIXED) for rank in range(3)]
    steps = [list(loader) for loader in ranks]
    assert {len(its) for its in steps} == {len(ranks[0])}
    seen = [n for its in steps for batch in its for n in batch["n"][~batch["_pad"]].tolist()]
    assert sorted(seen) == list(range(ROWS))


@pytest.mark.parametrize("method", ["numpy", "jax", "tensorflow"])
@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 0},
        {"collate_fn": "nested"},
        {"distributed": "all"},
        {"distributed": (2, 2)},
        {"progress": "film"},
        {"bad_samples": "cry"},
        {"num_workers": -1},
    ],
    ids=str,
)
def test_invalid_options_are_refused_at_once(ds: Dataset, method: str, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(options))):
        getattr(ds, method)(**options)


@pytest.mark.parametrize("method", ["numpy", "jax", "tensorflow"])
def test_an_unknown_option_is_named(ds: Dataset, method: str) -> None:
    with pytest.raises(TypeError, match=rf"{method}\(\) got an unexpected option 'shufle'; did you mean 'shuffle'"):
        getattr(ds, method)(shufle=True)
    with pytest.raises(TypeError, match="unexpected option 'zebra'; it takes shuffle, num_workers"):
        getattr(ds, method)(zebra=True)


def test_frameworks_are_optional_dependencies() -> None:
    import subprocess
    import sys

    code = """
import sys
sys.modules["jax"] = sys.modules["tensorflow"] = None
import penstock
ds = penstock.create("memory://", {"n": int})
for method in (ds.jax, ds.tensorflow):
    try:
        method()
    except penstock.errors.InvalidInputError as error:
        print(error)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert found.stdout == (
        "JAX is not installed: pip install 'penstock[jax]'\n"
        "TensorFlow is not installed: pip install 'penstock[tensorflow]'\n"
    )
