"""Rows and columns of a table at one version."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.dataset._follow import follow_branch
from penstock.dataset._questions import Questions
from penstock.dataset._samples import TOLERANCE_S, Offsets, OffsetsS, SampleView, WindowOptions, pack_view, window_view
from penstock.dataset._search import Search
from penstock.dataset._splits import split_rows
from penstock.dataset._streaming import Streaming, selected_columns
from penstock.dataset._weights import UNWEIGHTED, Weights
from penstock.engine import MixtureSource, Source, VersionFollower
from penstock.errors import InvalidInputError
from penstock.format import Schema
from penstock.format.kinds import Values
from penstock.plan import Splits
from penstock.query import Relation
from penstock.table import (
    ROW_ID,
    Int64Array,
    Reader,
    as_batch,
    find_positions,
    find_row_ids,
    is_position,
    resolve_positions,
    take_positions,
    without_quarantined,
)

_ARROW_ROWS = 1 << 14


class View(Streaming, Questions, Search):
    """Some rows and columns of a table at one version; reading fetches only those."""

    _rows: range | Int64Array
    _question = ""
    """The question that this view answers, if there is one."""

    def __init__(self, reader: Reader, columns: Sequence[str], rows: Int64Array | range) -> None:
        self._reader, self._columns, self._rows = reader, tuple(columns), rows

    @staticmethod
    def _of(relation: Relation, question: str = "") -> "View":
        """A view of some rows and columns, which answers a question."""
        view = View(relation.reader, relation.columns, relation.rows)
        view._question = question
        return view

    def _pinned(self) -> "View":
        """This view, which no other thread can change between two steps of a read."""
        return self

    def _source(self, columns: Sequence[str] | None, weights: Weights = UNWEIGHTED) -> Source:
        names = selected_columns(self._reader, self._columns, columns)
        rows = without_quarantined(self._reader, self._rows)
        if rows is not self._rows:
            weights = weights.only(np.isin(take_positions(self._rows, np.arange(len(self._rows))), rows))
        return Source(self._reader, names, rows, weights.draw(self._reader, rows))

    def _follower(self, source: Source | MixtureSource, weights: Weights) -> VersionFollower:
        return follow_branch(self._reader, source.names, self._rows, weights)

    @property
    def schema(self) -> Schema:
        """The selected columns; `schema.names` lists their names."""
        view = self._pinned()
        table = view._reader.snapshot.schema
        return Schema(tuple(table[name] for name in view._columns if name != ROW_ID))

    def __len__(self) -> int:
        return len(self._pinned()._rows)

    @overload
    def __getitem__(self, key: str) -> "ColumnView": ...
    @overload
    def __getitem__(self, key: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, key: "slice | Sequence[int] | Int64Array | pc.Expression") -> "View": ...
    def __getitem__(self, key: Any) -> Any:
        """A row by position; a column by name; or a view of the rows of a slice, a list, a mask or an expression.

        An expression is one of `pyarrow.compute`, such as `pc.field("reward") > 1`. Raises `IndexError` for a position
        out of range, and `NotFoundError` for an unknown column.
        """
        if isinstance(key, str):
            return ColumnView(self, key)
        view = self._pinned()
        if is_position(key):
            row = view._reader.columns(view._columns, [view._positions(key)])[0]
            return {name: column.item(0) for name, column in row.items()}
        if isinstance(key, slice) and isinstance(view._rows, range):
            return View(view._reader, view._columns, view._rows[key])
        return View(view._reader, view._columns, view._positions(key))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Rows as dictionaries, prefetched."""
        view = self._pinned()
        if not view._columns:
            yield from ({} for _ in view._rows)
            return
        for columns in view._reader.batches(view._columns, view._groups(256)):
            for index in range(len(next(iter(columns.values())).values)):
                yield {name: column.item(index) for name, column in columns.items()}

    def select(self, columns: str | Sequence[str]) -> "View":
        """A view of some columns; `_row_id` can be one of them. Raises `NotFoundError` for an unknown column."""
        view = self._pinned()
        names = [columns] if isinstance(columns, str) else list(columns)
        for name in names:
            if name != ROW_ID:
                view.schema[name]
        return View(view._reader, names, view._rows)

    def rows(self, *, row_ids: Sequence[int] | Int64Array) -> "View":
        """A view of the rows with these row ids, in this order. Raises `NotFoundError` if this version lacks one."""
        view = self._pinned()
        positions = find_row_ids(view._reader, np.asarray(row_ids, np.int64).reshape(-1))
        return View(view._reader, view._columns, positions)

    def windows(
        self,
        length: int | None = None,
        stride: int = 1,
        *,
        within: str | None = None,
        order_by: str | None = None,
        offsets: Offsets | None = None,
        offsets_s: OffsetsS | None = None,
        tolerance_s: float = TOLERANCE_S,
        ends: Literal["drop", "pad"] = "drop",
    ) -> SampleView:
        """A view of windows: samples of several rows of one group, such as some steps of an episode.

        length: rows of a window; every column is a tensor of shape (length, …).
        stride: rows from one window to the next.
        within: the column whose value is the same in all rows of a window; by default all rows are one group.
        order_by: the column by which the rows of a group are ordered; by default as they are stored.
        offsets: rows of each column relative to the window's own, such as `{"camera": [-1, 0], "action": range(16)}`;
            a column without offsets has `length` rows, or without `length` the window's own row and no time axis.
        offsets_s: the same in seconds of the column `order_by`; the row nearest to each time, within `tolerance_s`.
        ends: "drop" leaves out windows that reach beyond their group, or miss a time; "pad" repeats the group's first
            or last row, or takes the nearest one, and flags them in `<column>_pad`.

        A video column with offsets holds, in the first row of a group, a video with a frame for each row of the group;
        a window has the frames of its rows, uint8 (time, height, width, 3). With `decode={column: False}` or a
        function there, it has the whole encoded video instead.

        Raises `NotFoundError` for an unknown column, and `InvalidInputError` if no window fits.
        """
        view = self._pinned()
        options = WindowOptions(
            length=length, stride=stride, within=within, order_by=order_by,
            offsets=offsets, offsets_s=offsets_s, tolerance_s=tolerance_s, ends=ends,
        )  # fmt: skip
        return window_view(view._reader, view._columns, view._rows, options)

    def pack(
        self, column: str, length: int, policy: Literal["concat", "fit"] = "concat", eos: int | None = None
    ) -> SampleView:
        """A view of sequences of `length` tokens, packed from the documents in a column of ragged integers.

        policy: "concat" cuts documents at the ends of sequences, and only the last sequence has free places; "fit"
            keeps documents whole, cuts those longer than `length`, and leaves a few places free.
        eos: a token that follows each document.

        A sequence has `segment_ids` (1 for its first document, 0 for free places), `position_ids` (counted within each
        document) and `cu_seqlens` (the ends of its documents, padded with the last one). Raises `InvalidInputError` if
        the column holds no tokens.
        """
        view = self._pinned()
        return pack_view(view._reader, view._rows, column, length=length, policy=policy, eos=eos)

    def split(
        self, shares: Mapping[str, float], *, seed: int = 0, by: str | None = None, stratify: str | None = None
    ) -> dict[str, "View"]:
        """Disjoint views by name, each with about its share of the rows; a row stays in its split for ever.

        A hash of the row id decides, or with `by` a hash of the row's value of that column, so that rows of one value
        are in one split. Nothing is stored. Appends, deletes, updates of other columns, compaction and merges move no
        row, and a view of some rows splits like the table. Shares that sum to less than 1 leave the other rows out.

        by: a column of integers, text, bytes, bools, labels or times; rows without a value are one group.
        stratify: such a column as well. Each of its values is split on its own, and rows of one value that follow each
            other by row id, or by an integer `by`, are divided to within a few rows. To change a row's value may move
            it. With `by`, all rows of a group must have the same value.

        Raises `InvalidInputError` for shares out of range and columns of other kinds, `NotFoundError` for unknown ones.
        """
        view = self._pinned()
        found = split_rows(view._reader, view._rows, Splits(shares, seed), by=by, stratify=stratify)
        return {name: View(view._reader, view._columns, rows) for name, rows in found.items()}

    def batches(self, size: int | None = 1024) -> Iterator[dict[str, Values]]:
        """Batches of `size` rows in order, as dictionaries of columns, prefetched in threads.

        A column is an array if all its rows have one shape, otherwise a list. A nullable column that is an array comes
        with `<column>_mask`, true where there is a value. With `size=None`, batches end at the page boundaries of the
        heaviest column, and its arrays are views of the fetched bytes.
        """
        if size is not None and size < 1:
            raise InvalidInputError(f"a batch has at least one row, not {size}")
        view = self._pinned()
        if size is None and isinstance(view._rows, range) and view._rows.step == 1:
            return view._reader.page_batches(view._columns, view._rows.start, view._rows.stop)
        found = view._reader.batches(view._columns, view._groups(size or 1024))
        return (as_batch(columns) for columns in found)

    def to_numpy(self) -> dict[str, Values]:
        """All rows as one batch."""
        view = self._pinned()
        return as_batch(view._reader.columns(view._columns, [view._positions(slice(None))])[0])

    def to_arrow(self) -> pa.Table:
        """All rows as an Arrow table; media stay encoded."""
        view = self._pinned()
        parts = [view._reader.arrow(view._columns, rows) for rows in view._groups(_ARROW_ROWS)]
        return pa.concat_tables(parts or [view._reader.arrow(view._columns, np.zeros(0, np.int64))])

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self):,} rows: {', '.join(map(str, self.schema))})"

    def _positions(self, key: Any) -> Int64Array:
        """Positions in the table of the rows that a key selects."""
        if isinstance(key, slice) and isinstance(self._rows, range):
            chosen = self._rows[key]
            return np.arange(chosen.start, chosen.stop, chosen.step, dtype=np.int64)
        if isinstance(key, pc.Expression):
            matches = find_positions(self._reader, key)
            if isinstance(self._rows, range) and self._rows == range(self._reader.snapshot.live):
                return matches
            rows = np.asarray(self._rows, np.int64)
            return rows[np.isin(rows, matches)]
        return take_positions(self._rows, resolve_positions(key, len(self)))

    def _groups(self, size: int) -> Iterator[Int64Array]:
        for start in range(0, len(self), size):
            yield np.asarray(self._rows[start : start + size], np.int64)


class ColumnView:
    """One column of a view."""

    def __init__(self, view: View, name: str) -> None:
        if name != ROW_ID:
            view.schema[name]
        self._view, self.name = view, name

    def __len__(self) -> int:
        return len(self._view)

    def __getitem__(self, key: Any) -> Any:
        """One value by position; or many by a slice, a list or a mask, as an array if they have one shape.

        Missing values of a nullable column are masked in the array.
        """
        view = self._view._pinned()
        column = view._reader.columns([self.name], [view._positions(key)])[0][self.name]
        if is_position(key):
            return column.item(0)
        if column.mask is not None and not column.mask.all():
            return np.ma.masked_array(column.values, np.broadcast_to(
                ~column.mask.reshape(-1, *[1] * (np.ndim(column.values) - 1)), np.shape(column.values)))  # fmt: skip
        return column.values

    def open(self, row: int) -> Any:
        """The bytes of one value as a seekable binary file; only the ranges that are read are fetched.

        All that is read of a stored value is verified. A linked value that has a checksum is verified by the read that
        completes it from its beginning, which raises `SourceChangedError` if it does not match: bytes returned before
        that, and ranges read on their own, are checked by the object's etag only.
        """
        view = self._view._pinned()
        return view._reader.open(view.schema[self.name], int(view._positions(row)[0]))

    def __repr__(self) -> str:
        what = self.name if self.name == ROW_ID else str(self._view.schema[self.name])
        return f"ColumnView({what}, {len(self):,} rows)"
