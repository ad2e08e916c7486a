"""From what a user passes to a loader to the engine's options."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar

from penstock.device import DeviceOptions
from penstock.engine import (
    BadSamples,
    DecodeOptions,
    Decoder,
    Epochs,
    LoaderOptions,
    Progress,
    RunLength,
    Steps,
    Transforms,
    VersionFollower,
    Workers,
)
from penstock.errors import InvalidInputError
from penstock.plan import Shuffle
from penstock.runners import available_cores
from penstock.types import parse_size

BATCH_SIZE = 64
ONE_EPOCH = Epochs(1)
_MAX_WORKERS = 8
_PREFETCH_FACTOR = 2

Transform = Callable[..., Any]


class LoaderKeywords(TypedDict, total=False):
    """Options that `numpy`, `jax` and `tensorflow` share with `pytorch`, with the same defaults."""

    shuffle: bool | Shuffle | None
    """Read the rows in a different order in each epoch, drawn from the whole table; `Shuffle` sets seed and quality."""
    num_workers: int | Workers | None
    """Cores to use, by default those of the machine, up to 8; `Workers` chooses between threads and processes."""
    prefetch_factor: int | None
    """Batches that each worker prepares ahead of the loop; by default 2."""
    transform: Transform | None
    """A function of a sample, a dictionary of numpy arrays; with a second parameter it also gets a random generator."""
    batch_transform: Transform | None
    """The same for a whole batch."""
    decode: bool | Mapping[str, bool | Decoder]
    """False leaves media encoded; a mapping decides by column, or names a function of the encoded bytes."""
    image_size: int | tuple[int, int] | None
    """Resize images to this height and width, or to a square, so that they can share a batch."""
    collate_fn: str | Callable[[list[Any]], Any] | None
    """A function from a list of samples to a batch; or a name for how values of different shapes share a batch."""
    drop_last: bool
    """Drop the rows that do not fill the last step."""
    memory_budget: int | str | None
    """Bytes, or text such as "1GB" or "512MiB", for all that is fetched, decoded or queued; by default what the shuffle
    window needs."""
    bad_samples: Literal["raise", "replace", "skip"] | BadSamples
    """What happens to a row that cannot be read or transformed."""
    until: Steps | Epochs | None
    """Where an iteration ends: after some steps or epochs, by default one epoch; None never ends."""
    progress: Progress | bool | None
    """A live "line" or "table" on standard error."""


DEFAULTS: LoaderKeywords = {
    "shuffle": None, "num_workers": None, "prefetch_factor": None, "transform": None, "batch_transform": None,
    "decode": True, "image_size": None, "collate_fn": None, "drop_last": False, "memory_budget": None,
    "bad_samples": "raise", "until": ONE_EPOCH, "progress": None,
}  # fmt: skip


MOVED = {
    "columns": "choose columns before: ds.select([…])",
    "weights": "choose weights before: ds.weighted(column_or_array)",
    "balance": "balance classes before: ds.balanced(column)",
    "rows": "draw a number of rows before: ds.weighted(column_or_array, rows=…) or ds.balanced(column, rows=…)",
    "steps": "pass until=penstock.Steps(…)",
    "epochs": "pass until=penstock.Epochs(…), or until=None for a loader that never ends",
    "follow": "follow the branch before: ds.following()",
}
"""Options that loaders do not have, because views have them."""

P = ParamSpec("P")
R = TypeVar("R")


def check_keywords(
    given: Mapping[str, object],
    method: str,
    *,
    known: Mapping[str, object] = DEFAULTS,
    moved: Mapping[str, str] = MOVED,
) -> None:
    """Raise `TypeError` for an option that is not `known`, as Python does for a written-out signature."""
    for name in given:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]!r}" if close else f"it takes {', '.join(known)}"
            raise TypeError(f"{method}() got an unexpected option {name!r}; {moved.get(name, hint)}")


def explain_unknown(method: Callable[P, R]) -> Callable[P, R]:
    """A method that raises the `TypeError` of `check_keywords` for an option that its signature lacks."""
    known = {name: None for name in signature(method).parameters if name != "self"}

    @wraps(method)
    def checked(*args: P.args, **options: P.kwargs) -> R:
        check_keywords(options, method.__name__, known=known)
        return method(*args, **options)

    return checked


def check_no_loader_options(given: Mapping[str, object]) -> None:
    """Raise `InvalidInputError` for options that a dataset of rows would ignore."""
    shared = ("transform", "decode", "image_size")
    others = [(name, value) for name, value in DEFAULTS.items() if name not in shared]
    ignored = [name for name, value in others if given[name] is not value and (value is None or given[name] != value)]
    if ignored:
        raise InvalidInputError(
            f"{', '.join(ignored)} would be ignored: without batch_size, shuffle, num_workers, prefetch_factor, "
            "distributed or device, ds.pytorch() gives rows for torch.utils.data.DataLoader; add batch_size=… for a "
            f"loader of batches, or leave {ignored[0]} out"
        )


def loader_options(
    given: LoaderKeywords,
    *,
    batch_size: int,
    follow: VersionFollower | None,
    device: DeviceOptions | None,
) -> LoaderOptions:
    """The engine's options; raises `InvalidInputError` for a value out of range."""
    count, prefetch, bad = given["num_workers"], given["prefetch_factor"], given["bad_samples"]
    if count is None:
        count = min(available_cores(), _MAX_WORKERS)
    return LoaderOptions(
        batch_size=batch_size,
        shuffle=as_shuffle(given["shuffle"]),
        workers=count if isinstance(count, Workers) else Workers(count),
        prefetch_factor=_PREFETCH_FACTOR if prefetch is None else prefetch,
        drop_last=given["drop_last"],
        memory_budget=parse_size("memory_budget", given["memory_budget"]),
        decode=DecodeOptions(given["decode"], given["image_size"]),
        bad_samples=bad if isinstance(bad, BadSamples) else BadSamples(action=bad),
        follow=follow,
        run=RunLength(given["until"]),
        device_memory=None if device is None else device.memory,
    )


def as_shuffle(shuffle: bool | Shuffle | None) -> Shuffle | None:
    """Shuffle settings; None for table order."""
    if isinstance(shuffle, Shuffle):
        return shuffle
    if shuffle is not None and not isinstance(shuffle, bool):
        raise InvalidInputError(f"shuffle is True, False or penstock.Shuffle(…), not {shuffle!r}")
    return Shuffle() if shuffle else None


def as_transforms(given: LoaderKeywords) -> Transforms:
    """The user's functions."""
    collate = given["collate_fn"]
    if isinstance(collate, str):
        return Transforms(given["transform"], given["batch_transform"], None, collate)
    return Transforms(given["transform"], given["batch_transform"], collate)


def as_progress(progress: Progress | bool | None) -> Progress | None:
    """What to show; True is a line."""
    if progress not in (None, False, True, "line", "table"):
        raise InvalidInputError(f'progress is "line", "table", True or None, not {progress!r}')
    return "line" if progress is True else progress or None
