"""The options that all loaders take."""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, TypedDict

from penstock.engine import BadPolicy, BadSample, DecodeOptions, Decoder, Display, StreamOptions, available_cores
from penstock.errors import InvalidInputError

_MAX_WORKERS = 8

OnBadSample = Literal["raise", "replace", "skip"] | Callable[[BadSample], None]
Transform = Callable[..., Any]
WorkerType = Literal["thread", "process"]


class StreamKeywords(TypedDict, total=False):
    """What `numpy`, `jax` and `tensorflow` take as `pytorch` does, with the same defaults."""

    shuffle: bool | None
    """Read the rows in another order in each epoch, drawn from all over the table."""
    num_workers: int | None
    """Threads (or processes) that decode and transform; the number of cores, up to 8, if not given."""
    prefetch_factor: int | None
    """Batches that each worker has ready ahead of the loop; 2 if not given."""
    transform: Transform | None
    """A function of a sample, a dictionary of numpy arrays; one with two arguments also gets a random generator."""
    batch_transform: Transform | None
    """The same for a whole batch."""
    columns: Sequence[str] | None
    """The columns to read, `_row_id` among them if named; all of the view's if not given."""
    decode: bool | Mapping[str, bool | Decoder]
    """False leaves media as bytes; a mapping says for each column whether, or by which function of the bytes."""
    image_size: tuple[int, int] | None
    """Scale pictures to this height and width, so that they can share a batch."""
    collate_fn: Callable[[list[Any]], Any] | None
    """Makes a batch of a list of samples, instead of stacking them."""
    drop_last: bool
    """Leave out the rows that do not fill the last step."""
    seed: int
    """Another seed, another order."""
    memory_budget: int | None
    """Bytes for all that is fetched, decoded or waiting; as much as the shuffle needs if not given."""
    on_bad_sample: OnBadSample
    """What happens to a row that cannot be read or transformed: "raise", "replace", or a function that is told."""
    bad_sample_limit: int | float
    """Most bad samples, as a number or as a share of the rows, before the run is stopped."""
    worker_type: WorkerType
    """Where transforms run: in a "thread", or in a "process" for those that are heavy in Python."""
    shuffle_block: int | None
    """See `penstock.plan.Shuffle`; so for the next two."""
    shuffle_spread: float | None
    lanes: int | None
    show: Display | None
    """A live "line" or "table" on standard error."""


def check_names(given: Mapping[str, object], method: str) -> None:
    """Refuse options that no loader knows, as Python does where they are written out."""
    for name in given:
        if name not in StreamKeywords.__annotations__:
            close = get_close_matches(name, StreamKeywords.__annotations__, 1)
            meant = f"did you mean {close[0]!r}" if close else f"it takes {', '.join(StreamKeywords.__annotations__)}"
            raise TypeError(f"{method}() got an unexpected option {name!r}; {meant}")


def check_display(display: Display | None) -> Display | None:
    """Refuse what cannot be shown."""
    if display not in (None, "line", "table"):
        raise InvalidInputError(f'show is "line", "table" or None, not {display!r}')
    return display


def stream_options(
    *,
    batch_size: int,
    shuffle: bool | None,
    num_workers: int | None,
    prefetch_factor: int | None,
    decode: DecodeOptions,
    drop_last: bool,
    seed: int,
    memory_budget: int | None,
    on_bad_sample: OnBadSample,
    bad_sample_limit: int | float,
    worker_type: WorkerType,
    shuffle_block: int | None,
    shuffle_spread: float | None,
    lanes: int | None,
    device_memory: int | None = None,
) -> StreamOptions:
    """What the engine is told."""
    return StreamOptions(
        batch_size=batch_size,
        shuffle=bool(shuffle),
        seed=seed,
        num_workers=min(available_cores(), _MAX_WORKERS) if num_workers is None else num_workers,
        prefetch_factor=2 if prefetch_factor is None else prefetch_factor,
        drop_last=drop_last,
        memory_budget=memory_budget,
        lanes=lanes,
        block_bytes=shuffle_block,
        spread=shuffle_spread,
        decode=decode,
        bad=_bad_policy(on_bad_sample, bad_sample_limit),
        worker_type=worker_type,
        device_memory=device_memory,
    )


def _bad_policy(choice: OnBadSample, limit: int | float) -> BadPolicy:
    if callable(choice):
        return BadPolicy(True, choice, limit)
    if choice not in ("raise", "replace", "skip"):
        raise InvalidInputError(f'on_bad_sample is "raise", "replace", "skip" or a function, not {choice!r}')
    return BadPolicy(choice != "raise", None, limit)
