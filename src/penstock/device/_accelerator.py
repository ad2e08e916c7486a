"""A device with its own memory: copies, gathers and decodes on one stream, concurrent with the user's stream.

The contract; if the code disagrees with this list, the code is wrong:

- All work is queued on the device's own stream and runs in order: a gather sees the rows copied before it, and has read
  its rows before a later copy overwrites them.
- Only `DeviceEvent.synchronize` blocks the host. Only `make_ready` makes the user's stream wait: on the device, for one
  batch, without blocking the host.
- Memory allocated on this stream is used by this stream alone. nvJPEG uses an unsynchronised stream of its own, so its
  output comes from a separate pool, and returns to it after this stream has read it.
- The source of a copy stays alive until the copy is complete. Memory of a delivered batch is reused only after the
  stream that was current at delivery has finished the work that was queued on it while the tensors were alive.
"""

import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache, partial
from threading import Lock, Semaphore, local
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from penstock.device._shared_memory import SharedMemory
from penstock.device._tensors import as_tensor

if TYPE_CHECKING:
    import torch

_GATHER_WIDTHS = (8, 4, 2, 1)
_MIN_PINNED_BYTES = 64 << 10
_PAGE_BYTES, _PINNED_CHUNK_BYTES = 4 << 10, 64 << 20
_MAX_CACHED_SLICES = 4096
_MAX_DECODES = 2  # nvJPEG decodes one batch at a time; one more may wait
_NO_CONTEXT = nullcontext()


class DeviceEvent(Protocol):
    """A point in the work queued on a device."""

    def query(self) -> bool:
        """Whether the device has reached it."""

    def synchronize(self) -> None:
        """Block until the device has reached it."""


class _CompletedEvent:
    """The event of work that was done synchronously."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


_COMPLETED = _CompletedEvent()


class Accelerator:
    """A GPU; or the CPU, which stands in for one and does all work synchronously."""

    def __init__(self, device: "torch.device") -> None:
        import torch  # an optional dependency, and slow to import

        self._torch: Any = torch
        self.device = device
        self.is_cuda = device.type == "cuda"
        self._stream: Any = self._torch.cuda.Stream(device) if self.is_cuda else None
        self._decoder_stream: Any = self._torch.cuda.Stream(device) if self.is_cuda else None
        self._in_flight: deque[tuple[DeviceEvent, Any]] = deque()
        self._lock = Lock()
        self._pinned_chunk: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._thread = local()
        self._decode_slots = Semaphore(_MAX_DECODES)

    def bind_thread(self) -> None:
        """Make the device's own stream the current stream of this thread, permanently."""
        if self.is_cuda:
            self._torch.cuda.set_stream(self._stream)
        self._thread.bound = True

    def on_stream(self) -> AbstractContextManager[Any]:
        """A context in which torch queues work on the device's own stream."""
        if not self.is_cuda or getattr(self._thread, "bound", False):
            return _NO_CONTEXT
        return cast(AbstractContextManager[Any], self._torch.cuda.stream(self._stream))

    def record_event(self, reuse: DeviceEvent | None = None) -> DeviceEvent:
        """An event after all work queued so far; `reuse` is an event that no caller needs any more."""
        return self._stream.record_event(reuse) if self.is_cuda else _COMPLETED

    def free_bytes(self) -> int:
        """Free device memory, including memory that torch's allocator caches."""
        if not self.is_cuda:
            return 1 << 62
        pt = self._torch
        cached = pt.cuda.memory_reserved(self.device) - pt.cuda.memory_allocated(self.device)
        return int(pt.cuda.mem_get_info(self.device)[0] + cached)

    def allocate_pinned(self, size: int) -> npt.NDArray[np.uint8]:
        """Page-locked host memory, from which the device copies two to six times as fast and asynchronously.

        It is cut from large chunks, because torch rounds each allocation up to a power of two.
        """
        aligned = -(-size // _PAGE_BYTES) * _PAGE_BYTES
        with self._lock:
            if len(self._pinned_chunk) < aligned:
                pt = self._torch
                chunk_bytes = max(aligned, _PINNED_CHUNK_BYTES)
                self._pinned_chunk = pt.empty(chunk_bytes, dtype=pt.uint8, pin_memory=self.is_cuda).numpy()
            memory, self._pinned_chunk = self._pinned_chunk[:size], self._pinned_chunk[aligned:]
        return memory

    def pin(self, memory: SharedMemory) -> None:
        """Page-lock shared memory of this process, until its last array is dropped."""
        if self.is_cuda:
            cuda = self._torch.cuda.cudart()
            self._torch.cuda.check_error(cuda.cudaHostRegister(memory.address, len(memory.bytes), 0))
            weakref.finalize(memory, cuda.cudaHostUnregister, memory.address)

    def allocate_rows(self, count: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> "DeviceRows":
        """Device memory for rows of one shape."""
        with self.on_stream():
            return DeviceRows(self, count, dtype, shape)

    def to_device(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """Begin an asynchronous copy of a tensor; call it inside `on_stream`, and keep the tensor alive."""
        if (
            self.is_cuda
            and tensor.device.type == "cpu"
            and tensor.nbytes >= _MIN_PINNED_BYTES
            and not tensor.is_pinned()
        ):
            tensor = tensor.pin_memory()  # a copy from pageable memory would block the host until the stream is idle
        return tensor.to(self.device, non_blocking=True)

    def put(self, array: npt.NDArray[Any], out: "torch.Tensor | None" = None) -> "torch.Tensor":
        """Begin an asynchronous copy of an array; call it inside `on_stream`."""
        source = as_tensor(array)
        return source.to(self.device, non_blocking=True) if out is None else out.copy_(source, non_blocking=True)

    def keep_alive(self, *objects: Any) -> DeviceEvent:
        """Reference objects until the device has finished all work queued so far; the event of that moment."""
        event = self.record_event()
        if self.is_cuda:
            self._in_flight.append((event, objects))
            if self._lock.acquire(blocking=False):  # one thread at a time removes what is complete
                try:
                    while self._in_flight[0][0].query():
                        self._in_flight.popleft()
                except IndexError:
                    pass
                finally:
                    self._lock.release()
        return event

    def make_ready(self, tensors: Sequence["torch.Tensor"], ready: DeviceEvent, previous: int | None) -> int | None:
        """Make the current stream wait for an event before it uses tensors; returns the stream's address.

        `previous` is the address returned by an earlier call for the same tensors, if any.
        """
        if not self.is_cuda:
            return None
        stream = self._torch.cuda.current_stream(self.device)
        address: int = stream.cuda_stream
        if address != previous:
            stream.wait_event(ready)
            for tensor in tensors:
                tensor.record_stream(stream)
        return address

    def can_decode(self, shape: Sequence[int]) -> bool:
        """Whether the device can decode images of this shape."""
        return self.is_cuda and len(shape) == 3 and shape[2] == 3 and _jpeg_decoder() is not None

    def decode_jpegs(
        self, images: Sequence[npt.NDArray[np.uint8] | None], shape: tuple[int, ...], *, resize: bool
    ) -> "torch.Tensor | None":
        """Decoded images of shape (height, width, channels), zero where an image is None; channels-first in memory.

        None if the device cannot decode these images; then the CPU must. Call it inside `on_stream`. nvJPEG reads
        pinned memory directly and faster. The call waits for the result and frees the intermediate tensors: kept for
        later, hundreds of tensors per batch would slow down the garbage collector.
        """
        decode = _jpeg_decoder() if self.can_decode(shape) else None
        present = [row for row, image in enumerate(images) if image is not None]
        buffers = [image for image in images if image is not None]
        if decode is None or not all(map(len, buffers)):
            return None
        encoded = list(map(self._torch.from_numpy, buffers))
        decoded: list[torch.Tensor] = []
        try:
            if buffers:
                with self._decode_slots, self._torch.cuda.stream(self._decoder_stream):
                    decoded = decode(encoded, self.device)
                self._stream.wait_stream(self._decoder_stream)
        except RuntimeError:  # one image is damaged or not a JPEG: decoding them one by one on the CPU finds it
            return None
        by_size: dict[tuple[int, ...], list[int]] = {}
        for index, image in enumerate(decoded):
            by_size.setdefault(image.shape, []).append(index)
        if not resize and any(size[1:] != shape[:2] for size in by_size):
            return None
        if len(by_size) == 1 and len(decoded) == len(images):
            out = self._resize(self._torch.stack(decoded), shape)
        else:
            out = self._torch.zeros((len(images), *shape), dtype=self._torch.uint8, device=self.device)
            for indices in by_size.values():
                rows = self.put(np.array([present[index] for index in indices]))
                out[rows] = self._resize(self._torch.stack([decoded[index] for index in indices]), shape)
        self.record_event().synchronize()
        return out

    def _resize(self, images: "torch.Tensor", shape: tuple[int, ...]) -> "torch.Tensor":
        """Channels-first images, resized to the height and width of `shape` and permuted to channels-last."""
        pt = self._torch
        if images.shape[2:] != shape[:2]:
            scaled = pt.nn.functional.interpolate(
                images.float(), shape[:2], mode="bilinear", antialias=True, align_corners=False
            )
            images = scaled.round_().clamp_(0, 255).to(pt.uint8)
        return images.permute(0, 2, 3, 1)


class DeviceRows:
    """Rows of one shape in device memory: written in contiguous ranges, gathered in any order."""

    def __init__(self, owner: Accelerator, count: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        pt = owner._torch
        self._owner, self._shape = owner, shape
        self.row_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._flat: torch.Tensor = pt.empty(count * self.row_bytes, dtype=pt.uint8, device=owner.device)
        width = next(width for width in _GATHER_WIDTHS if self.row_bytes % width == 0)
        wide_dtype = {8: pt.int64, 4: pt.int32, 2: pt.int16, 1: pt.uint8}[width]
        self._wide = self._flat.view(count, -1).view(wide_dtype)  # a gather is faster with wide elements
        self._dtype = as_tensor(np.zeros(0, dtype)).dtype
        self._slice = lru_cache(_MAX_CACHED_SLICES)(partial(self._flat.narrow, 0))  # blocks reuse the same ranges

    def write(self, start: int, rows: "torch.Tensor", size: int) -> None:
        """Begin to copy `size` bytes of rows to the device, from row `start` on."""
        self._slice(start * self.row_bytes, size).copy_(rows, non_blocking=True)

    def gather(self, rows: npt.NDArray[np.int64]) -> "torch.Tensor":
        """A new tensor of the given rows, in this order."""
        pt = self._owner._torch
        gathered: torch.Tensor = pt.index_select(self._wide, 0, self._owner.put(rows))
        return gathered.view(self._dtype).view(len(rows), *self._shape)


class Staging:
    """A pinned staging buffer per thread, so that no thread waits for another's copy.

    One buffer per thread is enough: a copy to the device is ten times as fast as reading the next rows, and a buffer
    that is reused at once is still in the CPU cache.
    """

    def __init__(self, owner: Accelerator) -> None:
        self._owner, self._thread = owner, local()

    def buffer(self, size: int) -> npt.NDArray[np.uint8]:
        """This thread's buffer, of `size` bytes; waits for the last copy from it."""
        mine = self._thread
        memory: npt.NDArray[np.uint8] | None = getattr(mine, "memory", None)
        copied: DeviceEvent | None = getattr(mine, "copied", None)
        if copied is not None and not copied.query():
            copied.synchronize()
        if memory is None or len(memory) < size:
            memory = mine.memory = self._owner.allocate_pinned(size)
            mine.size = 0
        if mine.size != size:  # most calls have the same size
            mine.size, mine.buffer = size, memory[:size]
            mine.tensor = as_tensor(mine.buffer)
        buffer: npt.NDArray[np.uint8] = mine.buffer
        return buffer

    def copy_to_device(self, destination: DeviceRows, start: int) -> None:
        """Begin to copy this thread's buffer to the device, from row `start` on."""
        mine = self._thread
        with self._owner.on_stream():
            destination.write(start, mine.tensor, mine.size)
            mine.copied = self._owner.record_event(getattr(mine, "copied", None))


@cache
def _jpeg_decoder() -> Callable[[list[Any], Any], list[Any]] | None:
    """torchvision's JPEG decoder for GPUs, if it is installed."""
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except (ImportError, RuntimeError):
        return None
    return lambda encoded, device: decode_jpeg(encoded, mode=ImageReadMode.RGB, device=device)
