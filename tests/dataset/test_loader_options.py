"""Loader options: value objects, and an error for every option that would be ignored."""

import inspect
from typing import Any

import pyarrow.compute as pc
import pytest

import penstock
from penstock import BadSamples, Dataset, DeviceOptions, EpochView, Loader, Mixture, SampleView, Shuffle, Workers
from penstock.dataset._options import LoaderKeywords
from penstock.errors import InvalidInputError
from tests.servers import new_location

LOADER_ONLY: dict[str, Any] = {
    "batch_transform": lambda batch: batch,
    "collate_fn": "pad",
    "drop_last": True,
    "memory_budget": 1 << 30,
    "bad_samples": "replace",
    "until": penstock.Steps(7),
    "progress": "line",
}
LOADER: dict[str, Any] = {
    "batch_size": 2,
    "shuffle": False,
    "num_workers": 0,
    "prefetch_factor": 1,
    "distributed": False,
    "device": "cpu",
}
SHARED: dict[str, Any] = {"transform": lambda sample: sample, "decode": False, "image_size": (8, 8)}


@pytest.fixture(scope="module")
def ds() -> Dataset:
    table = penstock.create(new_location("memory").uri, {"n": int})
    table.append({"n": range(10)})
    table.commit()
    return table


def options_of(method: Any) -> set[str]:
    """The options of a method that gives a loader, those of its `**options` included."""
    named = {each.name for each in inspect.signature(method).parameters.values() if each.kind is not each.VAR_KEYWORD}
    return (named | (set(LoaderKeywords.__annotations__) if "options" in method.__annotations__ else set())) - {"self"}


def test_every_option_is_a_loaders_or_shared() -> None:
    assert options_of(Dataset.pytorch) == {*LOADER_ONLY, *LOADER, *SHARED}


@pytest.mark.parametrize("owner", [Dataset, SampleView, EpochView, Mixture])
@pytest.mark.parametrize("adapter", ["pytorch", "numpy", "jax", "tensorflow"])
def test_a_loader_has_sixteen_options_at_most(owner: type, adapter: str) -> None:
    """What comes later goes into a value object, or becomes a view."""
    assert 13 <= len(options_of(getattr(owner, adapter))) <= 16


@pytest.mark.parametrize("adapter", ["pytorch", "numpy", "jax", "tensorflow"])
def test_an_unknown_option_is_answered_with_the_call_to_write(ds: Dataset, adapter: str) -> None:
    make = getattr(ds, adapter)
    for name, words in {
        "columns": r"ds.select\(\[…\]\)",
        "weights": r"ds.weighted\(column_or_array\)",
        "balance": r"ds.balanced\(column\)",
        "rows": r"ds.weighted\(column_or_array, rows=…\)",
        "follow": r"ds.following\(\)",
        "steps": r"until=penstock.Steps\(…\)",
        "epochs": r"until=penstock.Epochs\(…\), or until=None",
        "batchsize": "did you mean 'batch_size'" if adapter == "pytorch" else "it takes|did you mean",
        "image_sise": "did you mean 'image_size'",
    }.items():
        with pytest.raises(TypeError, match=rf"^{adapter}\(\) got an unexpected option '{name}'; .*{words}"):
            make(**{name: None})


@pytest.mark.parametrize("name", LOADER_ONLY)
def test_an_option_that_rows_would_ignore_is_an_error(ds: Dataset, name: str) -> None:
    with pytest.raises(InvalidInputError, match=f"^{name} would be ignored: .* add batch_size="):
        ds.pytorch(**{name: LOADER_ONLY[name]})
    assert isinstance(ds.pytorch(**{name: LOADER_ONLY[name]}, batch_size=2), Loader)


@pytest.mark.parametrize("name", LOADER)
def test_any_loader_option_gives_a_loader(ds: Dataset, name: str) -> None:
    assert isinstance(ds.pytorch(**{name: LOADER[name]}), Loader)


@pytest.mark.parametrize("name", SHARED)
def test_rows_take_the_shared_options(ds: Dataset, name: str) -> None:
    assert len(ds.pytorch(**{name: SHARED[name]})) == 10


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shuffle": 7}, r"shuffle is True, False or penstock\.Shuffle"),
        ({"batch_size": 2, "bad_samples": "cry"}, "bad_samples is"),
        ({"num_workers": -1}, "num_workers"),
        ({"num_workers": True}, "num_workers"),
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 2, "collate_fn": "torn"}, 'collate_fn is a function .*"nested", "pad", "list"'),
        ({"batch_size": 2, "progress": "film"}, "progress is"),
        ({"batch_size": 2, "device": "toaster"}, "device is"),
    ],
)
def test_a_value_out_of_range_is_named(ds: Dataset, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        ds.pytorch(**options)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BadSamples(action="cry"), "bad_samples is"),  # type: ignore[arg-type]
        (lambda: BadSamples(limit=-1), r"BadSamples\(limit=…\)"),
        (lambda: BadSamples(limit=True), r"BadSamples\(limit=…\)"),
        (lambda: BadSamples(limit=float("nan")), r"BadSamples\(limit=…\)"),
        (lambda: Workers(1, "fibre"), r"Workers\(type=…\)"),  # type: ignore[arg-type]
        (lambda: Workers(1.5), "num_workers"),  # type: ignore[arg-type]
        (lambda: Shuffle(lanes=0), r"Shuffle\(lanes=…\)"),
    ],
)
def test_value_objects_are_validated_when_made(make: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        make()


def test_value_objects_reach_the_engine(ds: Dataset) -> None:
    def noisy(sample: dict[str, Any]) -> dict[str, Any]:
        if sample["n"] % 2:
            raise ValueError("odd")
        return sample

    seen: list[int] = []
    loader = ds.pytorch(
        batch_size=4,
        shuffle=Shuffle(seed=3, block_bytes=8, spread=2, lanes=2),
        num_workers=Workers(1),
        bad_samples=BadSamples(limit=5, callback=lambda bad: seen.append(bad.row_id)),
        device=DeviceOptions(device="cpu", transform=lambda batch: batch | {"twice": batch["n"] * 2}),
        transform=noisy,
    )
    order = loader.state_dict()["order"]
    assert (order["seed"], order["shuffled"]) == (3, True)
    assert order["shuffle"] == {"lanes": 2, "block_bytes": 8, "spread": 2}
    assert all((batch["twice"] == 2 * batch["n"]).all() and not (batch["n"] % 2).any() for batch in loader)
    assert len(seen) == 5


def test_the_dataset_stays_small() -> None:
    members = [name for name in dir(Dataset) if not name.startswith("_")]
    assert len(members) < 54, members  # 14 of them are questions and indexes: query, where, search, save_view, …


@pytest.mark.parametrize("rows", [slice(None), slice(2, 9), slice(None, None, -2), [9, 1, 1, 4]], ids=str)
def test_an_expression_selects_rows_of_any_view(ds: Dataset, rows: Any) -> None:
    expected = [n for n in ds[rows]["n"][:].tolist() if n > 3]
    assert ds[rows][pc.field("n") > 3]["n"][:].tolist() == expected
