"""Views of samples that are composed of rows: windows and packed sequences."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

import numpy as np

from penstock.dataset._epoch_view import EpochChoices
from penstock.dataset._splits import split_rows
from penstock.dataset._weights import Weights
from penstock.engine import DecodeOptions, RowReader, Source, samples_of, schema_of
from penstock.errors import InvalidInputError, NotFoundError
from penstock.format import Schema, value_kind
from penstock.format.kinds import Tensor, Values, Video
from penstock.plan import (
    ComposedRows,
    GroupNames,
    PackedSamples,
    Splits,
    WindowSamples,
    find_windows,
    group_rows,
    pack_concat,
    pack_fit,
    take_positions,
)
from penstock.table import ROW_ID, Int64Array, Reader, is_position, resolve_positions, row_values, without_quarantined

Offsets = Mapping[str, Sequence[int] | range]
OffsetsS = Mapping[str, Sequence[float]]

TOLERANCE_S = 1e-4
_BATCH, _CHUNK = 256, 1 << 16


class SampleView(EpochChoices):
    """Samples that are composed of rows, at one version of a table; reading fetches only their rows."""

    _rows: ComposedRows

    def __init__(
        self, reader: Reader, columns: Sequence[str], rows: ComposedRows, group_column: str | None = None
    ) -> None:
        self._reader, self._columns, self._rows = reader, tuple(columns), rows
        self._group_column = group_column

    def _pinned(self) -> "SampleView":
        return self

    def _source(self, weights: Weights | None = None) -> Source:
        draw = None if weights is None else weights.draw(self._reader, self._rows)
        return Source(self._reader, self._columns, self._rows, draw)

    @property
    def schema(self) -> Schema:
        """The columns of samples; `schema.names` lists their names."""
        return schema_of(self._source())

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, key: Any) -> Any:
        """A sample by its index; or a view of the samples of a slice, a list or a mask.

        Raises `IndexError` for an index out of range.
        """
        if isinstance(key, str):
            raise InvalidInputError(f"samples are read as a whole: select([{key!r}]) gives a view of one column")
        if is_position(key):
            return self._read([int(resolve_positions(key, len(self))[0])])[0]
        samples = self._rows.samples
        if isinstance(key, slice) and isinstance(samples, range):
            chosen: range | Int64Array = samples[key]
        else:
            chosen = take_positions(samples, resolve_positions(key, len(self)))
        return self._of_samples(chosen)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Samples as dictionaries of arrays."""
        for start in range(0, len(self), _BATCH):
            yield from self._read(range(start, min(start + _BATCH, len(self))))

    def select(self, columns: str | Sequence[str]) -> "SampleView":
        """A view of some columns. Raises `NotFoundError` for an unknown column."""
        names = [columns] if isinstance(columns, str) else list(columns)
        packed = self._rows.composition.shapes() if isinstance(self._rows.composition, PackedSamples) else None
        for name in names:
            if packed is not None and name not in packed:
                raise NotFoundError(f"packed sequences have no column {name!r}: they have {', '.join(packed)}")
            if packed is None and name != ROW_ID:
                self._reader.snapshot.schema[name]
        return SampleView(self._reader, names, self._rows, self._group_column)

    def split(
        self, shares: Mapping[str, float], *, seed: int = 0, by: str | None = None, stratify: str | None = None
    ) -> dict[str, "SampleView"]:
        """Disjoint views by name, which share no row of the table; a sample is where `View.split` has its rows.

        Rows are split as there. `by` is by default the column `within` of windows, so that all windows of an episode
        are in one split: the same as `windows` of each split of the table. Raises `InvalidInputError` if a sample
        has rows of several splits, as windows without a group and packed sequences have: split the table instead.
        """
        by = self._group_column if by is None else by
        composition, samples = self._rows.composition, self._rows.samples
        found = split_rows(self._reader, composition.rows, Splits(shares, seed), by=by, stratify=stratify)
        split_of = np.full(self._reader.snapshot.live, -1, np.int32)
        for number, positions in enumerate(found.values()):
            split_of[positions] = number
        parts = [np.zeros(0, np.int32)]
        for chunk in range(0, len(self), _CHUNK):
            drawn = composition.draw(take_positions(samples, np.arange(chunk, min(chunk + _CHUNK, len(self)))))
            assigned = split_of[drawn.positions]
            low, high = (reduce.reduceat(assigned, drawn.offsets[:-1]) for reduce in (np.minimum, np.maximum))
            if (low != high).any():
                raise InvalidInputError(
                    f"sample {chunk + int((low != high).argmax())} has rows of several splits: split by a column that"
                    " is equal in all rows of a sample, such as by='episode', or split the table first:"
                    " ds.split(…)['train'].windows(…)"
                )
            parts.append(low)
        of_sample = np.concatenate(parts)
        chosen = {name: np.flatnonzero(of_sample == number) for number, name in enumerate(found)}
        return {name: self._of_samples(take_positions(samples, indices)) for name, indices in chosen.items()}

    def to_numpy(self) -> dict[str, Values]:
        """All samples as one batch."""
        return self._samples_at(range(len(self)))

    def __repr__(self) -> str:
        return f"SampleView({len(self):,} samples: {', '.join(map(str, self.schema))})"

    def _of_samples(self, samples: range | Int64Array) -> "SampleView":
        rows = ComposedRows(self._rows.composition, samples)
        return SampleView(self._reader, self._columns, rows, self._group_column)

    def _samples_at(self, indices: Sequence[int]) -> dict[str, Values]:
        return RowReader(self._reader, self._columns, self._rows, DecodeOptions(), lease=False).read(indices)

    def _read(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return samples_of(self._samples_at(indices), lambda array: array)


@dataclass(frozen=True, kw_only=True)
class WindowOptions:
    """What a user can choose about windows; see `View.windows`. Raises `InvalidInputError` for values out of range."""

    length: int | None
    stride: int
    within: str | None
    order_by: str | None
    offsets: Offsets | None
    offsets_s: OffsetsS | None
    tolerance_s: float
    ends: Literal["drop", "pad"]

    def __post_init__(self) -> None:
        if not self.length and not self.offsets and not self.offsets_s:
            raise InvalidInputError("windows() needs length=…, offsets={column: rows} or offsets_s={column: seconds}")
        for name, value in (("length", self.length), ("stride", self.stride)):
            if value is not None and (not isinstance(value, Integral) or isinstance(value, bool) or value < 1):
                raise InvalidInputError(f"windows({name}=…) is a number of rows of at least 1, not {value!r}")
        if self.ends not in ("drop", "pad"):
            raise InvalidInputError(f'windows(ends=…) is "drop" or "pad", not {self.ends!r}')
        if self.offsets_s and self.order_by is None:
            raise InvalidInputError("windows(offsets_s=…) needs order_by=…, the column with the time of each row")
        if not self.tolerance_s >= 0:
            raise InvalidInputError(f"windows(tolerance_s=…) is a number of seconds from 0 on, not {self.tolerance_s}")


def window_view(reader: Reader, columns: Sequence[str], rows: range | Int64Array, options: WindowOptions) -> SampleView:
    within, order_by, pad = options.within, options.order_by, options.ends == "pad"
    by_row, by_time = _offsets(columns, options)
    schema = reader.snapshot.schema
    for name in [name for name in (within, order_by) if name is not None]:
        schema[name]
    values = row_values(reader, sorted({name for name in (within, order_by) if name is not None}))
    chosen = {name: _at(array, rows) for name, array in values.items()}
    grouped = group_rows(
        len(rows), None if within is None else chosen[within], None if order_by is None else chosen[order_by]
    )
    shared = np.unique(np.concatenate([[0], *map(list, by_row.values())]).astype(np.int64))
    shared_s = np.unique(np.concatenate([[], *map(list, by_time.values())]).astype(np.float64))
    windows = find_windows(
        grouped,
        stride=options.stride,
        offsets=shared,
        offsets_s=shared_s,
        times_s=_seconds(chosen[order_by], order_by)[grouped.sequence] if by_time and order_by is not None else None,
        tolerance_s=options.tolerance_s,
        pad=pad,
    )
    if not len(windows) and len(rows):
        longest = int(np.diff(grouped.bounds).max())
        span = int(shared.max() - shared.min()) + 1
        of = f"group of {within!r}" if within is not None else "view"
        raise InvalidInputError(
            f"no window fits: a window spans {span} rows{' and the times of offsets_s' if by_time else ''}, and the "
            f'longest {of} has {longest}; take shorter windows, or ends="pad"'
        )
    draws = {name: np.searchsorted(shared, np.asarray(list(wanted))) for name, wanted in by_row.items()}
    draws |= {name: len(shared) + np.searchsorted(shared_s, np.asarray(list(w))) for name, w in by_time.items()}
    videos = frozenset(name for name in draws if name != ROW_ID and isinstance(value_kind(schema[name].kind), Video))
    names = None if within is None else GroupNames(within, chosen[within][grouped.sequence[grouped.bounds[:-1]]])
    anchor = int(np.searchsorted(shared, 0))
    composition = WindowSamples(windows, rows, draws, anchor, pad, videos, names if videos else None)
    return SampleView(reader, columns, ComposedRows(composition, _without_quarantined(reader, composition)), within)


def pack_view(
    reader: Reader, rows: range | Int64Array, column: str, *, length: int, policy: str, eos: int | None
) -> SampleView:
    if not isinstance(length, Integral) or isinstance(length, bool) or length < 1:
        raise InvalidInputError(f"pack(length=…) is a number of tokens of at least 1, not {length!r}")
    if policy not in ("concat", "fit"):
        raise InvalidInputError(f'pack(policy=…) is "concat" or "fit", not {policy!r}')
    kind = reader.snapshot.schema[column].kind
    if not isinstance(kind, Tensor) or kind.shape != (None,) or kind.element.logical.kind not in "iu":
        raise InvalidInputError(f"column {column!r} holds {kind} and no lists of tokens: pack an integer tensor [None]")
    dtype = kind.element.logical
    if eos is not None and not np.can_cast(np.min_scalar_type(eos), dtype):
        raise InvalidInputError(f"pack(eos={eos}) is not a value of {dtype}, the type of column {column!r}")
    rows = without_quarantined(reader, rows)
    tokens = _at(row_values(reader, [], lengths=[column])[column], rows).astype(np.int64)
    if isinstance(rows, range) and rows.step != 1:
        rows = np.arange(rows.start, rows.stop, rows.step)
    pack = pack_concat if policy == "concat" else pack_fit
    packing = pack(tokens if eos is None else tokens + 1, length=int(length))
    composition = PackedSamples(packing, rows, column, dtype, eos, tokens)
    return SampleView(reader, list(composition.shapes()), ComposedRows(composition, range(len(composition))))


def _without_quarantined(reader: Reader, composition: WindowSamples) -> range | Int64Array:
    """The windows that draw no quarantined row."""
    everything, left = composition.rows, without_quarantined(reader, composition.rows)
    if left is everything:
        return range(len(composition))
    allowed = [
        np.isin(composition.draw(part).positions, left).reshape(len(part), -1).all(axis=1)
        for part in np.array_split(np.arange(len(composition)), 1 + len(composition) // _CHUNK)
    ]
    return np.flatnonzero(np.concatenate(allowed))


def _at(values: np.ndarray[Any, Any], rows: range | Int64Array) -> np.ndarray[Any, Any]:
    if not isinstance(rows, range):
        return values[rows]
    return values[rows.start : None if rows.stop < 0 else rows.stop : rows.step]


def _offsets(columns: Sequence[str], options: WindowOptions) -> tuple[dict[str, list[int]], dict[str, list[float]]]:
    """The offsets of each column that has a time axis, in rows and in seconds."""
    named, named_s, length = dict(options.offsets or {}), dict(options.offsets_s or {}), options.length
    for name in (*named, *named_s):
        if name not in columns:
            raise NotFoundError(
                f"windows() has offsets for {name!r}, which is none of the columns {', '.join(columns)}"
            )
        if name in named and name in named_s:
            raise InvalidInputError(f"windows() has offsets in rows and in seconds for {name!r}: give one of them")
        if not len(named.get(name, named_s.get(name, ()))):
            raise InvalidInputError(f"windows() has no offsets for {name!r}: give at least one")
    if length is not None:
        named = {name: named.get(name, range(length)) for name in columns if name not in named_s}
    found = {name: [int(offset) for offset in wanted] for name, wanted in named.items()}
    if any(int(offset) != offset for wanted in named.values() for offset in wanted):
        raise InvalidInputError("windows(offsets=…) are whole numbers of rows; use offsets_s=… for seconds")
    return found, {name: [float(offset) for offset in wanted] for name, wanted in named_s.items()}


def _seconds(values: np.ndarray[Any, Any], name: str) -> np.ndarray[Any, Any]:
    """Times in seconds, relative to the first one."""
    if values.dtype.kind not in "iufmM":
        raise InvalidInputError(f"windows(offsets_s=…) needs times in order_by={name!r}: numbers of seconds, or times")
    relative = values - values.min() if len(values) else values
    return relative / np.timedelta64(1, "s") if relative.dtype.kind == "m" else relative.astype(np.float64)
