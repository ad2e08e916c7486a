"""Collate sequences of packed tokens, with what attention kernels need to keep documents apart."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from penstock.engine._options import DecodeOptions
from penstock.engine.assembly._collate import Allocators, BadRows, Collator, WindowRows, as_bytes, contiguous
from penstock.engine.assembly._decode import Columns
from penstock.engine.planning import CU_SEQLENS, SEGMENT_IDS, Layout, PackedSamples, Span
from penstock.engine.window import Window
from penstock.table import Int64Array, RandomRowReader, RawColumn, Reader


class PackedCollator(Collator):
    """Collates sequences of tokens, with what attention kernels need to keep documents apart."""

    def __init__(self, reader: Reader, layout: Layout, options: DecodeOptions, composition: PackedSamples) -> None:
        super().__init__(reader, layout, options)
        self._composition = composition

    def columns(self, span: Span, window: Window, empty: Allocators) -> tuple[Columns, BadRows]:
        assert span.samples is not None
        located = WindowRows.of(span, window)
        documents = located.encoded(self._composition.column, as_bytes)
        if documents is None:  # some are blobs
            documents = self._documents(located.raw_column(self._composition.column))
        return self._pack(span.samples.numbers, documents, empty), {}

    def rows(self, positions: Int64Array, random_reader: RandomRowReader | None = None) -> tuple[Columns, BadRows]:  # noqa: ARG002
        """The same for sequences by number, read on demand."""
        drawn = self._composition.draw(positions).positions
        rising, inverse = np.unique(drawn, return_inverse=True)
        cells = self._reader.raw_columns(self._layout.fields, [rising])[0][self._composition.column]
        documents = self._documents(cells)
        return self._pack(positions, [documents[index] for index in inverse.tolist()], lambda _: np.empty), {}

    def _documents(self, cells: RawColumn) -> list[memoryview | None]:
        """The bytes of each document; None if it could not be read."""
        values = self._reader.decode(self._layout.fields[0], cells).values
        return [None if value is None else as_bytes(np.ascontiguousarray(value).data) for value in values]

    def _pack(self, sequences: Int64Array, documents: Sequence[Any], empty: Allocators) -> Columns:
        composition, length = self._composition, self._composition.packing.length
        pieces, offsets = composition.pieces(sequences)
        lengths = composition.packing.lengths[pieces]
        before = np.cumsum(lengths) - lengths
        first = before[offsets[:-1]]  # every sequence has a piece
        sequence = np.repeat(np.arange(len(sequences)), np.diff(offsets))
        places = before - first[sequence] + sequence * length
        used = np.add.reduceat(lengths, offsets[:-1])
        made: Columns = {}
        for name, (dtype, shape) in composition.shapes().items():
            if name not in self._layout.names:
                continue
            out = contiguous(empty(name), (len(sequences), *shape), dtype)
            if name == composition.column:
                self._write_tokens(out.reshape(-1), documents, pieces, places)
            elif name == CU_SEQLENS:
                out[:] = used[:, None]
                out[:, 0] = 0
                out[sequence, np.arange(len(pieces)) - offsets[sequence] + 1] = places + lengths - sequence * length
            else:
                self._write_ids(name, out.reshape(-1), lengths, places, np.arange(len(pieces)) - offsets[sequence])
            if name != CU_SEQLENS:
                for row in np.flatnonzero(used < length).tolist():
                    out[row, used[row] :] = 0 if name != composition.column else composition.eos or 0
            made[name] = out
        return {name: made[name] for name in self._layout.names}

    def _write_tokens(
        self, out: npt.NDArray[Any], documents: Sequence[Any], pieces: Int64Array, places: Int64Array
    ) -> None:
        composition = self._composition
        packing, size = composition.packing, composition.dtype.itemsize
        tokens = composition.document_tokens[packing.documents[pieces]]
        starts, ends = packing.starts[pieces], packing.starts[pieces] + packing.lengths[pieces]
        stored = np.minimum(ends, tokens)
        if composition.eos is not None:
            out[(places + ends - starts - 1)[ends > tokens]] = composition.eos
        memory = out.view(np.uint8).data
        copies = zip(
            documents, (starts * size).tolist(), (stored * size).tolist(), (places * size).tolist(), strict=True
        )
        for document, start, end, place in copies:
            if end > start and document is not None:
                memory[place : place + end - start] = document[start:end]

    def _write_ids(
        self, name: str, out: npt.NDArray[Any], lengths: Int64Array, places: Int64Array, segments: Int64Array
    ) -> None:
        """Write the segment, counted from 1, or the position in its segment, of each token."""
        length = self._composition.packing.length
        memory = out.view(np.uint8).data
        positions = np.arange(length, dtype=out.dtype).view(np.uint8).data
        size = out.dtype.itemsize
        constants: dict[int, memoryview] = {}
        for count, place, segment in zip(lengths.tolist(), places.tolist(), segments.tolist(), strict=True):
            source = positions
            if name == SEGMENT_IDS:
                source = constants.get(segment)  # type: ignore[assignment]
                if source is None:
                    filled = np.full(length, segment + 1, out.dtype)
                    source = constants[segment] = filled.view(np.uint8).data
            memory[place * size : (place + count) * size] = source[: count * size]
