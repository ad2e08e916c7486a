"""Batches of numpy arrays, for frameworks without an adapter."""

from collections.abc import Sequence

from penstock.engine import (
    Loader,
    LoaderOptions,
    NumpyFormatter,
    Progress,
    Rows,
    Transforms,
    explicit_world,
    ragged_columns,
)
from penstock.table import Reader


def loader(
    reader: Reader,
    names: Sequence[str],
    rows: Rows,
    *,
    options: LoaderOptions,
    transforms: Transforms,
    distributed: tuple[int, int] | bool | None,
    progress: Progress | None,
) -> Loader:
    """Batches of arrays; see `View.numpy`."""
    formatter = NumpyFormatter(
        transforms.transform, transforms.batch_transform, transforms.collate_fn,
        transforms.ragged_mode(("list", "pad")), ragged_columns(reader, names, rows), options.bad_samples.tolerant,
    )  # fmt: skip
    world = explicit_world(distributed)
    return Loader(
        reader, names, rows, world=world, options=options, formatter=formatter, agreement=None, progress=progress
    )
