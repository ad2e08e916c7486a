"""Batches for TensorFlow, as a `tf.data.Dataset`."""

import json
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from penstock.engine import (
    PAD,
    BadRowsError,
    BatchFormatter,
    Columns,
    ConvertedFormatter,
    Loader,
    LoaderOptions,
    MixedRowReader,
    MixtureSource,
    Progress,
    RowKeys,
    RowReader,
    Source,
    Transforms,
    explicit_world,
    map_leaves,
    ragged_columns,
)
from penstock.errors import InvalidInputError

_MAX_EXAMPLES = 64

InputContext: TypeAlias = tf.distribute.InputContext
TensorflowDataset: TypeAlias = tf.data.Dataset


def dataset(
    source: Source | MixtureSource,
    *,
    options: LoaderOptions,
    transforms: Transforms,
    distributed: tuple[int, int] | InputContext | bool | None,
    output_signature: Any,
    progress: Progress | None,
) -> TensorflowDataset:
    """Batches of tensors; see `View.tensorflow`."""
    if isinstance(distributed, tf.distribute.InputContext):
        distributed = (distributed.input_pipeline_id, distributed.num_input_pipelines)
    world = explicit_world(distributed)
    functions = (transforms.transform, transforms.batch_transform, transforms.collate_fn)
    ragged_mode = "rows" if transforms.ragged_mode(("ragged", "pad")) == "ragged" else "pad"
    columns = ragged_columns(source.fields)
    formatter = ConvertedFormatter(*functions, ragged_mode, columns, options.bad_samples.tolerant, put=_element)
    loader = Loader(source, world=world, options=options, formatter=formatter, agreement=None, progress=progress)
    if output_signature is None:
        probe = _SignatureProbe(*functions, ragged_mode, columns, options.bad_samples.tolerant)
        row_reader = source.row_reader(options.decode, lease=False)
        output_signature = probe.signature(row_reader, options, flagged=options.flags_rows(world))
    # TensorFlow never frees the function, so it has a weak reference: the loader's threads end with the dataset, which
    # iterators keep alive.
    epoch = partial(_epoch, weakref.ref(loader), output_signature)
    batches = tf.data.Dataset.from_generator(epoch, output_signature=output_signature).with_options(_options())
    batches.penstock = loader
    return batches


def _epoch(loader_ref: weakref.ref[Loader], signature: Any) -> Iterator[Any]:
    loader = loader_ref()
    if loader is None:
        raise InvalidInputError(
            "the dataset that ds.tensorflow(…) returned was deleted: keep a reference to it while reading"
        )
    for batch in loader:
        if isinstance(batch, dict) and isinstance(signature, dict):
            yield {name: batch[name] for name in signature if name in batch}
        else:
            yield batch
        del batch


def _options() -> tf.data.Options:
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # else the loader's state runs ahead
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


def _element(batch: Any) -> Any:
    """Convert a batch to values that tf.data accepts."""
    return map_leaves(_leaf, batch, leaf_type=list)


def _leaf(value: Any) -> Any:
    if isinstance(value, list):
        if any(isinstance(item, np.ndarray) for item in value):
            lengths = [len(item) for item in value]
            return tf.RaggedTensor.from_row_lengths(_datetimes_to_int64(np.concatenate(value)), lengths, validate=False)
        return np.array([_to_bytes(item) for item in value], object)
    return _datetimes_to_int64(value) if isinstance(value, np.ndarray) else value


def _datetimes_to_int64(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array.view(np.int64) if array.dtype.kind in "Mm" else array


def _to_bytes(value: Any) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    try:
        return json.dumps(value, ensure_ascii=False, default=_to_list).encode()
    except TypeError as error:
        raise InvalidInputError(
            f"TensorFlow has no type for a {type(value).__name__} ({error}); convert it with transform=…, or "
            "leave the column out with ds.select(…)"
        ) from error


def _to_list(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not JSON serialisable")


@dataclass
class _SignatureProbe(BatchFormatter):
    """Builds batches of one row, to infer the signature of all batches."""

    open_shapes: dict[int, tuple[int | None, ...]] = field(default_factory=dict)
    """The shape of a row, None where the length varies between batches, by the id of an array of the current batch."""

    def signature(self, reader: RowReader | MixedRowReader, options: LoaderOptions, *, flagged: bool) -> Any:
        """The signature of the first usable row without nulls, or else of the last usable one, of the first rows.

        Raises `InvalidInputError` if no row is usable.
        """
        size = options.batch_size if options.drop_last else None
        inferred, reason = None, None
        for index in range(min(len(reader), _MAX_EXAMPLES)):
            try:
                columns = reader.read([index])
                batch = self._batch(columns | {PAD: np.zeros(1, bool)} if flagged else columns, options.seed)
            except Exception as error:  # a user's function may raise anything
                if not self.tolerant:
                    raise
                reason = error
                continue
            inferred = map_leaves(partial(self._spec, size), batch, leaf_type=list)
            if all(value is not None for values in columns.values() for value in values):
                break
        if inferred is None:
            raise InvalidInputError(
                "the signature of a batch cannot be inferred: no row is usable; pass output_signature=…, as for "
                "tf.data.Dataset.from_generator"
            ) from reason
        return inferred

    def _batch(self, columns: Columns, seed: int) -> Any:
        self.open_shapes.clear()
        try:
            return self(columns, RowKeys(seed, 0, np.zeros(1, np.int64)))
        except BadRowsError as bad:
            raise bad.failures[0] from None

    def format_ragged(self, name: str, values: Sequence[Any], empty: npt.NDArray[Any] | None) -> dict[str, Any]:
        columns = super().format_ragged(name, values, empty)
        array = columns[name]
        if isinstance(array, np.ndarray):
            lengths = (0,) * (array.ndim - 1) if empty is None else empty.shape
            self.open_shapes[id(array)] = tuple(length or None for length in lengths)
        return columns

    def _spec(self, size: int | None, value: Any) -> Any:
        leaf = _leaf(value)
        if isinstance(leaf, tf.RaggedTensor):
            return tf.RaggedTensorSpec((size, None, *leaf.shape[2:]), leaf.dtype, leaf.ragged_rank)
        array = np.asarray(leaf)
        dtype = tf.string if array.dtype.kind in "OSU" else tf.as_dtype(array.dtype)
        if array.ndim == 0:
            return tf.TensorSpec((), dtype)
        rows = size if len(array) == 1 else len(array)
        return tf.TensorSpec((rows, *self.open_shapes.get(id(value), array.shape[1:])), dtype)
