"""Stream a view or a mixture to a training framework."""

from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from penstock.dataset._options import (
    BATCH_SIZE,
    DEFAULTS,
    ONE_EPOCH,
    LoaderKeywords,
    Transform,
    as_progress,
    as_transforms,
    check_keywords,
    check_no_loader_options,
    explain_unknown,
    loader_options,
)
from penstock.device import DeviceOptions
from penstock.engine import (
    BadSamples,
    DecodeOptions,
    Decoder,
    Epochs,
    Loader,
    MixtureSource,
    Progress,
    Source,
    Steps,
    VersionFollower,
    Workers,
)
from penstock.errors import InvalidInputError
from penstock.plan import Shuffle

if TYPE_CHECKING:
    from penstock.adapters.jax import Sharding
    from penstock.adapters.tensorflow import InputContext, TensorflowDataset
    from penstock.adapters.torch import Distributed
    from penstock.adapters.torch_rows import RowDataset

Ranks = tuple[int, int] | Literal[False] | None
"""(rank, num_ranks) of this process, or False or None to read all rows."""


class Streaming:
    """What views and mixtures can do as sources of training data."""

    def _pinned(self) -> "Streaming":
        raise NotImplementedError

    def _source(self) -> Source | MixtureSource:
        """What a loader reads; quarantined rows are left out."""
        raise NotImplementedError

    def _row_source(self) -> Source | MixtureSource:
        """What is read by position; raises `InvalidInputError` if rows have none."""
        return self._source()

    def _follower(self) -> VersionFollower | None:
        """Finds newer versions of what a loader reads; None stays at one version."""
        return None

    @overload
    def pytorch(
        self,
        *,
        transform: Transform | None = None,
        decode: bool | Mapping[str, bool | Decoder] = True,
        image_size: int | tuple[int, int] | None = None,
    ) -> "RowDataset": ...
    @overload
    def pytorch(
        self,
        *,
        batch_size: int | None = None,
        shuffle: bool | Shuffle | None = None,
        num_workers: int | Workers | None = None,
        prefetch_factor: int | None = None,
        distributed: "Distributed" = None,
        transform: Transform | None = None,
        batch_transform: Transform | None = None,
        collate_fn: Literal["nested", "pad", "list"] | Callable[[list[Any]], Any] | None = None,
        decode: bool | Mapping[str, bool | Decoder] = True,
        image_size: int | tuple[int, int] | None = None,
        drop_last: bool = False,
        memory_budget: int | str | None = None,
        bad_samples: Literal["raise", "replace", "skip"] | BadSamples = "raise",
        until: Steps | Epochs | None = ONE_EPOCH,
        device: "str | DeviceOptions | Any | None" = None,
        progress: Progress | bool | None = None,
    ) -> Loader: ...
    @explain_unknown
    def pytorch(
        self,
        *,
        batch_size: int | None = None,
        shuffle: bool | Shuffle | None = None,
        num_workers: int | Workers | None = None,
        prefetch_factor: int | None = None,
        distributed: Any = None,
        transform: Transform | None = None,
        batch_transform: Transform | None = None,
        collate_fn: Literal["nested", "pad", "list"] | Callable[[list[Any]], Any] | None = None,
        decode: bool | Mapping[str, bool | Decoder] = True,
        image_size: int | tuple[int, int] | None = None,
        drop_last: bool = False,
        memory_budget: int | str | None = None,
        bad_samples: Literal["raise", "replace", "skip"] | BadSamples = "raise",
        until: Steps | Epochs | None = ONE_EPOCH,
        device: Any = None,
        progress: Progress | bool | None = None,
    ) -> "Loader | RowDataset":
        """A loader of batches; or, without options, a dataset of rows for `torch.utils.data.DataLoader`.

        Any of `batch_size`, `shuffle`, `num_workers`, `prefetch_factor`, `distributed` and `device` gives a loader.
        Without them, `transform`, `decode` and `image_size` apply to rows, and every other option raises
        `InvalidInputError`, because it would be ignored. Views choose what is read: `select`, `where`, `windows`,
        `weighted`, `balanced`, `following`, ….

        batch_size: rows in a batch of one rank; by default 64.
        shuffle: True reads the rows in a different order in each epoch, drawn from the whole table;
            `penstock.Shuffle(…)` also sets the seed and the quality.
        num_workers: cores to use; by default those of the machine, up to 8. Functions run in worker processes, where
            they cannot change variables of this one; without any, three and fewer, or a small table, use threads.
            `penstock.Workers(8, "thread")` or `"process"` chooses; `stats()` has the numbers.
        prefetch_factor: batches that each worker prepares ahead of the loop; by default 2.
        distributed: partition the rows over ranks, which all take the same number of steps. Detected where
            torch.distributed is initialised; True requires that, False disables it; or a process group, one dimension
            of a DeviceMesh, or (rank, num_ranks).
        transform: a function of a sample, a dictionary of tensors; with a second parameter it also gets a
            `numpy.random.Generator` that depends only on the seed, the epoch and the row. In a dataset of rows, torch
            decides: the generator's seed is drawn from torch's own, so that each row of each epoch gets other numbers,
            and `torch.manual_seed` before a DataLoader makes them the same again for the same number of workers.
        batch_transform: the same for a whole batch.
        collate_fn: a function from a list of samples to a batch. Or how values of different shapes share a batch:
            "nested", the default, makes nested tensors of numbers that differ in their first length and lists of the
            rest; "pad" pads with zeros and adds the shapes as `<column>_shape`; "list" gives lists.
        decode: False leaves media encoded; a mapping decides by column, or names a function of the encoded bytes.
        image_size: resize images to this height and width, or to a square, so that they can share a batch.
        drop_last: drop the rows that do not fill the last step. Otherwise a single rank gets a short last batch, and
            several ranks get theirs filled with repeated rows, flagged in `batch["_pad"]`.
        memory_budget: bytes, or text such as "1GB", for everything fetched, decoded or queued, in all processes; by
            default what the shuffle window needs. A small one makes reading slower, and changes nothing else.
        bad_samples: what happens to a row that cannot be read, decoded or transformed: "raise" its error; "replace"
            (or "skip") it by another row, flagged in `batch["_pad"]`, so that all ranks stay in step; or
            `penstock.BadSamples(…)` for a limit and a callback.
        until: where an iteration ends: after `penstock.Epochs(n)`, by default one, or after `penstock.Steps(n)`, over
            as many epochs as they need; None never ends. The next epoch is prefetched. After `load_state_dict` an
            iteration reads only the rest.
        device: put batches on "cuda" (under torch.distributed the GPU of the local rank), "cuda:1" or "cpu".
            `penstock.DeviceOptions(…)` also sets a transform that runs there, and the memory of the shuffle window.
            Fixed-shape rows are shuffled in device memory, and JPEGs decoded there, unless a transform needs them on
            the host.
        progress: show a live "line" or "table" on standard error.

        Raises `InvalidInputError` for an option that is out of range, `NotFoundError` for an unknown column.
        """
        given: LoaderKeywords = {
            "shuffle": shuffle, "num_workers": num_workers, "prefetch_factor": prefetch_factor, "transform": transform,
            "batch_transform": batch_transform, "decode": decode, "image_size": image_size, "collate_fn": collate_fn,
            "drop_last": drop_last, "memory_budget": memory_budget, "bad_samples": bad_samples, "until": until,
            "progress": progress,
        }  # fmt: skip
        adapter = _adapter("torch", "PyTorch")
        if all(option is None for option in (batch_size, shuffle, num_workers, prefetch_factor, distributed, device)):
            check_no_loader_options(given)
            dataset: RowDataset = adapter.row_dataset(
                self._pinned()._row_source(), decode=DecodeOptions(decode, image_size), transform=transform
            )
            return dataset
        if device is not None and not isinstance(device, DeviceOptions):
            device = DeviceOptions(device=device)
        loader: Loader = adapter.loader(
            **self._arguments(given, BATCH_SIZE if batch_size is None else batch_size, device),
            distributed=distributed,
            device=device,
        )
        return loader

    def numpy(
        self, *, batch_size: int = BATCH_SIZE, distributed: Ranks = None, **options: Unpack[LoaderKeywords]
    ) -> Loader:
        """A loader of batches of numpy arrays: dictionaries by column, for any framework without a method of its own.

        distributed: (rank, num_ranks) of this process; ranks partition the rows and take the same number of steps.
        options: as for `pytorch`; samples are dictionaries of numpy arrays. `collate_fn` is "list", the default, or
            "pad", or a function.

        Raises `TypeError` for an unknown option, and `InvalidInputError` for one that is out of range.
        """
        loader: Loader = _adapter("numpy", "numpy").loader(
            **self._keyword_arguments("numpy", options, batch_size), distributed=distributed
        )
        return loader

    def jax(
        self,
        *,
        batch_size: int = BATCH_SIZE,
        sharding: "Sharding | None" = None,
        distributed: bool | tuple[int, int] | None = None,
        **options: Unpack[LoaderKeywords],
    ) -> Loader:
        """A loader of batches of jax arrays, transferred to their devices ahead of the loop.

        batch_size: rows in a batch of one process.
        sharding: how the first dimension is laid out over devices, such as `NamedSharding(mesh, P("data"))`; batches
            are then global arrays. Processes that hold the same shard read the same rows.
        distributed: partition the rows over processes. Detected where several run (call `jax.distributed.initialize()`
            first); True requires that, False disables it; or (rank, num_ranks).
        options: as for `pytorch`; samples and batches are numpy arrays until the transforms are done. `collate_fn` is
            "pad", the default, or "list", or a function.

        Text, times and other values that are not numbers are not converted. Without `jax_enable_x64`, 64-bit numbers
        become 32-bit ones; an integer that does not fit raises `InvalidInputError`.
        """
        loader: Loader = _adapter("jax", "JAX").loader(
            **self._keyword_arguments("jax", options, batch_size), sharding=sharding, distributed=distributed
        )
        return loader

    def tensorflow(
        self,
        *,
        batch_size: int = BATCH_SIZE,
        distributed: "Ranks | InputContext" = None,
        output_signature: Any = None,
        **options: Unpack[LoaderKeywords],
    ) -> "TensorflowDataset":
        """A `tf.data.Dataset` of batches; each iteration over it is the next epoch.

        Its attribute `penstock` is the loader, with `state_dict`, `load_state_dict`, `set_epoch`, `stats` and `len`. It
        prefetches by itself; a `prefetch` after it makes its state run ahead of your loop.

        distributed: (rank, num_ranks) of this process, or the `tf.distribute.InputContext` that
            `strategy.distribute_datasets_from_function` passes.
        output_signature: the specification of a batch, as for `Dataset.from_generator`; columns that it does not name
            are left out. By default it is derived from a first row, read and transformed.
        options: as for `pytorch`; samples and batches are numpy arrays until the transforms are done. `collate_fn` is
            "ragged", the default (ragged tensors for values that differ in their first length, padding for the rest),
            or "pad" (padding for all, with the shapes in `<column>_shape`), or a function.

        Text is tf.string, empty where it is missing; times are integers; JSON, lists and structs are JSON text. Raises
        `TypeError` for an unknown option, and `InvalidInputError` for one that is out of range.
        """
        dataset: TensorflowDataset = _adapter("tensorflow", "TensorFlow").dataset(
            **self._keyword_arguments("tensorflow", options, batch_size),
            distributed=distributed,
            output_signature=output_signature,
        )
        return dataset

    def _keyword_arguments(self, method: str, given: LoaderKeywords, batch_size: int) -> dict[str, Any]:
        check_keywords(given, method)
        return self._arguments({**DEFAULTS, **given}, batch_size)

    def _arguments(self, given: LoaderKeywords, batch_size: int, device: DeviceOptions | None = None) -> dict[str, Any]:
        """The arguments that every adapter takes."""
        view = self._pinned()
        return {
            "source": view._source(),
            "options": loader_options(given, batch_size=batch_size, follow=view._follower(), device=device),
            "transforms": as_transforms(given),
            "progress": as_progress(given["progress"]),
        }


def _adapter(name: str, product: str) -> ModuleType:
    try:
        return import_module(f"penstock.adapters.{name}")
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise InvalidInputError(f"{product} is not installed: pip install 'penstock[{name}]'") from error
