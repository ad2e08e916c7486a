"""Batches of numpy arrays, for frameworks without an adapter."""

from penstock.engine import (
    BatchFormatter,
    Loader,
    LoaderOptions,
    MixtureSource,
    Progress,
    Source,
    Transforms,
    explicit_world,
    ragged_columns,
)


def loader(
    source: Source | MixtureSource,
    *,
    options: LoaderOptions,
    transforms: Transforms,
    distributed: tuple[int, int] | bool | None,
    progress: Progress | None,
) -> Loader:
    """Batches of arrays; see `View.numpy`."""
    formatter = BatchFormatter(
        transforms.transform, transforms.batch_transform, transforms.collate_fn,
        transforms.ragged_mode(("list", "pad")), ragged_columns(source.fields), options.bad_samples.tolerant,
    )  # fmt: skip
    world = explicit_world(distributed)
    return Loader(source, world=world, options=options, formatter=formatter, agreement=None, progress=progress)
