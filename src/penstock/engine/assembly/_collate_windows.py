"""Collate windows: columns with a time axis, decoded images that windows share, and frames of videos."""

from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.codecs import decode_video_frames
from penstock.device import Accelerator, Allocator, BufferPool, ImageCache, SlabColumns, copy_images
from penstock.engine._options import DecodeOptions
from penstock.engine.assembly._collate import BadRows, Collator, contiguous
from penstock.engine.assembly._decode import Columns
from penstock.engine.assembly._values import Allocators
from penstock.engine.planning import Layout, SpanSamples
from penstock.engine.window import TableTask, WindowRows
from penstock.errors import SampleError
from penstock.format import Field
from penstock.format.kinds import Values
from penstock.plan import WindowSamples
from penstock.table import Int64Array, RandomRowReader, Reader

_GROUP_IMAGES = 16
"""Images that are decoded into one buffer, which stays as long as one of them is cached."""
_BUFFERED_BYTES = 16 << 20


class WindowCollator(Collator):
    """Collates windows: columns with a time axis are of shape (windows, time, …)."""

    _composition: WindowSamples

    def __init__(
        self,
        reader: Reader,
        layout: Layout,
        options: DecodeOptions,
        accelerator: Accelerator | None,
        images: ImageCache | None,
    ) -> None:
        """`images` holds those of the columns of `shared_image_shapes`."""
        super().__init__(reader, layout, options, accelerator)
        self._images = images
        self._shared_shapes = {} if images is None else shared_image_shapes(layout, options)
        decoded = {field.name for field in layout.variable if options.decoder(field) is True}
        self._videos = self._composition.videos & decoded
        self._buffers = BufferPool(_BUFFERED_BYTES)

    def columns(self, task: TableTask, slab: SlabColumns, empty: Allocators) -> tuple[Columns, BadRows]:
        samples, located = task.samples, task.located
        assert samples is not None
        columns: Columns = {}
        bad: BadRows = {}
        for column in self._layout.fixed:
            draws = self._draws(samples, column.name)
            flat = located.take(draws.reshape(-1))
            columns.update(_reshaped(self.fixed(column, flat, slab, _flat(empty(column.name), draws), bad), draws))
        for field in self._layout.variable:
            draws = self._draws(samples, field.name)
            bad_draws: BadRows = {}
            if field.name in self._videos:
                rows = (located.block_index[draws] << 32) + located.rows[draws]
                _, first, inverse = np.unique(rows, return_index=True, return_inverse=True)
                videos = self._reader.load_external(field, located.take(draws[first]).raw_column(field.name))
                frames = self._video_frames(field.name, videos.to_pylist(), inverse, samples.numbers, bad)
                columns[field.name] = frames
                continue
            columns.update(_reshaped(self._window_column(field, located, draws, samples, empty, bad_draws), draws))
            _add_bad(bad, bad_draws, draws)
        return self._with_padding(columns, samples.numbers), bad

    def rows(self, positions: Int64Array, random_reader: RandomRowReader | None = None) -> tuple[Columns, BadRows]:
        """The same for windows by number, read on demand."""
        drawn = self._composition.draw(positions)
        samples = SpanSamples(positions, drawn.offsets)
        columns: Columns = {}
        bad: BadRows = {}
        together: dict[tuple[bool, int, bytes], list[str]] = {}
        for name in self._layout.names:
            draws = self._composition.column_draws(name)
            together.setdefault((name in self._videos, draws.ndim, draws.tobytes()), []).append(name)
        for (are_videos, *_), names in together.items():
            draws = self._draws(samples, names[0])
            layout = Layout(self._reader.snapshot.schema, names, range(0))
            rows = Collator(self._reader, layout, DecodeOptions(decode=False) if are_videos else self._options)
            some, bad_draws = rows.rows(drawn.positions[draws.reshape(-1)], random_reader)
            if are_videos:
                each = np.arange(len(positions))
                some = {name: self._video_frames(name, some[name], each, positions, bad) for name in names}
            columns.update(_reshaped(some, draws))
            _add_bad(bad, bad_draws, draws)
        return self._with_padding(columns, positions), bad

    def _draws(self, samples: SpanSamples, name: str) -> Int64Array:
        """The draws of a column: of shape (samples, time), or (samples,) without a time axis."""
        return np.add.outer(samples.offsets[:-1], self._composition.column_draws(name))

    def _window_column(
        self,
        field: Field,
        located: WindowRows,
        draws: Int64Array,
        samples: SpanSamples,
        empty: Allocators,
        bad: BadRows,
    ) -> Columns:
        shape, allocate = self._shared_shapes.get(field.name), _flat(empty(field.name), draws)
        flat = draws.reshape(-1)
        if shape is None or self._images is None:
            return self.variable(field, located.take(flat), allocate, bad)
        places: dict[int, list[int]] = {}
        for index, position in enumerate(self._composition.draw(samples.numbers).positions[flat].tolist()):
            places.setdefault(position, []).append(index)
        out = allocate((len(flat), *shape), np.uint8)

        def decode(some: list[int]) -> dict[int, Any]:
            rows = located.take(flat[[places[position][0] for position in some]])
            errors: BadRows = {}
            values = self.variable(field, rows, self._buffers.allocate, errors)[field.name]
            images = dict(zip(some, values, strict=True))
            copy_images(images, places, out)  # while they are in the processor's cache
            for index, error in errors.items():
                bad.update(dict.fromkeys(places[some[index]], error))
                del images[some[index]]
            return images

        left: list[int] = []
        for some in _groups(self._images.copy(field.name, places, out)):
            claimed = self._images.claim(field.name, some)
            left += (position for position in some if position not in claimed)
            if claimed:
                self._images.add(field.name, decode(claimed))
        for some in _groups(self._images.copy(field.name, {position: places[position] for position in left}, out)):
            decode(some)  # another process still does, or died
        return {field.name: out}

    def _video_frames(
        self, name: str, videos: Values, video_of: Int64Array, windows: Int64Array, bad: BadRows
    ) -> list[Any]:
        """The frames of each window, decoded from the video of its group; `video_of` has its index in `videos`."""
        groups = self._composition.windows.draw_groups(windows)
        frames = groups.steps[:, self._composition.columns[name]].tolist()
        decoded: list[Any] = []
        for index, (number, length) in enumerate(zip(video_of.tolist(), groups.lengths.tolist(), strict=True)):
            try:
                video = videos[number]
                if video is None:
                    raise SampleError("its first row has no video")
                decoded.append(decode_video_frames(video, frames[index], num_frames=length))
            except SampleError as error:
                decoded.append(None)
                group = self._composition.group_name(groups.numbers[index])
                needs = f"needs a video with one frame for each row in column {name!r}"
                bad.setdefault(index, SampleError(f"{group} of {length} rows {needs}: {error}"))
        return decoded

    def _with_padding(self, columns: Columns, windows: Int64Array) -> Columns:
        if self._layout.padded:
            padding = self._composition.padding(windows)
            for name in self._layout.padded:
                columns[f"{name}_pad"] = padding[:, self._composition.columns[name]]
        return columns


def shared_image_shapes(layout: Layout, options: DecodeOptions) -> dict[str, tuple[int, ...]]:
    """The columns of 8-bit images of one shape that several windows may need."""
    windows = layout.composition
    if not isinstance(windows, WindowSamples):
        return {}
    decoded = [field for field in layout.variable if options.decoder(field) is True and not field.nullable]
    shapes = {field.name: options.image_shape(field) for field in decoded if windows.column_draws(field.name).ndim}
    return {name: tuple(shape) for name, shape in shapes.items() if shape is not None and len(shape) == 3}


def _groups(positions: list[int]) -> list[list[int]]:
    return [positions[start : start + _GROUP_IMAGES] for start in range(0, len(positions), _GROUP_IMAGES)]


def _flat(empty: Allocator, draws: Int64Array) -> Allocator:
    """An allocator of rows that are reshaped to samples and times, in memory that `empty` allocates if it can be."""

    def allocate(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        return contiguous(empty, (*draws.shape, *shape[1:]), dtype).reshape(shape)

    return allocate


def _reshaped(columns: Columns, draws: Int64Array) -> Columns:
    """Columns of rows as columns of samples and times."""
    if draws.ndim == 1:
        return columns
    times = draws.shape[1]
    return {
        name: [values[first : first + times] for first in range(0, len(values), times)]
        if isinstance(values, list)
        else values.reshape(*draws.shape, *values.shape[1:])
        for name, values in columns.items()
    }


def _add_bad(bad: BadRows, bad_draws: BadRows, draws: Int64Array) -> None:
    """Record the samples of bad draws."""
    times = draws.shape[1] if draws.ndim > 1 else 1
    for index, error in sorted(bad_draws.items()):
        bad.setdefault(index // times, error)
