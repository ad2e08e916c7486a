"""Ranks that share an epoch: their explicit numbers, and a check that all read the same one."""

from collections.abc import Callable
from typing import Any

from penstock.engine._loader import ConsistencyCheck
from penstock.engine._options import LoaderOptions
from penstock.engine.sources import State
from penstock.errors import InvalidInputError
from penstock.types import World


def explicit_world(distributed: object) -> World:
    """The rank from `distributed=(rank, num_ranks)`; raises `InvalidInputError` for anything else."""
    if distributed is None or distributed is False:
        return World()
    if not isinstance(distributed, tuple):
        raise InvalidInputError(f"distributed is (rank, num_ranks) or False here, not {distributed!r}")
    try:
        return World(*distributed)
    except (TypeError, ValueError) as error:
        raise InvalidInputError(f"distributed=(rank, num_ranks) got {distributed}: {error}") from error


def rank_consistency_check(options: LoaderOptions, gather: Callable[[Any], list[Any]]) -> ConsistencyCheck:
    """A check that all ranks read the same epoch; otherwise rows would repeat, or ranks would wait forever.

    `gather` takes a JSON value and returns those of all ranks.
    """

    def check(state: State) -> None:
        point = {
            "the epoch": state.epoch, "the rows read before": state.consumed,
            "batch_size": options.batch_size, "drop_last": options.drop_last,
        }  # fmt: skip
        found = [(type(state).from_json(its).order, there) for its, there in gather([state.to_json(), point])]
        first: Any
        first, start = found[0]
        for rank, (its, there) in enumerate(found):
            others = (
                f"{name}: {there[name]} there, {start[name]} here" for name in start if there[name] != start[name]
            )
            difference = first.difference(its) or next(others, None)
            if difference is not None:
                raise InvalidInputError(
                    f"ranks 0 and {rank} would not read the same epoch, they differ in {difference} (as seen from "
                    f"rank 0; versions {first.version} and {its.version}); "
                    "open the same version with the same options on every rank"
                )

    return check
