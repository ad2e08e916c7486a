"""Values on their way between processes: pickled, with their arrays in shared memory."""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.device import Arena, SharedMemory, aligned
from penstock.errors import InvalidInputError, text_of
from penstock.runners._channel import MAX_PACKET_BYTES
from penstock.runners._errors import dumps

_LARGE_BYTES = 64 << 10


class Shipment(NamedTuple):
    """A pickled value, and where its arrays are."""

    pickled: bytes
    """Empty if it is the last of the arrays."""
    arrays: list[tuple[bool, int, int]]
    """Of each array: whether it is in the slot of its span, instead of in shared memory of its own; start and size."""


def pack(value: Any, slot: npt.NDArray[np.uint8] | None = None) -> tuple[Shipment, SharedMemory | None]:
    """Prepare a value for another process, and put its large arrays into shared memory.

    Arrays that are in `slot` stay there. Others are written behind them, as far as there is room; else to new memory.
    """
    buffers: list[memoryview] = []

    def is_small(buffer: pickle.PickleBuffer) -> bool:
        view = buffer.raw()
        if view.nbytes < MAX_PACKET_BYTES:
            return True
        buffers.append(view)
        return False

    try:
        pickled = pickle.dumps(value, 5, buffer_callback=is_small)
    except BaseException:  # such as a class of a notebook
        buffers.clear()
        try:
            pickled = dumps(value, is_small)
        except BaseException as error:  # a user's object may raise anything
            raise InvalidInputError(
                "what transforms and decoders return is sent from one process to another, and this cannot be pickled "
                f'({text_of(error)}); return something else, or pass num_workers=penstock.Workers(…, "thread")'
            ) from error
    if len(pickled) >= MAX_PACKET_BYTES // 2:
        buffers.append(memoryview(pickled))
        pickled = b""
    views = [np.frombuffer(buffer, np.uint8) for buffer in buffers]
    base, size = (0, 0) if slot is None else (int(slot.ctypes.data), len(slot))
    starts = [int(view.ctypes.data) - base for view in views]
    inside = [start >= 0 and start + len(view) <= size for start, view in zip(starts, views, strict=True)]
    ends = [start + len(view) for start, view, known in zip(starts, views, inside, strict=True) if known]
    free, new_bytes = aligned(max(ends, default=0)), 0
    for index, view in enumerate(views):
        if not inside[index] and slot is not None and free + len(view) <= size:
            slot[free : free + len(view)] = view
            starts[index], inside[index] = free, True
            free += aligned(len(view))
        elif not inside[index]:
            starts[index], new_bytes = new_bytes, new_bytes + aligned(len(view))
    memory = SharedMemory.create(new_bytes) if new_bytes else None
    for start, view, known in zip(starts, views, inside, strict=True):
        if memory is not None and not known:
            memory.bytes[start : start + len(view)] = view
    arrays = [(known, start, len(view)) for known, start, view in zip(inside, starts, views, strict=True)]
    return Shipment(pickled, arrays), memory


def unpack(shipment: Shipment, memory: SharedMemory | None, slot: npt.NDArray[np.uint8] | None = None) -> Any:
    """The value of a shipment; its arrays are views of `slot`, and of shared memory, which may be closed."""
    buffers: list[Any] = []
    outside = None if memory is None else memory.bytes
    for in_slot, start, size in shipment.arrays:
        source = slot if in_slot else outside
        assert source is not None
        buffers.append(source[start : start + size])
    pickled = shipment.pickled or buffers.pop()
    try:
        return pickle.loads(pickled, buffers=buffers)
    except Exception as error:
        raise InvalidInputError(
            "what transforms and decoders return is sent from one process to another, and this cannot be unpickled "
            f'there ({text_of(error)}); return something else, or pass num_workers=penstock.Workers(…, "thread")'
        ) from error


def write_pickled(value: Any, arena: Arena) -> tuple[int, int]:
    """Write a value and its arrays to shared memory; returns their start and size."""
    buffers: list[memoryview] = []
    pickled = pickle.dumps(value, 5, buffer_callback=lambda buffer: buffers.append(buffer.raw()))
    sizes = [len(pickled), *(buffer.nbytes for buffer in buffers)]
    header = np.array([len(sizes), *sizes], np.int64)
    *starts, size = _offsets(sizes)
    start = arena.allocate(size)
    memory = arena.bytes(start, size)
    memory[: header.nbytes] = header.view(np.uint8)
    for at, buffer in zip(starts, (memoryview(pickled), *buffers), strict=True):
        memory[at : at + len(buffer)].data[:] = buffer
    return start, size


def read_pickled(memory: npt.NDArray[np.uint8]) -> Any:
    """Inverse of `write_pickled`; the arrays of the value are views of the memory."""
    count = int(memory[:8].view(np.int64)[0])
    sizes = memory[8 : 8 * (count + 1)].view(np.int64).tolist()
    pickled, *buffers = [memory[at : at + size] for at, size in zip(_offsets(sizes), sizes, strict=False)]
    return pickle.loads(pickled.data, buffers=buffers)


def _offsets(sizes: Sequence[int]) -> list[int]:
    """Where written parts start, behind a header of their number and sizes, and where the last one ends."""
    return list(accumulate(map(aligned, sizes), initial=8 * (len(sizes) + 1)))


@dataclass(frozen=True, slots=True)
class _Arrays:
    """Arrays of one dtype, one after the other; to pickle each of them would take longer than to read it."""

    values: npt.NDArray[Any]
    shapes: list[tuple[int, ...] | None]
    """None for a null."""

    def split(self) -> list[npt.NDArray[Any] | None]:
        """Views of the values."""
        arrays: list[npt.NDArray[Any] | None] = []
        end = 0
        for shape in self.shapes:
            if shape is None:
                arrays.append(None)
                continue
            start, end = end, end + int(np.prod(shape, dtype=np.int64))
            arrays.append(self.values[start:end].reshape(shape))
        return arrays


def compact(batch: Any) -> Any:
    """A batch in which lists of small arrays are compact; large ones are not worth a copy."""
    return {name: _compact(values) for name, values in batch.items()} if type(batch) is dict else batch


def expand(batch: Any) -> Any:
    """Inverse of `compact`."""
    if type(batch) is not dict:
        return batch
    return {name: values.split() if isinstance(values, _Arrays) else values for name, values in batch.items()}


def _compact(values: Any) -> Any:
    if type(values) is not list or not all(value is None or type(value) is np.ndarray for value in values):
        return values
    arrays = [value for value in values if value is not None]
    if not arrays or arrays[0].dtype.hasobject or any(array.dtype != arrays[0].dtype for array in arrays):
        return values
    if sum(array.nbytes for array in arrays) > _LARGE_BYTES * len(arrays):
        return values
    joined = np.concatenate([array.reshape(-1) for array in arrays])
    return _Arrays(joined, [None if value is None else value.shape for value in values])
