"""What a loader reads: rows and columns of a table at one version, or a mixture of such sources."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from penstock.engine._options import DecodeOptions
from penstock.engine._row_reader import MixedRowReader, RowReader
from penstock.engine.assembly import SOURCE, MixedColumns
from penstock.engine.planning import Layout, Selection, make_selection, sample_fields
from penstock.errors import InvalidInputError
from penstock.format import Field, Schema
from penstock.format.kinds import Label
from penstock.plan import MixtureOrder, Rows, Shuffle, WeightedDraw, mixture_rows, segments_of
from penstock.table import Reader


@dataclass(frozen=True, eq=False)
class Source:
    """Rows and columns of a table at one version."""

    reader: Reader
    names: Sequence[str]
    rows: Rows
    draw: WeightedDraw | None = None
    """Draws the rows of each epoch; None reads each row once."""

    def __len__(self) -> int:
        """Rows of an epoch."""
        return len(self.rows) if self.draw is None else self.draw.draws

    def epoch_rows(self, batch_size: int) -> int:  # noqa: ARG002
        """Rows of an epoch."""
        return len(self)

    def row_reader(self, decode: DecodeOptions, *, lease: bool) -> RowReader:
        """Random access to the rows; see `RowReader`."""
        return RowReader(self.reader, self.names, self.rows, decode, lease=lease)

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of the selected columns."""
        return sample_fields(self.reader.snapshot.schema, self.names, self.rows)

    @property
    def layout(self) -> Layout:
        return Layout(self.reader.snapshot.schema, self.names, self.rows)

    def selection(self, *, shuffled: bool, seed: int) -> Selection:
        """The selected rows and columns."""
        return make_selection(self.reader, self.names, self.rows, shuffled=shuffled, draw=self.draw, seed=seed)


@dataclass(frozen=True, eq=False)
class MixtureSource:
    """Rows of several sources, in proportion to their weights."""

    sources: Mapping[str, Source]
    """By name; each has those of the columns that its table has."""
    names: Sequence[str]
    """The columns of all sources."""
    shuffles: Mapping[str, Shuffle | None]
    """Of sources that are not shuffled as the loader says."""
    schedule: Sequence[tuple[int, tuple[int, ...]]]
    """The weights of the sources, from a row of the mixture on."""
    stop: Literal["first", "all"] | int
    """Where an epoch ends."""
    whole_batches: bool
    """Whether all rows of a batch come from one source."""

    def schedule_of(self, batch_size: int) -> tuple[tuple[int, tuple[int, ...]], ...]:
        """The schedule by what is apportioned: rows, or batches."""
        unit = batch_size if self.whole_batches else 1
        by_unit = {-(-row // unit): weights for row, weights in self.schedule}  # of several in one batch, the last
        return tuple(by_unit.items())

    def epoch_rows(self, batch_size: int) -> int:
        """Rows of an epoch; raises `InvalidInputError` if it would never end."""
        unit = batch_size if self.whole_batches else 1
        if isinstance(self.stop, int):
            return max(self.stop // unit, 1) * unit
        every = self.stop == "all"
        sizes = [-(-len(source) // unit) if every else len(source) // unit for source in self.sources.values()]
        segments = segments_of(self.schedule_of(batch_size), start=0, taken=(0,) * len(sizes))
        units = mixture_rows(segments, sizes, all_sources=every)
        if units is None:
            unread = [name for number, name in enumerate(self.sources) if not segments[-1].weights[number]]
            raise InvalidInputError(
                f'stop="all" never comes: source {unread[0]!r} has weight 0 before it is read once; leave it out, or '
                "give it a weight"
            )
        if not units:
            small = min(self.sources, key=lambda name: len(self.sources[name]))
            raise InvalidInputError(
                f"source {small!r} has {len(self.sources[small])} rows, which do not fill a batch of {batch_size}; "
                'pass a smaller batch_size, or stop="all"'
            )
        return units * unit

    @property
    def order(self) -> MixtureOrder:
        """From which source each row comes."""
        return MixtureOrder(segments_of(self.schedule, start=0, taken=(0,) * len(self.sources)))

    def row_reader(self, decode: DecodeOptions, *, lease: bool) -> MixedRowReader:
        """Random access to the rows of an epoch, of sources in table order; see `RowReader`."""
        readers = [each.row_reader(decode.only(list(each.fields)), lease=lease) for each in self.sources.values()]
        columns = MixedColumns.of({name: each.layout for name, each in self.sources.items()}, self.names, decode)
        return MixedRowReader(readers, columns, self.order, self.epoch_rows(1))

    @property
    def fields(self) -> Mapping[str, Field]:
        """The fields of the columns, with that of the first source that has one; `_source` is a label."""
        mixed: dict[str, Field] = {}
        for name in self.names:
            fields = [source.fields[name] for source in self.sources.values() if name in source.fields]
            if fields:
                lacking = len(fields) < len(self.sources)
                mixed[name] = replace(fields[0], nullable=lacking or any(field.nullable for field in fields))
        return mixed | {SOURCE: Field(0, SOURCE, Label(tuple(self.sources)), False, "none", 0, 0)}


def schema_of(source: Source | MixtureSource) -> Schema:
    """The columns that are read."""
    return Schema(tuple(source.fields.values()))
