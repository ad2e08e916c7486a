"""Stream a view to a framework."""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from inspect import signature
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from penstock.dataset._keywords import (
    OnBadSample,
    StreamKeywords,
    Transform,
    WorkerType,
    check_display,
    check_names,
    stream_options,
)
from penstock.engine import DecodeOptions, Decoder, Display, Loader
from penstock.errors import InvalidInputError
from penstock.table import ROW_ID, Reader, Rows

if TYPE_CHECKING:
    from penstock.adapters.jax import Sharding
    from penstock.adapters.tensorflow import InputContext, TensorflowDataset
    from penstock.adapters.torch import Device, DeviceTransform, Distributed, Ragged, RowDataset

_BATCH_SIZE = 64

Ranks = tuple[int, int] | Literal[False] | None
"""(rank, num_ranks) of this process, or that it reads all rows by itself."""


class Streaming:
    """What a view can do as a source of training data."""

    _reader: Reader
    _columns: tuple[str, ...]
    _rows: Rows | range

    @overload
    def pytorch(
        self,
        *,
        transform: Transform | None = None,
        columns: Sequence[str] | None = None,
        decode: bool | Mapping[str, bool | Decoder] = True,
        image_size: tuple[int, int] | None = None,
    ) -> "RowDataset": ...
    @overload
    def pytorch(
        self,
        *,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        num_workers: int | None = None,
        prefetch_factor: int | None = None,
        distributed: "Distributed" = None,
        transform: Transform | None = None,
        batch_transform: Transform | None = None,
        columns: Sequence[str] | None = None,
        decode: bool | Mapping[str, bool | Decoder] = True,
        image_size: tuple[int, int] | None = None,
        ragged: "Ragged" = "nested",
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        seed: int = 0,
        memory_budget: int | None = None,
        on_bad_sample: OnBadSample = "raise",
        bad_sample_limit: int | float = 0.01,
        worker_type: WorkerType = "thread",
        shuffle_block: int | None = None,
        shuffle_spread: float | None = None,
        lanes: int | None = None,
        device: "Device" = None,
        device_transform: "DeviceTransform | None" = None,
        device_memory: int | None = None,
        show: Display | None = None,
    ) -> Loader: ...
    def pytorch(
        self,
        *,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        num_workers: int | None = None,
        prefetch_factor: int | None = None,
        distributed: Any = None,
        transform: Transform | None = None,
        batch_transform: Transform | None = None,
        columns: Sequence[str] | None = None,
        decode: bool | Mapping[str, bool | Decoder] = True,
        image_size: tuple[int, int] | None = None,
        ragged: "Ragged" = "nested",
        collate_fn: Callable[[list[Any]], Any] | None = None,
        drop_last: bool = False,
        seed: int = 0,
        memory_budget: int | None = None,
        on_bad_sample: OnBadSample = "raise",
        bad_sample_limit: int | float = 0.01,
        worker_type: WorkerType = "thread",
        shuffle_block: int | None = None,
        shuffle_spread: float | None = None,
        lanes: int | None = None,
        device: "Device" = None,
        device_transform: "DeviceTransform | None" = None,
        device_memory: int | None = None,
        show: Display | None = None,
    ) -> "Loader | RowDataset":
        """Batches for a training loop; or, without the first five options, rows for `torch.utils.data.DataLoader`.

        batch_size: rows in a batch of one rank; 64 if not given.
        shuffle: read the rows in another order in each epoch, drawn from all over the table.
        num_workers: threads (or processes) that decode and transform; the number of cores, up to 8, if not given.
        prefetch_factor: batches that each worker has ready ahead of the loop; 2 if not given.
        distributed: ranks share the rows, and take as many steps as each other. Found by itself where
            torch.distributed is initialised; True insists on that, False turns it off; or a process group, one
            dimension of a DeviceMesh, or (rank, num_ranks).
        transform: a function of a sample, a dictionary of tensors; one that takes a second argument gets a
            `numpy.random.Generator` that depends on the seed, the epoch and the row alone.
        batch_transform: the same for a whole batch.
        columns: the columns to read, `_row_id` among them if named; all of the view's if not given.
        decode: False leaves media as bytes; a mapping says for each column whether, or by which function of the bytes.
        image_size: scale pictures to this height and width, so that they can share a batch.
        ragged: how values of different shapes share a batch: numbers as a "nested" tensor (pictures, sound and what
            differs in more than its first length then come as lists), or all padded ("pad", with their shapes in
            `<column>_shape`), or all as a "list".
        collate_fn: makes a batch of a list of samples, instead of stacking them.
        drop_last: leave out the rows that do not fill the last step. Else one rank gets a short batch, and several
            ranks get theirs filled with rows that `batch["_pad"]` marks.
        seed: another seed, another order.
        memory_budget: bytes for all that is fetched, decoded or waiting; as much as the shuffle needs if not given.
        on_bad_sample: "raise"; or "replace" (or "skip"), which puts another row in the place of one that cannot be
            read or transformed, so that all ranks stay in step; or a function that is told of it first, and may raise.
        bad_sample_limit: most bad samples, as a number or as a share of the rows, before the run is stopped.
        worker_type: "process" decodes and transforms in processes, for what is heavy in Python.
        shuffle_block, shuffle_spread, lanes: how rows are shuffled; see `penstock.plan.Shuffle`.
        device: where batches arrive: "cuda" (under torch.distributed the GPU of the local rank), "cuda:1" or "cpu".
            Copies and decoding have a stream of their own; a batch is yours for as long as you hold it. Rows of one
            shape are shuffled in the device's memory, and JPEGs decoded there, unless a transform must see them before.
        device_transform: a function of a batch that is on the device, or for each column one of its tensor, such as
            `penstock.Pixels(…)`; one that takes a second argument gets a generator, as above.
        device_memory: bytes of the device's memory for the shuffle's window; what the shuffle needs, up to a quarter of
            the free memory, if not given. If it does not fit, the window stays in host memory.
        show: a live "line" or "table" on standard error.
        """
        adapter = _adapter("torch", "PyTorch")
        names = self._chosen(columns)
        decoding = DecodeOptions(decode, image_size)
        if all(option is None for option in (batch_size, shuffle, num_workers, prefetch_factor, distributed, device)):
            dataset: RowDataset = adapter.row_dataset(
                self._reader, names, self._rows, decode=decoding, transform=transform
            )
            return dataset
        options = stream_options(
            batch_size=_BATCH_SIZE if batch_size is None else batch_size,
            shuffle=shuffle,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            decode=decoding,
            drop_last=drop_last,
            seed=seed,
            memory_budget=memory_budget,
            on_bad_sample=on_bad_sample,
            bad_sample_limit=bad_sample_limit,
            worker_type=worker_type,
            shuffle_block=shuffle_block,
            shuffle_spread=shuffle_spread,
            lanes=lanes,
            device_memory=device_memory,
        )
        loader: Loader = adapter.loader(
            self._reader,
            names,
            self._rows,
            options=options,
            distributed=distributed,
            transform=transform,
            batch_transform=batch_transform,
            collate_fn=collate_fn,
            ragged=ragged,
            device=device,
            device_transform=device_transform,
            display=check_display(show),
        )
        return loader

    def numpy(
        self,
        *,
        batch_size: int = _BATCH_SIZE,
        distributed: Ranks = None,
        ragged: Literal["list", "pad"] = "list",
        **options: Unpack[StreamKeywords],
    ) -> Loader:
        """Batches of numpy arrays: dictionaries by column, for everything that has no method of its own.

        distributed: (rank, num_ranks) of this process; ranks share the rows, and take as many steps as each other.
        ragged: how values of different shapes share a batch: as a "list", or padded ("pad", with their shapes in
            `<column>_shape`).
        options: as for `pytorch`; samples are dictionaries of numpy arrays.
        """
        loader: Loader = _adapter("numpy", "numpy").loader(
            **self._source("numpy", batch_size, options), distributed=distributed, ragged=ragged
        )
        return loader

    def jax(
        self,
        *,
        batch_size: int = _BATCH_SIZE,
        sharding: "Sharding | None" = None,
        distributed: bool | tuple[int, int] | None = None,
        ragged: Literal["pad", "list"] = "pad",
        **options: Unpack[StreamKeywords],
    ) -> Loader:
        """Batches of jax arrays, which are on their devices, or on their way, before the loop asks for them.

        batch_size: rows in a batch of one process.
        sharding: how the first dimension is laid out over devices, such as `NamedSharding(mesh, P("data"))`; batches
            are then arrays of all processes together. Processes that hold the same part of it read the same rows.
        distributed: processes share the rows. Found by itself where several run (call `jax.distributed.initialize()`
            first); True insists on that, False turns it off; or (rank, num_ranks).
        ragged: how values of different shapes share a batch: padded ("pad", with their shapes in `<column>_shape`), or
            as a "list".
        options: as for `pytorch`; samples and batches are numpy arrays until the transforms are done.

        Text, times and what else is no number stay as they are. Without `jax_enable_x64`, jax has no numbers of 64
        bits: they become numbers of 32, and a whole number that does not fit is an error.
        """
        loader: Loader = _adapter("jax", "JAX").loader(
            **self._source("jax", batch_size, options), sharding=sharding, distributed=distributed, ragged=ragged
        )
        return loader

    def tensorflow(
        self,
        *,
        batch_size: int = _BATCH_SIZE,
        distributed: "Ranks | InputContext" = None,
        ragged: Literal["ragged", "pad"] = "ragged",
        output_signature: Any = None,
        **options: Unpack[StreamKeywords],
    ) -> "TensorflowDataset":
        """Batches as a `tf.data.Dataset`; each iteration over it is the next epoch.

        Its attribute `penstock` is the loader behind it, with `state_dict`, `load_state_dict`, `set_epoch`, `stats` and
        `len`. It reads ahead by itself; a `prefetch` behind it makes its state run ahead of your loop.

        distributed: (rank, num_ranks) of this process, or the `tf.distribute.InputContext` that
            `strategy.distribute_datasets_from_function` gives you.
        ragged: how values of different shapes share a batch: those that differ in their first length alone as a
            "ragged" tensor, and all others padded ("pad" pads all), with their shapes in `<column>_shape`.
        output_signature: the specification of a batch, as for `Dataset.from_generator`; entries of a batch that it does
            not name are left out. If not given, a first row is read and transformed to find it.
        options: as for `pytorch`; samples and batches are numpy arrays until the transforms are done.

        Text is tf.string, empty where it is missing; times are whole numbers; JSON, lists and structs are JSON text.
        """
        dataset: TensorflowDataset = _adapter("tensorflow", "TensorFlow").dataset(
            **self._source("tensorflow", batch_size, options),
            distributed=distributed,
            ragged=ragged,
            output_signature=output_signature,
        )
        return dataset

    def _source(self, method: str, batch_size: int, given: StreamKeywords) -> dict[str, Any]:
        """What an adapter is told of rows, options and functions, with `pytorch`'s defaults for what is not given."""
        check_names(given, method)
        usual = signature(Streaming.pytorch).parameters
        choice: Any = {name: usual[name].default for name in StreamKeywords.__annotations__} | given
        decode = DecodeOptions(choice.pop("decode"), choice.pop("image_size"))
        return {
            "reader": self._reader,
            "names": self._chosen(choice.pop("columns")),
            "rows": self._rows,
            "display": check_display(choice.pop("show")),
            **{name: choice.pop(name) for name in ("transform", "batch_transform", "collate_fn")},
            "options": stream_options(batch_size=batch_size, decode=decode, **choice),
        }

    def _chosen(self, columns: Sequence[str] | None) -> Sequence[str]:
        if columns is None:
            return self._columns
        names = [columns] if isinstance(columns, str) else list(columns)
        for name in names:
            if name != ROW_ID:
                self._reader.snapshot.schema[name]
        return names


def _adapter(name: str, product: str) -> ModuleType:
    try:
        return import_module(f"penstock.adapters.{name}")
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise InvalidInputError(f"{product} is not installed: pip install 'penstock[{name}]'") from error
