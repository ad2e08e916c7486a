"""Ranks that share an epoch: their explicit numbers, and agreement on what all of them read."""

from collections.abc import Callable
from typing import Any

from penstock.engine._options import LoaderOptions
from penstock.errors import InvalidInputError, PenstockError
from penstock.plan import State
from penstock.types import World

Gather = Callable[[Any], list[Any]]
"""Takes a JSON value and returns those of all ranks."""


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


class RankAgreement:
    """Ranks of a process group that must read the same; otherwise rows would repeat, or ranks would wait forever."""

    def __init__(self, options: LoaderOptions, gather: Gather) -> None:
        self._options, self._gather = options, gather

    def check(self, state: State) -> None:
        """Compare the order and the position of all ranks; raises `InvalidInputError` if they differ."""
        options = self._options
        point = {
            "the epoch": state.epoch, "the rows read before": state.consumed, "the steps before": state.steps,
            "the epochs before": state.epochs, "batch_size": options.batch_size, "drop_last": options.drop_last,
            "until": str(options.run.until), "following": options.follow is not None,
        }  # fmt: skip
        ranks = [(type(state).from_json(its).order, there) for its, there in self._gather([state.to_json(), point])]
        first: Any
        first, start = ranks[0]
        for rank, (its, there) in enumerate(ranks):
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

    def gather(self, compute: Callable[[], Any]) -> list[Any]:
        """What each rank computes, a JSON value; if one rank fails, all raise an error."""
        value, error = None, None
        try:
            value = compute()
        except Exception as raised:  # any: without an answer of this rank, the others would wait forever
            error = raised
        answers = self._gather([value, None if error is None else str(error)])
        if error is not None:
            raise error
        for rank, (_, reason) in enumerate(answers):
            if reason is not None:
                raise PenstockError(f"rank {rank} failed, and so all ranks stop: {reason}")
        return [value for value, _ in answers]
