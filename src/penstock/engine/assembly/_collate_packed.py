"""Collate sequences of packed tokens, with what attention kernels need to keep documents apart."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.device import SlabColumns
from penstock.engine.assembly._collate import BadRows, Collator, contiguous, unsigned
from penstock.engine.assembly._decode import Columns
from penstock.engine.assembly._values import Allocators
from penstock.engine.window import TableTask, WindowRows
from penstock.format.kinds import Values
from penstock.plan import CU_SEQLENS, POSITION_IDS, PackedSamples
from penstock.table import Int64Array, RandomRowReader
from penstock.types import cached_property

_SEQUENCES_PER_CHUNK = 8
"""Sequences whose ids are written together: so few that what is computed for them stays in the processor's cache."""


class _Documents(NamedTuple):
    """Where the tokens of documents are in memory."""

    memory: Sequence[memoryview | None]
    """None if a document could not be read."""
    starts: Int64Array
    """In bytes."""

    @classmethod
    def of(cls, values: Values) -> "_Documents":
        """Documents that are arrays of their own."""
        flat = [None if value is None else unsigned(np.ascontiguousarray(value).data) for value in values]
        return cls(flat, np.zeros(len(flat), np.int64))


class _Pieces(NamedTuple):
    """The pieces of some sequences, one after the other."""

    numbers: Int64Array
    sequence: Int64Array
    """The index of the sequence of each piece."""
    lengths: Int64Array
    places: Int64Array
    """The first place of each piece, counted over all sequences."""
    firsts: Int64Array
    """The index of the first piece of each sequence."""
    used: Int64Array
    """Places of each sequence that hold tokens."""

    @property
    def index_in_sequence(self) -> Int64Array:
        """The index of each piece among those of its sequence."""
        return np.arange(len(self.numbers)) - self.firsts[self.sequence]


class PackedCollator(Collator):
    """Collates sequences of tokens."""

    _composition: PackedSamples

    def columns(self, task: TableTask, slab: SlabColumns, empty: Allocators) -> tuple[Columns, BadRows]:  # noqa: ARG002
        assert task.samples is not None
        return self._pack(task.samples.numbers, self._documents(task.located), empty), {}

    def rows(self, positions: Int64Array, random_reader: RandomRowReader | None = None) -> tuple[Columns, BadRows]:  # noqa: ARG002
        """The same for sequences by number, read on demand."""
        rising, inverse = np.unique(self._composition.draw(positions).positions, return_inverse=True)
        cells = self._reader.raw_columns(self._layout.fields, [rising])[0][self._composition.column]
        values = self._values(self._layout.fields[0], cells, {})[self._composition.column]
        documents = _Documents.of([values[index] for index in inverse.tolist()])
        return self._pack(positions, documents, lambda _: np.empty), {}

    def _documents(self, located: WindowRows) -> _Documents:
        """The documents of some rows in the window."""
        column = self._composition.column
        blocks = [block.encoded(column, unsigned) for block in located.blocks]
        memory: list[Any] = [None] * len(located.rows)
        starts = np.empty(len(located.rows), np.int64)
        for number, block in enumerate(blocks):
            if block is None:  # some documents are blobs
                return _Documents.of(self._values(self._layout.fields[0], located.raw_column(column), {})[column])
            here = np.flatnonzero(located.block_index == number)
            starts[here] = block.starts[located.rows[here]]
            for index, part in zip(here.tolist(), block.memory(located.rows[here]), strict=True):
                memory[index] = part
        return _Documents(memory, starts)

    def _pack(self, sequences: Int64Array, documents: _Documents, empty: Allocators) -> Columns:
        pieces, shapes = self._pieces(sequences), self._composition.shapes()
        made: Columns = {}
        for name in self._layout.names:
            dtype, shape = shapes[name]
            made[name] = out = contiguous(empty(name), (len(sequences), *shape), dtype)
            if name == self._composition.column:
                self._write_tokens(out, documents, pieces)
            elif name == CU_SEQLENS:
                self._write_ends(out, pieces)
            else:
                self._write_ids(name, out, pieces)
        return made

    def _pieces(self, sequences: Int64Array) -> _Pieces:
        packing = self._composition.packing
        numbers, offsets = self._composition.pieces(sequences)
        lengths = packing.lengths[numbers]
        before = np.cumsum(lengths) - lengths
        sequence = np.repeat(np.arange(len(sequences)), np.diff(offsets))
        places = before - before[offsets[:-1]][sequence] + sequence * packing.length
        return _Pieces(numbers, sequence, lengths, places, offsets[:-1], np.add.reduceat(lengths, offsets[:-1]))

    def _write_tokens(self, out: Any, documents: _Documents, pieces: _Pieces) -> None:
        composition, flat = self._composition, out.reshape(-1)
        packing, size, eos = composition.packing, composition.dtype.itemsize, composition.eos
        if (pieces.used < packing.length).any():
            out[:] = eos or 0
        starts = packing.starts[pieces.numbers]
        tokens = np.minimum(composition.document_tokens[packing.documents[pieces.numbers]] - starts, pieces.lengths)
        if eos is not None:
            flat[(pieces.places + tokens)[tokens < pieces.lengths]] = eos
        first, place = documents.starts + starts * size, pieces.places * size
        # Slices of memory are copied in a fourth of the time that numpy needs for short arrays.
        target = flat.view(np.uint8).data
        for memory, start, end, at, until in zip(
            documents.memory, first.tolist(), (first + tokens * size).tolist(), place.tolist(),
            (place + tokens * size).tolist(), strict=True,
        ):  # fmt: skip
            if memory is not None:
                target[at:until] = memory[start:end]

    def _write_ends(self, out: npt.NDArray[np.int32], pieces: _Pieces) -> None:
        """The ends of the pieces of each sequence, the last one as often as there is room."""
        out[:] = pieces.used[:, None]
        out[:, 0] = 0
        out[pieces.sequence, pieces.index_in_sequence + 1] = (
            pieces.places % self._composition.packing.length + pieces.lengths
        )

    def _write_ids(self, name: str, out: npt.NDArray[np.int32], pieces: _Pieces) -> None:
        """The segment of each token, counted from 1, or its position in its segment; 0 in free places."""
        length, free = out.shape[1], out.shape[1] - pieces.used
        counts = pieces.lengths.copy()
        counts[np.append(pieces.firsts[1:], len(counts)) - 1] += free
        if name == POSITION_IDS:
            values = (pieces.places % (_SEQUENCES_PER_CHUNK * length)).astype(np.int32)
        else:
            values = (pieces.index_in_sequence + 1).astype(np.int32)
        bounds = np.append(pieces.firsts[::_SEQUENCES_PER_CHUNK], len(counts)).tolist()
        for start, (first, end) in zip(range(0, len(out), _SEQUENCES_PER_CHUNK), pairwise(bounds), strict=True):
            part = out[start : start + _SEQUENCES_PER_CHUNK].reshape(-1)
            repeated = np.repeat(values[first:end], counts[first:end])
            if name == POSITION_IDS:
                np.subtract(self._ramp[: len(part)], repeated, out=part)
            else:
                part[:] = repeated
        for row in np.flatnonzero(free).tolist():
            out[row, pieces.used[row] :] = 0

    @cached_property
    def _ramp(self) -> npt.NDArray[np.int32]:
        """The places of some sequences."""
        return np.arange(_SEQUENCES_PER_CHUNK * self._composition.packing.length, dtype=np.int32)
