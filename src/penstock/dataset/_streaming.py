"""Stream a view to a framework."""

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, overload

from penstock.engine import (
    BadPolicy,
    BadSample,
    DecodeOptions,
    Decoder,
    Display,
    Loader,
    StreamOptions,
    available_cores,
)
from penstock.errors import InvalidInputError
from penstock.table import ROW_ID, Reader, Rows

if TYPE_CHECKING:
    from penstock.adapters.torch import Distributed, Ragged, RowDataset

_BATCH_SIZE = 64
_MAX_WORKERS = 8

OnBadSample = Literal["raise", "replace", "skip"] | Callable[[BadSample], None]
Transform = Callable[..., Any]


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
        worker_type: Literal["thread", "process"] = "thread",
        shuffle_block: int | None = None,
        shuffle_spread: float | None = None,
        lanes: int | None = None,
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
        worker_type: Literal["thread", "process"] = "thread",
        shuffle_block: int | None = None,
        shuffle_spread: float | None = None,
        lanes: int | None = None,
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
        worker_type: "process" runs the transforms in processes, for those that are heavy in Python.
        shuffle_block, shuffle_spread, lanes: how rows are shuffled; see `penstock.plan.Shuffle`.
        show: a live "line" or "table" on standard error.
        """
        adapter = _torch_adapter()
        names = self._chosen(columns)
        decoding = DecodeOptions(decode, image_size)
        if all(option is None for option in (batch_size, shuffle, num_workers, prefetch_factor, distributed)):
            dataset: RowDataset = adapter.row_dataset(
                self._reader, names, self._rows, decode=decoding, transform=transform
            )
            return dataset
        options = StreamOptions(
            batch_size=_BATCH_SIZE if batch_size is None else batch_size,
            shuffle=bool(shuffle),
            seed=seed,
            num_workers=min(available_cores(), _MAX_WORKERS) if num_workers is None else num_workers,
            prefetch_factor=2 if prefetch_factor is None else prefetch_factor,
            drop_last=drop_last,
            memory_budget=memory_budget,
            lanes=lanes,
            block_bytes=shuffle_block,
            spread=shuffle_spread,
            decode=decoding,
            bad=_bad_policy(on_bad_sample, bad_sample_limit),
            worker_type=worker_type,
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
            display=show,
        )
        return loader

    def _chosen(self, columns: Sequence[str] | None) -> Sequence[str]:
        if columns is None:
            return self._columns
        names = [columns] if isinstance(columns, str) else list(columns)
        for name in names:
            if name != ROW_ID:
                self._reader.snapshot.schema[name]
        return names


def _torch_adapter() -> ModuleType:
    try:
        from penstock.adapters import torch  # torch is an extra
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise InvalidInputError("PyTorch is not installed: pip install 'penstock[torch]'") from error
    return torch


def _bad_policy(choice: OnBadSample, limit: int | float) -> BadPolicy:
    if callable(choice):
        return BadPolicy(True, choice, limit)
    if choice not in ("raise", "replace", "skip"):
        raise InvalidInputError(f'on_bad_sample is "raise", "replace", "skip" or a function, not {choice!r}')
    return BadPolicy(choice != "raise", None, limit)
