"""Rows of several spans that were located together."""

from collections.abc import Sequence
from typing import cast

import numpy as np

from penstock.engine.planning._locators import BlockLocations
from penstock.engine.planning._samples import Composition, flat_ranges, groups
from penstock.engine.planning._spans import Planned, PlannedBlock, PlannedSamples, SpanSamples, TableRows
from penstock.plan import Places, SourceRows, SpanSteps
from penstock.table import Int64Array


class LocatedRows:
    """Where rows are, or all rows that composed samples draw."""

    def __init__(self, found: BlockLocations, composition: Composition | None) -> None:
        self._resident = found.resident
        self._blocks = cast("list[PlannedBlock]", found.blocks) if found.resident else flat_blocks(found.blocks)
        self._block_index, self._rows = found.block_index, found.rows
        self._samples: SpanSamples | None = None
        self._anchor = None if composition is None else composition.anchor
        if composition is not None:
            self._expand(found)
        self._local_index = np.empty(len(self._blocks), np.int64)

    def _expand(self, found: BlockLocations) -> None:
        """Locate what samples draw, given the blocks of samples that hold them."""
        counts, numbers = np.empty(len(found.rows), np.int64), np.empty(len(found.rows), np.int64)
        drawn: list[tuple[Int64Array, Int64Array, Int64Array]] = []
        bases = np.cumsum([0, *(len(block.blocks) for block in found.blocks if isinstance(block, PlannedSamples))])
        for index, here in groups(found.block_index):
            block = found.blocks[index]
            assert isinstance(block, PlannedSamples)
            local = found.rows[here]
            counts[here] = lengths = block.offsets[local + 1] - block.offsets[local]
            numbers[here] = block.samples[local]
            source, _ = flat_ranges(block.offsets[local], lengths)
            drawn.append((here, block.block_index[source] + bases[index], block.rows[source]))
        offsets = np.append(0, np.cumsum(counts))
        self._block_index, self._rows = np.empty(offsets[-1], np.int64), np.empty(offsets[-1], np.int64)
        for here, block_index, rows in drawn:
            target, _ = flat_ranges(offsets[here], counts[here])
            self._block_index[target], self._rows[target] = block_index, rows
        self._samples = SpanSamples(numbers, offsets)

    def rows(self, table: int, steps: SpanSteps, rows: SourceRows, here: slice, epochs: int | Int64Array) -> TableRows:
        """Some of the rows, or samples, which a span has of a table."""
        samples = None if self._samples is None else self._samples.part(here.start, here.stop)
        if self._samples is not None:
            here = slice(int(self._samples.offsets[here.start]), int(self._samples.offsets[here.stop]))
        block_index, blocks = self._block_index[here], self._blocks
        if not self._resident:
            needed = np.flatnonzero(np.bincount(block_index))
            self._local_index[needed] = np.arange(len(needed))
            block_index = self._local_index[block_index]
            blocks = [self._blocks[number] for number in needed.tolist()]
        firsts = block_index if samples is None else block_index[samples.offsets[:-1]]
        return TableRows(
            table=table,
            places=rows.places,
            blocks=blocks,
            block_index=block_index,
            rows=self._rows[here],
            samples=samples,
            anchor=self._anchor,
            padding=rows.padding,
            epochs=epochs,
            blocks_drawn=_blocks_drawn(steps, rows.places, firsts, len(blocks)),
            resident=self._resident,
        )


def flat_blocks(blocks: Sequence[Planned]) -> list[PlannedBlock]:
    """The blocks of rows in some blocks of rows or samples."""
    return [part for block in blocks for part in (block.blocks if isinstance(block, PlannedSamples) else (block,))]


def _blocks_drawn(steps: SpanSteps, places: Places, block_index: Int64Array, blocks: int) -> int:
    """Sum over batches of the number of blocks that a batch draws from."""
    batch = np.repeat(np.arange(len(steps.batch_rows)), steps.batch_rows)[places]
    return int(np.count_nonzero(np.bincount(batch * blocks + block_index)))
