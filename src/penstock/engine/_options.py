"""What a user can set on a loader, as frozen values that are validated once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any, Literal, Protocol, TypeGuard

import pyarrow as pa

from penstock.engine._stats import BadSample
from penstock.errors import InvalidInputError, SampleError
from penstock.format import Field, Schema, value_kind
from penstock.format.kinds import Audio, Image, List, Mask
from penstock.plan import Shuffle, State, WeightedDraw
from penstock.table import Int64Array, Reader
from penstock.types import World

_DEFAULT_LIMIT = 0.01
_DEFAULT_GRACE, _LIMIT_ROWS = 100, 1000
_MIN_BUDGET_BYTES = 1 << 20

Decoder = Callable[[bytes], Any]


@dataclass(frozen=True, kw_only=True)
class BadSamples:
    """What happens to a row that cannot be read, decoded or transformed.

    Raises `InvalidInputError` for values out of range.
    """

    action: Literal["raise", "replace", "skip"] = "replace"
    """"raise" ends the run. A loader replaces the row by another one, so that all ranks stay in step; an ingest leaves
    it out. "replace" and "skip" mean the same."""
    limit: int | float | None = None
    """Largest number of bad samples, or (a float) largest share of the rows, before the run ends with a `SampleError`.
    A loader counts those of its rank in the current epoch, and a share is one of the rows read in the epoch, or of the
    first 1,000 rows while fewer were read: so 0.01 allows ten in 1,000 rows, and 0.0 none. By default 1 % of the rows,
    or 100 if that is more, in a loader, and 1,000 in an ingest."""
    callback: Callable[[BadSample], None] | None = None
    """Called with each bad sample before the batch that replaces it is delivered; it may raise. Loaders only."""

    def __post_init__(self) -> None:
        if self.action not in ("raise", "replace", "skip"):
            raise InvalidInputError(f'bad_samples is "raise", "replace" or a BadSamples value, not {self.action!r}')
        if self.limit is not None and (
            not isinstance(self.limit, Real) or isinstance(self.limit, bool) or not self.limit >= 0
        ):
            raise InvalidInputError(f"BadSamples(limit=…) is a number or a share of samples, not {self.limit!r}")

    @property
    def tolerant(self) -> bool:
        """Whether the run continues after a bad sample."""
        return self.action != "raise"

    def check(self, count: int, rows: int, epoch_rows: int) -> None:
        """Raise `SampleError` if `count` bad samples in `rows` rows, of `epoch_rows` in all, are over the limit."""
        limit, grace = (_DEFAULT_LIMIT, _DEFAULT_GRACE) if self.limit is None else (self.limit, 0)
        share = int(limit * max(rows, min(_LIMIT_ROWS, epoch_rows)))
        allowed = limit if isinstance(limit, Integral) else max(grace, share)
        if count > allowed:
            raise SampleError(
                f"{count} samples were bad, more than BadSamples(limit={limit}) allows; "
                "look at stats().bad_samples, and repair or delete those rows"
            )


@dataclass(frozen=True)
class DecodeOptions:
    """How encoded columns are decoded."""

    decode: bool | Mapping[str, bool | Decoder] = True
    """Whether media are decoded; or, by column, whether, or a function of the encoded bytes."""
    image_size: int | tuple[int, int] | None = None
    """Height and width that images are resized to, or one number for both; None leaves them as stored."""

    def __post_init__(self) -> None:
        size: Any = self.image_size
        if size is None:
            return
        sizes = (size, size) if isinstance(size, Integral) else size
        if (
            not isinstance(sizes, Sequence)
            or len(sizes) != 2
            or not all(_is_whole(length, minimum=1) for length in sizes)
        ):
            raise InvalidInputError(
                f"image_size is a height and a width in pixels, or one number for both, not {size!r}"
            )
        object.__setattr__(self, "image_size", (int(sizes[0]), int(sizes[1])))

    def check(self, schema: Schema) -> None:
        """Raise `NotFoundError` for unknown columns and `InvalidInputError` for columns without encoded bytes."""
        for name in () if isinstance(self.decode, bool) else self.decode:
            self.decoder(schema[name])

    def only(self, names: Sequence[str]) -> "DecodeOptions":
        """The options of some columns, for a table of a mixture that lacks the others."""
        if isinstance(self.decode, bool):
            return self
        return replace(self, decode={name: choice for name, choice in self.decode.items() if name in names})

    @property
    def has_functions(self) -> bool:
        """Whether columns are decoded by functions of the user."""
        return not isinstance(self.decode, bool) and any(map(callable, self.decode.values()))

    def decoder(self, field: Field) -> "bool | Decoder":
        """The choice for one column; raises `InvalidInputError` for a function if the column holds no bytes."""
        choice = self.decode if isinstance(self.decode, bool) else self.decode.get(field.name, True)
        if callable(choice) and value_kind(field.kind).arrow_type != pa.binary():
            raise InvalidInputError(f"column {field.name!r} holds {field.kind} and no bytes that could be decoded")
        return choice

    def decodes(self, field: Field) -> bool:
        """Whether a column is encoded and gets decoded."""
        choice = self.decoder(field)
        return callable(choice) or (choice and isinstance(value_kind(field.kind), Image | Audio))

    def leaves_encoded(self, field: Field) -> bool:
        """Whether a column's media, also in lists, are delivered as they are stored."""
        kind = value_kind(field.kind)
        while isinstance(kind, List):
            kind = kind.of
        return isinstance(kind, Image | Audio) and self.decoder(field) is False

    def resizes(self, field: Field) -> bool:
        """Whether a column's images are resized; masks of class indices are not."""
        return self.image_size is not None and not isinstance(value_kind(field.kind), Mask)

    def image_shape(self, field: Field) -> tuple[int, ...] | None:
        """The fixed shape of a column's decoded images; None if it varies, or they are not decoded."""
        kind = value_kind(field.kind)
        if not isinstance(kind, Image) or self.decoder(field) is not True:
            return None
        if self.image_size is not None and self.resizes(field):
            assert isinstance(self.image_size, tuple)
            return (*self.image_size, *(kind.shape[2:] if kind.shape and not kind.inferred else (3,)))
        return kind.shape


@dataclass(frozen=True)
class Workers:
    """How many cores a loader uses, and how. Raises `InvalidInputError` for values out of range."""

    count: int
    """Cores for reading, decoding, collating and transforming; 0 uses the thread that iterates."""
    type: Literal["auto", "thread", "process"] = "auto"
    """"auto" uses processes for functions, which hold the GIL, and for more than three workers; and threads for small
    tables without functions, and where processes cannot read the table or build its batches. Functions in other
    processes cannot change variables of this one. With "process", functions that cannot be pickled are an error."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", _whole_number("num_workers", self.count, minimum=0))
        if self.type not in ("auto", "thread", "process"):
            raise InvalidInputError(f'Workers(type=…) is "auto", "thread" or "process", not {self.type!r}')


@dataclass(frozen=True)
class Transforms:
    """The user's functions, and how values of different shapes share a batch."""

    transform: Callable[..., Any] | None = None
    batch_transform: Callable[..., Any] | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    ragged: str | None = None
    """None is the adapter's default."""

    def ragged_mode(self, modes: Sequence[str]) -> str:
        """The chosen mode, by default the first of `modes`; raises `InvalidInputError` for any other."""
        if self.ragged is not None and self.ragged not in modes:
            names = ", ".join(f'"{mode}"' for mode in modes)
            raise InvalidInputError(
                f"collate_fn is a function of a list of samples, or one of {names}; not {self.ragged!r}"
            )
        return self.ragged or modes[0]


@dataclass(frozen=True)
class _Count:
    count: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", _whole_number(f"{type(self).__name__}(…)", self.count, minimum=1))


class Steps(_Count):
    """`until` of a loader: an iteration has so many steps, over as many epochs as they need; at least one."""


class Epochs(_Count):
    """`until` of a loader: an iteration has so many epochs; at least one."""


@dataclass(frozen=True)
class RunLength:
    """How much one iteration of a loader reads. Raises `InvalidInputError` for an end that is none."""

    until: Steps | Epochs | None
    """None never ends."""

    def __post_init__(self) -> None:
        if not isinstance(self.until, Steps | Epochs | None):
            raise InvalidInputError(
                "until is penstock.Steps(n), penstock.Epochs(n), or None for a loader that never ends, "
                f"not {self.until!r}"
            )

    @property
    def steps(self) -> int | None:
        """Steps of an iteration; None if it counts epochs, or never ends."""
        return self.until.count if isinstance(self.until, Steps) else None

    @property
    def epochs(self) -> int | None:
        """Epochs of an iteration; None if it counts steps, or never ends."""
        return self.until.count if isinstance(self.until, Epochs) else None

    def total_steps(self, epoch_steps: int) -> int | None:
        """Steps of an iteration, given those of an epoch; None if it never ends."""
        return self.steps if self.epochs is None else self.epochs * epoch_steps

    def check(self, epoch_steps: int) -> None:
        """Raise `InvalidInputError` if an iteration would look for its next step forever."""
        if not epoch_steps and self.epochs is None:
            raise InvalidInputError(
                "an epoch has no steps, so that this loader would never reach the next one: there are no rows, or "
                "drop_last=True drops all of them"
            )

    def is_complete(self, state: State) -> bool:
        """Whether an iteration has read all."""
        if self.steps is not None:
            return state.steps >= self.steps
        return self.epochs is not None and state.epochs >= self.epochs

    def resume(self, state: State) -> State:
        """Where an iteration starts from a loaded state.

        One epoch is a part of the user's own loop over epochs, so that a state at its end starts the next one.
        """
        if self.epochs != 1:
            return state
        return state.moved(state.epoch, state.consumed, steps=state.steps if state.consumed else 0, epochs=0)

    def next_start(self, state: State) -> State:
        """Where the next iteration starts, given where one was left: after its last step, or at the next epoch."""
        if self.steps is not None or not state.consumed:
            return state.moved(state.epoch, state.consumed, steps=0, epochs=0)
        return state.moved(state.epoch + 1, 0, steps=0, epochs=0)


class VersionFollower(Protocol):
    """Finds newer versions of a table."""

    def newest(self) -> str:
        """The name of the newest version of the branch."""

    def open(self, version: str) -> tuple[Reader, range | Int64Array, WeightedDraw | None]:
        """The table at a version, its rows and their draw; raises `PenstockError` if it lacks what a loader reads."""


@dataclass(frozen=True, kw_only=True)
class LoaderOptions:
    """Everything that decides how a loader streams a selection."""

    batch_size: int
    shuffle: Shuffle | None
    """None reads rows in table order."""
    workers: Workers
    prefetch_factor: int
    """Batches that each worker prepares ahead of the loop."""
    drop_last: bool
    memory_budget: int | None
    """Bytes for everything fetched, decoded or queued; None derives it from the shuffle window."""
    decode: DecodeOptions = field(default_factory=DecodeOptions)
    bad_samples: BadSamples = field(default_factory=lambda: BadSamples(action="raise"))
    run: RunLength = field(default_factory=lambda: RunLength(Epochs(1)))
    follow: VersionFollower | None = None
    """Moves the loader to the newest version at the end of an epoch; None stays at one version."""
    device_memory: int | None = None
    """Bytes of device memory for the window; None uses at most a quarter of what is free."""

    def __post_init__(self) -> None:
        for name in ("batch_size", "prefetch_factor"):
            object.__setattr__(self, name, _whole_number(name, getattr(self, name), minimum=1))
        for name, size in (("memory_budget", self.memory_budget), ("DeviceOptions(memory=…)", self.device_memory)):
            if size is not None and size < _MIN_BUDGET_BYTES:
                raise InvalidInputError(f"{name} is a number of bytes, at least 1 MiB, not {size}")

    @property
    def seed(self) -> int:
        """Seed of the order and of random transforms."""
        return 0 if self.shuffle is None else self.shuffle.seed

    def flags_rows(self, world: World) -> bool:
        """Whether batches have a `_pad` column that flags repeated and replacement rows."""
        return self.bad_samples.tolerant or (world.num_ranks > 1 and not self.drop_last)


def _is_whole(value: object, *, minimum: int) -> TypeGuard[Integral]:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= minimum


def _whole_number(name: str, value: object, *, minimum: int) -> int:
    if not _is_whole(value, minimum=minimum):
        raise InvalidInputError(f"{name} must be a whole number of at least {minimum}, not {value!r}")
    return int(value)  # numpy integers are not JSON serialisable
