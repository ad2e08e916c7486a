"""What a user can set on a loader, as frozen values that are validated once."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any, Literal

from penstock.engine._decode import DecodeOptions
from penstock.engine._stats import BadSample
from penstock.errors import InvalidInputError, SampleError
from penstock.plan import Shuffle
from penstock.types import World

_DEFAULT_LIMIT = 0.01
_DEFAULT_GRACE, _LIMIT_ROWS = 100, 1000
_MIN_BUDGET_BYTES = 1 << 20


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
        limit = _DEFAULT_LIMIT if self.limit is None else self.limit
        share = int(limit * max(rows, min(_LIMIT_ROWS, epoch_rows)))
        allowed = (
            limit if isinstance(limit, Integral) else share if self.limit is not None else max(_DEFAULT_GRACE, share)
        )
        if count > allowed:
            raise SampleError(
                f"{count} samples were bad, more than BadSamples(limit={limit}) allows; "
                "look at stats().bad_samples, and repair or delete those rows"
            )


@dataclass(frozen=True)
class Workers:
    """How many workers a loader has, and what they are. Raises `InvalidInputError` for values out of range."""

    count: int
    """Workers that decode, collate and transform; 0 does that in the thread that iterates."""
    type: Literal["thread", "process"] = "thread"
    """"process" for decoders and transforms that spend their time in Python."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "count", _whole_number("num_workers", self.count, minimum=0))
        if self.type not in ("thread", "process"):
            raise InvalidInputError(f'Workers(type=…) is "thread" or "process", not {self.type!r}')


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


def _whole_number(name: str, value: object, *, minimum: int) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < minimum:
        raise InvalidInputError(f"{name} must be a whole number of at least {minimum}, not {value!r}")
    return int(value)  # numpy integers are not JSON serialisable
