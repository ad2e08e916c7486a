"""Batches of numpy arrays, for everything that has no adapter of its own."""

from collections.abc import Callable, Sequence
from typing import Any

from penstock.engine import Display, Loader, NumpyFinish, StreamOptions, given_world, ragged_columns
from penstock.errors import InvalidInputError
from penstock.table import Reader, Rows


def loader(
    reader: Reader,
    names: Sequence[str],
    rows: range | Rows,
    *,
    options: StreamOptions,
    distributed: tuple[int, int] | bool | None,
    transform: Callable[..., Any] | None,
    batch_transform: Callable[..., Any] | None,
    collate_fn: Callable[[list[Any]], Any] | None,
    ragged: str,
    display: Display | None,
) -> Loader:
    """Batches of arrays; see `View.numpy`."""
    if ragged not in ("list", "pad"):
        raise InvalidInputError(f'ragged is "list" or "pad", not {ragged!r}')
    finish = NumpyFinish(
        transform, batch_transform, collate_fn, ragged, ragged_columns(reader, names), options.bad.tolerant
    )
    world = given_world(distributed)
    return Loader(reader, names, rows, world=world, options=options, finish=finish, agree=None, display=display)
