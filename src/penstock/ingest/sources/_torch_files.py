"""Tensors saved by torch (`.pt`, `.pth`), loaded with `weights_only=True`.

A file holds a tensor (the column `data`) or a dictionary of tensors (columns), whose first axis is rows; or a list of
tensors or of dictionaries, which are rows. A file is loaded as a whole and limited to 4 GiB; safetensors and `.npy`
files have no such limit.
"""

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidInputError, SampleError, SourceChangedError
from penstock.format.kinds import Kind
from penstock.ingest._reader import MAX_VALUE_BYTES, SourceReader
from penstock.ingest._source import Reject, Row, Source, SourceItem, SourceScan, suffix
from penstock.ingest.sources._arrays import (
    SLICE_BYTES,
    Array,
    check_fit,
    check_together,
    common_kind,
    to_batch,
    to_native,
)
from penstock.ingest.sources._limits import check_zip
from penstock.storage import ObjectInfo
from penstock.types import SMALL_FLOATS

_ENDINGS = (".pt", ".pth")
_MAX_TRIED = 4
_SUPPORTED = "supported are a tensor, a dictionary of tensors, and a list of tensors or of dictionaries"
_VIEWS = {f"torch.{name}": (f"int{8 * dtype.itemsize}", dtype) for name, dtype in SMALL_FLOATS.items()}
"""Dtypes that numpy lacks: the torch dtype that they are viewed as, and the `ml_dtypes` dtype that they become."""


@dataclass(frozen=True)
class _TorchFiles(SourceScan):
    files: Sequence[ObjectInfo]
    columns: Mapping[str, Kind]
    """Empty if files hold lists of rows."""

    def rows(self, reader: SourceReader, files: Sequence[ObjectInfo]) -> Iterator[SourceItem]:
        for file in files:
            try:
                loaded = _load(reader, file)
                if not isinstance(loaded, list):
                    check_fit(_arrays(loaded), self.columns)
            except (SampleError, SourceChangedError) as error:
                yield Reject(file.key, str(error))
                continue
            yield from _list_rows(file.key, loaded) if isinstance(loaded, list) else self._slices(file.key, loaded)
            del loaded  # frees its memory before the next file is loaded

    def _slices(self, name: str, columns: Mapping[str, npt.NDArray[Any]]) -> Iterator[SourceItem]:
        arrays = _arrays(columns)
        [rows] = {array.rows for array in arrays.values()}
        step = max(1, SLICE_BYTES // max(1, sum(array.row_bytes for array in arrays.values())))
        for start in range(0, rows, step):
            part = {column: values[start : start + step] for column, values in columns.items()}
            yield to_batch(name, part, self.columns, start)


def _arrays(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, Array]:
    return {column: Array(values.dtype, values.shape) for column, values in columns.items()}


def _list_rows(name: str, items: Sequence[Any]) -> Iterator[SourceItem]:
    for index, item in enumerate(items):
        row = f"{name}[{index}]"
        try:
            yield Row(row, {column: _value(column, value) for column, value in _as_columns(item).items()})
        except SampleError as error:
            yield Reject(row, str(error))


def _as_columns(item: Any) -> Mapping[str, Any]:
    if isinstance(item, dict) and all(isinstance(column, str) for column in item):
        return item
    if _is_tensor(item):
        return {"data": item}
    raise SampleError(f"a row is a tensor or a dictionary with string keys, not a {type(item).__name__}")


def _value(column: str, value: Any) -> Any:
    if _is_tensor(value):
        return to_native(_numpy(column, value))
    if value is None or isinstance(value, str | bytes | bool | int | float):
        return value
    raise SampleError(f"{column!r} is a {type(value).__name__}; supported are tensors, strings and numbers")


def _load(reader: SourceReader, file: ObjectInfo) -> dict[str, npt.NDArray[Any]] | list[Any]:
    """The columns of a file, or a list of its rows; raises `SampleError` if it holds neither."""
    torch = _torch()
    if file.size > MAX_VALUE_BYTES:
        raise SampleError(f"it has {file.size:,} bytes and is loaded as a whole; the limit is {MAX_VALUE_BYTES:,}")
    data = pa.BufferReader(reader.read(file))
    _check_archive(data, file.size)
    try:
        loaded = torch.load(data, map_location="cpu", weights_only=True, mmap=False)
    except Exception as error:  # a hostile file can make torch raise anything
        raise SampleError(f"torch.load(weights_only=True) refuses it: {_summary(error)}") from None
    if isinstance(loaded, list | tuple):
        _check_sizes(value for item in loaded for value in (item.values() if isinstance(item, dict) else [item]))
        return list(loaded)
    columns = {"data": loaded} if _is_tensor(loaded) else loaded
    if isinstance(columns, dict):
        columns = {name: value for name, value in columns.items() if reader.selects(name)} or columns
    if not isinstance(columns, dict) or not columns:
        raise SampleError(f"it holds a {type(loaded).__name__}; {_SUPPORTED}")
    for name, value in columns.items():
        if not isinstance(name, str) or not _is_tensor(value):
            raise SampleError(f"its dictionary entry {str(name)[:100]!r} is a {type(value).__name__}; {_SUPPORTED}")
    _check_sizes(columns.values())
    arrays = {name: _numpy(name, value) for name, value in columns.items()}
    check_together(_arrays(arrays))
    return arrays


def _check_archive(data: pa.BufferReader, size: int) -> None:
    """Raise `SampleError` for what `torch.save` does not write, before torch parses it: old formats, code, bombs."""
    if data.read(4) != b"PK\3\4":
        raise SampleError("it is not in the format of torch.save since torch 1.6; load it with torch and save it again")
    try:
        with zipfile.ZipFile(data) as archive:
            members = archive.infolist()
    except Exception as error:  # a hostile directory can make zipfile raise anything
        raise SampleError(f"it is not in the format of torch.save, or is truncated: {error}") from None
    if any(member.filename.endswith("/constants.pkl") for member in members):
        raise SampleError("it is a TorchScript program, not data")
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise SampleError("it is compressed, which torch.save does not do; save it again")
    check_zip(members, size)
    data.seek(0)


def _check_sizes(values: Any) -> None:
    """Raise `SampleError` for tensors that expand a small storage with zero strides to a huge shape."""
    total = sum(value.numel() * value.element_size() for value in values if _is_tensor(value))
    if total > MAX_VALUE_BYTES:
        raise SampleError(f"its tensors need {total:,} bytes; the limit is {MAX_VALUE_BYTES:,}")


def _summary(error: Exception) -> str:
    """The message of torch, without its advice to load the file unsafely."""
    text = str(error).rpartition("WeightsUnpickler error:")[2].partition("Please")[0]
    return " ".join(text.split())[:300].rstrip(". ") or type(error).__name__


def _numpy(name: str, tensor: Any) -> npt.NDArray[Any]:
    """The memory of a tensor as an array."""
    torch = _torch()
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized or tensor.device.type != "cpu":
        raise SampleError(f"{name!r} is not a dense CPU tensor ({tensor.layout}, {tensor.device.type})")
    plain_tensor = tensor.detach().resolve_conj().resolve_neg()
    try:
        if (view := _VIEWS.get(str(tensor.dtype))) is None:
            return np.asarray(plain_tensor.numpy())
        stored_as, dtype = view
        return np.asarray(plain_tensor.view(getattr(torch, stored_as)).numpy()).view(dtype)
    except TypeError as error:
        raise SampleError(f"{name!r} is of {tensor.dtype}, which numpy does not support: {error}") from None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, _torch().Tensor)


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise InvalidInputError('torch files need torch: pip install "penstock[torch]"') from error
    return torch


def _open(reader: SourceReader, files: Sequence[ObjectInfo]) -> SourceScan:
    """Decide the columns from the first readable file."""
    chosen = [file for file in files if suffix(file.key) in _ENDINGS]
    if not chosen:
        raise InvalidInputError(f"{reader.store.uri} holds no .pt or .pth file")
    reasons: list[str] = []
    for file in chosen[:_MAX_TRIED]:
        try:
            loaded = _load(reader, file)
        except (SampleError, SourceChangedError) as error:
            reasons.append(f"{reader.uri(file.key)}: {error}")
            continue
        if isinstance(loaded, list):
            return _TorchFiles(chosen, {})
        return _TorchFiles(chosen, {name: common_kind(name, [array]) for name, array in _arrays(loaded).items()})
    raise InvalidInputError(reasons[0])


TORCH_FILES = Source(
    "torch",
    "tensors saved by torch (.pt, .pth): a tensor, a dictionary of tensors, or a list of rows",
    extensions=_ENDINGS,
    recognise=lambda listing: listing.has_mostly(_ENDINGS),
    open=_open,
)
