"""A device with memory of its own, as a loader uses it: copies, gathers and decodes on one stream beside the user's.

The contract; if the code disagrees with this list, the code is wrong:

- All that is asked of a device happens in the order in which it was asked, on its own stream; so rows that were copied
  are there for the gather that is asked for after them, and a gather has read rows before others are copied over them.
- Nothing here waits for the device but `Mark.synchronize`, and nothing makes the user's stream wait but `hand_over`:
  on the device, for a batch, while the program goes on.
- Memory of this stream is used by this stream alone. nvJPEG has a stream of its own that waits for nobody, so what it
  writes to comes from a pool of its own, and goes back when ours has read it.
- Memory that a copy reads from is held until it has been read; memory that was handed over is not used for anything
  else before the stream that was current then has done what it was asked while the tensors lived.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache, partial
from threading import Lock, Semaphore, local
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from penstock.device._tensors import tensor_of

if TYPE_CHECKING:
    import torch

_WIDTHS = (8, 4, 2, 1)
_PINNED_BYTES = 64 << 10
_PAGE_BYTES, _UNCUT_BYTES = 4 << 10, 64 << 20
_PLACES = 4096
_DECODERS = 2  # nvJPEG decodes one batch at a time; another may wait, but no more of them
_NOTHING = nullcontext()


class Mark(Protocol):
    """A point in what a device was asked to do."""

    def query(self) -> bool:
        """Whether the device has come so far."""

    def synchronize(self) -> None:
        """Wait until it has."""


class _Passed:
    """The point behind work that was done at once."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        pass


_PASSED = _Passed()


class Accelerator:
    """A GPU; or the processor itself, which then stands in for one and does everything at once."""

    def __init__(self, device: "torch.device") -> None:
        import torch  # an extra, and slow to import

        self._torch: Any = torch
        self.device = device
        self.is_cuda = device.type == "cuda"
        self._stream: Any = self._torch.cuda.Stream(device) if self.is_cuda else None
        self._decoder_stream: Any = self._torch.cuda.Stream(device) if self.is_cuda else None
        self._held: deque[tuple[Mark, Any]] = deque()
        self._lock = Lock()
        self._uncut: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self._thread = local()
        self._decoding = Semaphore(_DECODERS)

    def adopt(self) -> None:
        """This thread asks torch for nothing but what shall happen on the device's own stream, from now on."""
        if self.is_cuda:
            self._torch.cuda.set_stream(self._stream)
        self._thread.adopted = True

    def working(self) -> AbstractContextManager[Any]:
        """While this is entered, what torch is asked for happens on the device's own stream."""
        if not self.is_cuda or getattr(self._thread, "adopted", False):
            return _NOTHING
        return cast(AbstractContextManager[Any], self._torch.cuda.stream(self._stream))

    def mark(self, used: Mark | None = None) -> Mark:
        """The point that has been reached in what was asked for; `used` is one that nobody looks at any more."""
        return self._stream.record_event(used) if self.is_cuda else _PASSED

    def free_bytes(self) -> int:
        """Memory that nobody has taken, or that torch has taken and does not use."""
        if not self.is_cuda:
            return 1 << 62
        pt = self._torch
        unused = pt.cuda.memory_reserved(self.device) - pt.cuda.memory_allocated(self.device)
        return int(pt.cuda.mem_get_info(self.device)[0] + unused)

    def pinned(self, size: int) -> npt.NDArray[np.uint8]:
        """Host memory that the device reads by itself, and twice to six times as fast as other memory.

        It is cut from large pieces, because torch takes a power of two each time.
        """
        room = -(-size // _PAGE_BYTES) * _PAGE_BYTES
        with self._lock:
            if len(self._uncut) < room:
                pt = self._torch
                self._uncut = pt.empty(max(room, _UNCUT_BYTES), dtype=pt.uint8, pin_memory=self.is_cuda).numpy()
            memory, self._uncut = self._uncut[:size], self._uncut[room:]
        return memory

    def rows(self, count: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> "DeviceRows":
        """Memory on the device for rows of one shape."""
        with self.working():
            return DeviceRows(self, count, dtype, shape)

    def moved(self, tensor: "torch.Tensor") -> "torch.Tensor":
        """A tensor on the device, its copy begun and perhaps not ended; made while `working`, and it must be held."""
        if self.is_cuda and tensor.device.type == "cpu" and tensor.nbytes >= _PINNED_BYTES and not tensor.is_pinned():
            tensor = tensor.pin_memory()  # else the copy would wait for the stream, and the caller for both
        return tensor.to(self.device, non_blocking=True)

    def put(self, array: npt.NDArray[Any], out: "torch.Tensor | None" = None) -> "torch.Tensor":
        """A copy of an array on the device, begun and perhaps not ended; made while `working`."""
        source = tensor_of(array)
        return source.to(self.device, non_blocking=True) if out is None else out.copy_(source, non_blocking=True)

    def hold(self, *things: Any) -> Mark:
        """Keep things until the device has done what it was asked for so far."""
        mark = self.mark()
        if self.is_cuda:
            self._held.append((mark, things))
            if self._lock.acquire(blocking=False):  # one thread at a time lets go of what is over
                try:
                    while self._held[0][0].query():
                        self._held.popleft()
                except IndexError:
                    pass
                finally:
                    self._lock.release()
        return mark

    def hand_over(self, tensors: Sequence["torch.Tensor"], there: Mark, before: int | None) -> int | None:
        """Let the stream that is current use tensors, from a point on that it waits for by itself; its address.

        `before` is that of a stream that they were handed over to already, if any.
        """
        if not self.is_cuda:
            return None
        address: int = self._torch._C._cuda_getCurrentRawStream(self.device.index)  # torch.cuda makes an object for it
        if address != before:
            stream = self._torch.cuda.current_stream(self.device)
            stream.wait_event(there)
            for tensor in tensors:
                tensor.record_stream(stream)
        return address

    def decodes(self, shape: Sequence[int]) -> bool:
        """Whether it can decode pictures to this shape."""
        return self.is_cuda and len(shape) == 3 and shape[2] == 3 and _jpeg_decoder() is not None

    def decode_jpegs(
        self, pictures: Sequence[npt.NDArray[np.uint8] | None], shape: tuple[int, ...], *, resize: bool
    ) -> "torch.Tensor | None":
        """Pictures of one shape, height first and colours last, zero where there is none; in memory colours are first.

        None where this device cannot, or not these: then the processor must. Made while `working`. nvJPEG reads what
        lies in pinned memory by itself, and a fifth to a third faster. What it made is waited for and let go: held for
        later, hundreds of tensors a batch would keep the garbage collector busy.
        """
        decode = _jpeg_decoder() if self.decodes(shape) else None
        there = [row for row, picture in enumerate(pictures) if picture is not None]
        given = [picture for picture in pictures if picture is not None]
        if decode is None or not all(map(len, given)):
            return None
        encoded = list(map(self._torch.from_numpy, given))
        decoded: list[torch.Tensor] = []
        try:
            if given:
                with self._decoding, self._torch.cuda.stream(self._decoder_stream):
                    decoded = decode(encoded, self.device)
                self._stream.wait_stream(self._decoder_stream)
        except RuntimeError:  # one of them is broken, or no JPEG: who decodes them one by one finds out which
            return None
        by_size: dict[tuple[int, ...], list[int]] = {}
        for number, picture in enumerate(decoded):
            by_size.setdefault(picture.shape, []).append(number)
        if not resize and any(size[1:] != shape[:2] for size in by_size):
            return None
        if len(by_size) == 1 and len(decoded) == len(pictures):
            out = self._resized(self._torch.stack(decoded), shape)
        else:
            out = self._torch.zeros((len(pictures), *shape), dtype=self._torch.uint8, device=self.device)
            for numbers in by_size.values():
                rows = self.put(np.array([there[number] for number in numbers]))
                out[rows] = self._resized(self._torch.stack([decoded[number] for number in numbers]), shape)
        self.mark().synchronize()
        return out

    def _resized(self, pictures: "torch.Tensor", shape: tuple[int, ...]) -> "torch.Tensor":
        """Pictures, colours first, in another size and with colours last."""
        pt = self._torch
        if pictures.shape[2:] != shape[:2]:
            scaled = pt.nn.functional.interpolate(
                pictures.float(), shape[:2], mode="bilinear", antialias=True, align_corners=False
            )
            pictures = scaled.round_().clamp_(0, 255).to(pt.uint8)
        return pictures.permute(0, 2, 3, 1)


class DeviceRows:
    """Rows of one shape in a device's memory: written in runs, read in any order."""

    def __init__(self, owner: Accelerator, count: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        pt = owner._torch
        self._owner, self._shape = owner, shape
        self.row_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        self._flat: torch.Tensor = pt.empty(count * self.row_bytes, dtype=pt.uint8, device=owner.device)
        width = next(width for width in _WIDTHS if self.row_bytes % width == 0)
        wide = {8: pt.int64, 4: pt.int32, 2: pt.int16, 1: pt.uint8}[width]
        self._wide = self._flat.view(count, -1).view(wide)  # a gather moves numbers, and wide ones at once
        self._as = tensor_of(np.zeros(0, dtype)).dtype
        self._place = lru_cache(_PLACES)(partial(self._flat.narrow, 0))  # blocks go to the same places again and again

    def write(self, start: int, rows: "torch.Tensor", size: int) -> None:
        """Begin to copy rows, as so many bytes, to the device."""
        self._place(start * self.row_bytes, size).copy_(rows, non_blocking=True)

    def gather(self, rows: npt.NDArray[np.int64]) -> "torch.Tensor":
        """Some rows, in this order, as a tensor of their own."""
        pt = self._owner._torch
        chosen: torch.Tensor = pt.index_select(self._wide, 0, self._owner.put(rows))
        return chosen.view(self._as).view(len(rows), *self._shape)


class Staging:
    """Pinned memory that each thread has for itself, so that none waits for another's.

    One piece of it: what has just been written is copied ten times as fast as the next rows are read, and memory that
    is used again at once is still in the processor's cache.
    """

    def __init__(self, owner: Accelerator) -> None:
        self._owner, self._thread = owner, local()

    def room(self, size: int) -> npt.NDArray[np.uint8]:
        """Memory of this thread for so many bytes of rows."""
        mine = self._thread
        memory: npt.NDArray[np.uint8] | None = getattr(mine, "memory", None)
        copied: Mark | None = getattr(mine, "copied", None)
        if copied is not None and not copied.query():
            copied.synchronize()
        if memory is None or len(memory) < size:
            memory = mine.memory = self._owner.pinned(size)
            mine.size = 0
        if mine.size != size:  # most are of one size
            mine.size, mine.room = size, memory[:size]
            mine.written = tensor_of(mine.room)
        room: npt.NDArray[np.uint8] = mine.room
        return room

    def cross(self, there: DeviceRows, start: int) -> None:
        """Begin to copy what this thread has written to its place on the device."""
        mine = self._thread
        with self._owner.working():
            there.write(start, mine.written, mine.size)
            mine.copied = self._owner.mark(getattr(mine, "copied", None))


@cache
def _jpeg_decoder() -> Callable[[list[Any], Any], list[Any]] | None:
    """What decodes JPEGs on a GPU, if it is installed."""
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except (ImportError, RuntimeError):
        return None
    return lambda encoded, device: decode_jpeg(encoded, mode=ImageReadMode.RGB, device=device)
