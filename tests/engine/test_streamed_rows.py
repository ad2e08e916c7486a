"""Weights and mixtures of tables with quarantined rows, mixed packs, and images padded together."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import Dataset, Image, Workers
from penstock.dataset import SampleView


def numbers(path: Path, start: int, count: int) -> Dataset:
    ds = penstock.create(path, {"n": int})
    ds.append({"n": range(start, start + count)})
    ds.commit()
    return ds


def test_an_array_of_weights_has_one_for_each_row_quarantined_ones_included(tmp_path: Path) -> None:
    ds = numbers(tmp_path / "t", 0, 10)
    ds.quarantine(row_ids=2, reason="bad")
    weights = np.zeros(len(ds))
    weights[[2, 7]] = 1
    drawn = {n for batch in ds.weighted(weights).numpy(batch_size=4) for n in batch["n"].tolist()}
    assert drawn == {7}


def test_a_mixture_counts_no_quarantined_row(tmp_path: Path) -> None:
    one, other = numbers(tmp_path / "a", 0, 10), numbers(tmp_path / "b", 100, 5)
    one.quarantine(row_ids=range(5), reason="bad")
    mixture = penstock.mix({"one": one, "other": other}, stop="all")
    assert len(mixture) == 10
    streamed = [n for batch in mixture.numpy(batch_size=5, shuffle=False) for n in batch["n"].tolist()]
    assert [mixture[index]["n"] for index in range(10)] == streamed
    assert sorted(streamed) == [*range(5, 10), *range(100, 105)]


def packs(path: Path) -> dict[str, SampleView]:
    views = {}
    for name, length in (("long", 8), ("short", 2)):
        ds = penstock.create(path / name, {"tokens": penstock.Tensor("int32", (None,))})
        ds.append({"tokens": [np.full(length, k, np.int32) for k in range(32)]})
        ds.commit()
        views[name] = ds.pack("tokens", length=8)
    return views


@pytest.mark.parametrize("workers", [0, Workers(2, "process")], ids=["inline", "processes"])
def test_mixed_packs_have_the_wider_cu_seqlens(tmp_path: Path, workers: Any) -> None:
    views = packs(tmp_path)
    widths = [np.asarray(view[0]["cu_seqlens"]).shape[0] for view in views.values()]
    assert len(set(widths)) == 2
    with penstock.mix(views, weights={"long": 1, "short": 1}).numpy(batch_size=4, num_workers=workers) as loader:
        for batch in loader:
            assert batch["cu_seqlens"].shape == (len(batch["_source"]), max(widths))
            assert (batch["cu_seqlens"][:, -1] == 8).all()


def test_a_bad_sequence_of_mixed_packs_is_replaced_by_one_as_wide(tmp_path: Path) -> None:
    rejected: list[int] = []

    def reject_first_long(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["_source"] == 0 and not rejected:
            rejected.append(0)
            raise ValueError("bad")
        return sample

    mixture = penstock.mix(packs(tmp_path), weights={"long": 1, "short": 1})
    options = {"transform": reject_first_long, "bad_samples": "replace", "num_workers": 0, "shuffle": False}
    with mixture.numpy(batch_size=4, **options) as loader:  # type: ignore[arg-type]
        first = next(iter(loader))
        assert [bad.source for bad in loader.stats().bad_samples] == ["long"]
    assert first["_pad"].sum() == 1
    assert (first["cu_seqlens"][:, -1] == 8).all()


def test_gray_and_colour_images_are_padded_together(tmp_path: Path) -> None:
    ds = penstock.create(tmp_path / "t", {"image": Image()})
    gray, colour = np.full((4, 6), 7, np.uint8), np.full((5, 3, 3), 9, np.uint8)
    ds.append({"image": [gray, colour]})
    ds.commit()
    [batch] = ds.numpy(batch_size=2, collate_fn="pad")
    assert batch["image"].shape == (2, 5, 6, 3)
    assert batch["image_shape"].tolist() == [[4, 6, 1], [5, 3, 3]]
    assert (batch["image"][0, :4, :, 0] == 7).all()
    assert (batch["image"][1, :, :3] == 9).all()
