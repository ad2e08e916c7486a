"""The columns of a selection: of a fixed shape, or of a variable one."""

from collections.abc import Sequence
from dataclasses import replace

from penstock.format import Field, Schema, value_kind
from penstock.format.kinds import Image, Label, List, Tensor, Video
from penstock.plan import ComposedRows, PackedSamples, Rows, WindowSamples
from penstock.table import ROW_ID, fixed_column


class Layout:
    """Which columns are in the slab (`fixed`), and which have a variable shape or are encoded (`variable`)."""

    def __init__(self, schema: Schema, names: Sequence[str], rows: Rows) -> None:
        self.composition = rows.composition if isinstance(rows, ComposedRows) else None
        """How samples are composed of rows; None if a row is a sample."""
        self.names = tuple(names)
        if self.composition is not None:
            names = self.composition.stored_columns(names)
        fields = {name: None if name == ROW_ID else schema[name] for name in names}
        self.fields = [field for field in fields.values() if field is not None]
        self.fixed = [column for name, field in fields.items() if (column := fixed_column(name, field)) is not None]
        known = {column.name for column in self.fixed}
        self.variable = [field for field in self.fields if field.name not in known]

    def times(self, name: str) -> tuple[int, ...]:
        """The time axis of a column of windows; empty if it has none."""
        columns = self.composition.columns if isinstance(self.composition, WindowSamples) else {}
        return (len(columns[name]),) if name in columns else ()

    @property
    def videos(self) -> frozenset[str]:
        """The columns of which samples hold frames."""
        return frozenset() if self.composition is None else self.composition.videos

    @property
    def padded(self) -> list[str]:
        """The columns that come with `<column>_pad`."""
        if not isinstance(self.composition, WindowSamples) or not self.composition.pads:
            return []
        return [name for name in self.composition.columns if name in self.names]

    @property
    def delivered(self) -> list[str]:
        """The columns of batches, without masks, in order."""
        if isinstance(self.composition, PackedSamples):
            return list(self.names)
        stored = [column.name for column in self.fixed] + [field.name for field in self.variable]
        return stored + [f"{name}_pad" for name in self.padded]


def sample_fields(schema: Schema, names: Sequence[str], rows: Rows) -> dict[str, Field]:
    """The fields of batches; those of windows have a time axis, and those of packed sequences are derived."""
    if not isinstance(rows, ComposedRows):
        return {name: schema[name] for name in names if name != ROW_ID}
    composition = rows.composition
    if isinstance(composition, PackedSamples):
        token, shapes = schema[composition.column], composition.shapes()
        kinds = {name: Tensor(str(dtype), shape) for name, (dtype, shape) in shapes.items()}
        return {name: replace(token, name=name, kind=kinds[name], nullable=False) for name in names}
    assert isinstance(composition, WindowSamples)
    times = {name: len(draws) for name, draws in composition.columns.items()}
    return {name: _with_time(schema[name], times.get(name)) for name in names if name != ROW_ID}


def _with_time(field: Field, times: int | None) -> Field:
    if times is None:
        return field
    kind = Tensor("int64") if isinstance(field.kind, Label) else field.kind
    if isinstance(value_kind(kind), Video):
        return replace(field, kind=Tensor("uint8", (times, None, None, 3)), nullable=False)
    if isinstance(kind, Tensor) and not kind.ragged:
        return replace(field, kind=Tensor(kind.dtype, (times, *kind.shape)))
    if isinstance(kind, Image) and kind.shape:
        return replace(field, kind=Tensor("uint8", (times, *kind.shape)))
    return replace(field, kind=List(kind))
