"""Batches for TensorFlow, as a `tf.data.Dataset`."""

import json
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from penstock.engine import (
    PAD,
    BadRows,
    Columns,
    Display,
    LiftedFinish,
    Loader,
    NumpyFinish,
    RowKeys,
    RowReader,
    StreamOptions,
    given_world,
    map_leaves,
    ragged_columns,
)
from penstock.errors import InvalidInputError
from penstock.table import Reader, Rows

_EXAMPLES = 64

InputContext: TypeAlias = tf.distribute.InputContext
TensorflowDataset: TypeAlias = tf.data.Dataset


def dataset(
    reader: Reader,
    names: Sequence[str],
    rows: range | Rows,
    *,
    options: StreamOptions,
    distributed: tuple[int, int] | InputContext | bool | None,
    transform: Callable[..., Any] | None,
    batch_transform: Callable[..., Any] | None,
    collate_fn: Callable[[list[Any]], Any] | None,
    ragged: str,
    output_signature: Any,
    display: Display | None,
) -> TensorflowDataset:
    """Batches of tensors; see `View.tensorflow`."""
    if ragged not in ("ragged", "pad"):
        raise InvalidInputError(f'ragged is "ragged" or "pad", not {ragged!r}')
    if isinstance(distributed, tf.distribute.InputContext):
        distributed = (distributed.input_pipeline_id, distributed.num_input_pipelines)
    world = given_world(distributed)
    functions = (transform, batch_transform, collate_fn)
    uneven = "rows" if ragged == "ragged" else "pad"
    columns = ragged_columns(reader, names)
    finish = LiftedFinish(*functions, uneven, columns, options.bad.tolerant, put=_element)
    loader = Loader(reader, names, rows, world=world, options=options, finish=finish, agree=None, display=display)
    if output_signature is None:
        example = _Example(*functions, uneven, columns, options.bad.tolerant)
        row_reader = RowReader(reader, names, rows, options.decode)
        output_signature = example.signature(row_reader, options, flagged=options.flags(world))
    # TensorFlow never lets go of the function; the loader's threads end with the dataset, which iterators keep alive.
    epoch = partial(_epoch, weakref.ref(loader), output_signature)
    made = tf.data.Dataset.from_generator(epoch, output_signature=output_signature).with_options(_options())
    made.penstock = loader
    return made


def _epoch(found: weakref.ref[Loader], signature: Any) -> Iterator[Any]:
    loader = found()
    if loader is None:
        raise InvalidInputError("the dataset that ds.tensorflow(…) returned is gone: hold it while you read from it")
    for batch in loader:
        if isinstance(batch, dict) and isinstance(signature, dict):
            yield {name: batch[name] for name in signature if name in batch}
        else:
            yield batch
        del batch


def _options() -> tf.data.Options:
    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # or the state would run ahead of the loop
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return options


def _element(batch: Any) -> Any:
    """A batch as tf.data takes it."""
    return map_leaves(_leaf, batch, whole=list)


def _leaf(value: Any) -> Any:
    if isinstance(value, list):
        if any(isinstance(item, np.ndarray) for item in value):
            lengths = [len(item) for item in value]
            return tf.RaggedTensor.from_row_lengths(_number(np.concatenate(value)), lengths, validate=False)
        return np.array([_text(item) for item in value], object)
    return _number(value) if isinstance(value, np.ndarray) else value


def _number(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array.view(np.int64) if array.dtype.kind in "Mm" else array


def _text(value: Any) -> bytes:
    if value is None:
        return b""
    if isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    try:
        return json.dumps(value, ensure_ascii=False, default=_listed).encode()
    except TypeError as error:
        raise InvalidInputError(
            f"TensorFlow has nothing to hold a {type(value).__name__} with ({error}); change it with transform=…, or "
            "leave the column out with columns=…"
        ) from error


def _listed(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON")


@dataclass
class _Example(NumpyFinish):
    """Makes batches of one row, to see what all batches look like."""

    open_shapes: dict[int, tuple[int | None, ...]] = field(default_factory=dict)
    """Shapes of rows, without the lengths that other batches may not have, by the id of an array of this one."""

    def signature(self, reader: RowReader, options: StreamOptions, *, flagged: bool) -> Any:
        """The specification of the first row that can be used and has all its values, or else of the last of some."""
        size = options.batch_size if options.drop_last else None
        found, reason = None, None
        for number in range(min(len(reader), _EXAMPLES)):
            try:
                columns = reader.read([number])
                batch = self._batch(columns | {PAD: np.zeros(1, bool)} if flagged else columns, options.seed)
            except Exception as error:  # a user's function may raise anything
                if not self.tolerant:
                    raise
                reason = error
                continue
            found = map_leaves(partial(self._spec, size), batch, whole=list)
            if all(value is not None for values in columns.values() for value in values):
                break
        if found is None:
            raise InvalidInputError(
                "there is no row that shows what a batch looks like: pass output_signature=…, as for "
                "tf.data.Dataset.from_generator"
            ) from reason
        return found

    def _batch(self, columns: Columns, seed: int) -> Any:
        self.open_shapes.clear()
        try:
            return self(columns, RowKeys(seed, 0, np.zeros(1, np.int64)))
        except BadRows as bad:
            raise bad.failures[0] from None

    def uneven(self, name: str, values: Sequence[Any], empty: npt.NDArray[Any] | None) -> dict[str, Any]:
        """See `NumpyFinish`."""
        found = super().uneven(name, values, empty)
        array = found[name]
        if isinstance(array, np.ndarray):
            lengths = (0,) * (array.ndim - 1) if empty is None else empty.shape
            self.open_shapes[id(array)] = tuple(length or None for length in lengths)
        return found

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
