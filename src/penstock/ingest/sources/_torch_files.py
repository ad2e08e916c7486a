"""Tensors that torch saved (`.pt`, `.pth`), through torch's safe loader only.

A file holds a tensor (the column `data`) or a dictionary of tensors (columns), whose first axis is rows; or a list of
tensors or of dictionaries, which are rows. It is loaded as a whole, so that 4 GiB are the most; safetensors or `.npy`
take more.
"""

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import InvalidInputError, SampleError, SourceChanged
from penstock.format.kinds import Kind
from penstock.ingest._bucket import Bucket
from penstock.ingest._source import Found, Reading, Reject, Row, Source, suffix
from penstock.ingest.sources._arrays import (
    PIECE_BYTES,
    Array,
    batch,
    check_fit,
    check_together,
    common_kind,
    plain,
)
from penstock.storage import ObjectInfo

_ENDINGS = (".pt", ".pth")
_MAX_FILE_BYTES = 4 << 30
_TRIED = 4
_TAKEN = "a tensor, a dictionary of tensors, or a list of tensors or of dictionaries can be taken"
_BITS = {
    "torch.bfloat16": ("int16", np.dtype(ml_dtypes.bfloat16)),
    "torch.float8_e4m3fn": ("uint8", np.dtype(ml_dtypes.float8_e4m3fn)),
    "torch.float8_e4m3fnuz": ("uint8", np.dtype(ml_dtypes.float8_e4m3fnuz)),
    "torch.float8_e5m2": ("uint8", np.dtype(ml_dtypes.float8_e5m2)),
    "torch.float8_e5m2fnuz": ("uint8", np.dtype(ml_dtypes.float8_e5m2fnuz)),
}
"""Types that numpy has from elsewhere: as what they cross over, and what they are then."""


@dataclass(frozen=True)
class _TorchFiles(Reading):
    files: Sequence[ObjectInfo]
    columns: Mapping[str, Kind]
    """Empty where files hold lists of rows."""

    def rows(self, bucket: Bucket, files: Sequence[ObjectInfo]) -> Iterator[Found]:
        for file in files:
            try:
                loaded = _load(bucket, file)
                if not isinstance(loaded, list):
                    check_fit(_arrays(loaded), self.columns)
            except (SampleError, SourceChanged) as error:
                yield Reject(file.key, str(error))
                continue
            yield from _listed(file.key, loaded) if isinstance(loaded, list) else self._cut(file.key, loaded)
            del loaded  # or it would wait for the next one

    def _cut(self, name: str, columns: Mapping[str, npt.NDArray[Any]]) -> Iterator[Found]:
        arrays = _arrays(columns)
        [rows] = {array.rows for array in arrays.values()}
        step = max(1, PIECE_BYTES // max(1, sum(array.row_bytes for array in arrays.values())))
        for start in range(0, rows, step):
            part = {column: values[start : start + step] for column, values in columns.items()}
            yield batch(name, part, self.columns, start)


def _arrays(columns: Mapping[str, npt.NDArray[Any]]) -> dict[str, Array]:
    return {column: Array(values.dtype, values.shape) for column, values in columns.items()}


def _listed(name: str, items: Sequence[Any]) -> Iterator[Found]:
    for index, item in enumerate(items):
        place = f"{name}[{index}]"
        try:
            yield Row(place, {column: _value(column, value) for column, value in _named(item).items()})
        except SampleError as error:
            yield Reject(place, str(error))


def _named(item: Any) -> Mapping[str, Any]:
    if isinstance(item, dict) and all(isinstance(column, str) for column in item):
        return item
    if _is_tensor(item):
        return {"data": item}
    raise SampleError(f"a row is a tensor or a dictionary with names, not a {type(item).__name__}")


def _value(column: str, value: Any) -> Any:
    if _is_tensor(value):
        return plain(_numpy(column, value))
    if value is None or isinstance(value, str | bytes | bool | int | float):
        return value
    raise SampleError(f"{column!r} is a {type(value).__name__}; tensors, strings and numbers can be taken")


def _load(bucket: Bucket, file: ObjectInfo) -> dict[str, npt.NDArray[Any]] | list[Any]:
    """A file's columns, or a list of its rows; `SampleError` where it holds neither."""
    torch = _torch()
    if file.size > _MAX_FILE_BYTES:
        raise SampleError(f"it has {file.size:,} bytes and is loaded as a whole; {_MAX_FILE_BYTES:,} are the most")
    data = pa.BufferReader(bucket.read(file))
    _check_archive(data, file.size)
    try:
        loaded = torch.load(data, map_location="cpu", weights_only=True, mmap=False)
    except Exception as error:  # what a file that was made to harm does to torch is not known
        raise SampleError(f"torch's safe loader refuses it: {_sentence(error)}") from None
    if isinstance(loaded, list | tuple):
        _check_sizes(value for item in loaded for value in (item.values() if isinstance(item, dict) else [item]))
        return list(loaded)
    columns = {"data": loaded} if _is_tensor(loaded) else loaded
    if not isinstance(columns, dict) or not columns:
        raise SampleError(f"it holds a {type(loaded).__name__}; {_TAKEN}")
    for name, value in columns.items():
        if not isinstance(name, str) or not _is_tensor(value):
            raise SampleError(f"it holds a dictionary whose {str(name)[:100]!r} is a {type(value).__name__}; {_TAKEN}")
    _check_sizes(columns.values())
    arrays = {name: _numpy(name, value) for name, value in columns.items()}
    check_together(_arrays(arrays))
    return arrays


def _check_archive(data: pa.BufferReader, size: int) -> None:
    """Refuse what `torch.save` does not write, before torch looks at it: old formats, code, and bombs."""
    if data.read(4) != b"PK\3\4":
        raise SampleError("it is not what torch.save writes since torch 1.6; load it with torch and save it again")
    try:
        with zipfile.ZipFile(data) as archive:
            members = archive.infolist()
    except Exception as error:  # zipfile takes a directory at its word, and one made to harm can fail in any way
        raise SampleError(f"it is not what torch.save writes, or was cut off: {error}") from None
    if any(member.filename.endswith("/constants.pkl") for member in members):
        raise SampleError("it is a TorchScript program, and not data")
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise SampleError("it is compressed, which torch.save does not do; save it again")
    if sum(member.file_size for member in members) > size:
        raise SampleError("its parts overlap: together they are larger than the file")
    data.seek(0)


def _check_sizes(values: Any) -> None:
    """Refuse tensors that repeat few numbers without end; their shapes cost nothing to write down."""
    total = sum(value.numel() * value.element_size() for value in values if _is_tensor(value))
    if total > _MAX_FILE_BYTES:
        raise SampleError(f"its tensors would take {total:,} bytes; {_MAX_FILE_BYTES:,} are the most")


def _sentence(error: Exception) -> str:
    """What torch says, without its advice on how to load the file all the same."""
    text = str(error).rpartition("WeightsUnpickler error:")[2].partition("Please")[0]
    return " ".join(text.split())[:300].rstrip(". ") or type(error).__name__


def _numpy(name: str, tensor: Any) -> npt.NDArray[Any]:
    """A tensor's memory as an array."""
    torch = _torch()
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_quantized or tensor.device.type != "cpu":
        raise SampleError(f"{name!r} is not a plain tensor of numbers ({tensor.layout}, {tensor.device.type})")
    plain_tensor = tensor.detach().resolve_conj().resolve_neg()
    try:
        if (crossing := _BITS.get(str(tensor.dtype))) is None:
            return np.asarray(plain_tensor.numpy())
        bits, dtype = crossing
        return np.asarray(plain_tensor.view(getattr(torch, bits)).numpy()).view(dtype)
    except TypeError as error:
        raise SampleError(f"{name!r} is of {tensor.dtype}, which numpy has not: {error}") from None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, _torch().Tensor)


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise InvalidInputError('files of torch need torch; install it: pip install "penstock[torch]"') from error
    return torch


def _open(bucket: Bucket, files: Sequence[ObjectInfo]) -> Reading:
    """The columns are those of the first file: nothing but the file itself describes it."""
    mine = [file for file in files if suffix(file.key) in _ENDINGS]
    if not mine:
        raise InvalidInputError(f"{bucket.store.uri} holds no .pt or .pth file")
    reasons: list[str] = []
    for file in mine[:_TRIED]:
        try:
            loaded = _load(bucket, file)
        except (SampleError, SourceChanged) as error:
            reasons.append(f"{bucket.uri(file.key)}: {error}")
            continue
        if isinstance(loaded, list):
            return _TorchFiles(mine, {})
        return _TorchFiles(mine, {name: common_kind(name, [array]) for name, array in _arrays(loaded).items()})
    raise InvalidInputError(reasons[0])


TORCH_FILES = Source(
    "torch",
    "tensors saved by torch (.pt, .pth): a tensor, a dictionary of tensors, or a list of rows",
    recognise=lambda listing: listing.are_most(_ENDINGS),
    open=_open,
)
