"""Rows and columns of a table at one version."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np
import pyarrow.compute as pc

from penstock.dataset._epoch_view import EpochChoices
from penstock.dataset._questions import (
    MEMORY_LIMIT,
    TIMEOUT_S,
    ask,
    filter_rows,
    limit_rows,
    order_rows,
    query_limits,
    sample_rows,
)
from penstock.dataset._reading import ColumnView, Reading
from penstock.dataset._samples import TOLERANCE_S, Offsets, OffsetsS, SampleView, WindowOptions, pack_view, window_view
from penstock.dataset._search import SearchQuestion, Vector, search_rows
from penstock.dataset._splits import split_rows
from penstock.dataset._weights import Weights
from penstock.engine import Source
from penstock.errors import InvalidInputError
from penstock.plan import Splits
from penstock.query import Fuse, Params, Relation, Udf
from penstock.table import ROW_ID, Int64Array, find_row_ids, is_position, without_quarantined


class View(Reading, EpochChoices):
    """Some rows and columns of a table at one version; reading fetches only those."""

    _rows: range | Int64Array

    @staticmethod
    def _of(relation: Relation, question: str = "") -> "View":
        """A view of some rows and columns, which answers a question."""
        view = View(relation.reader, relation.columns, relation.rows)
        view._question = question
        return view

    def _pinned(self) -> "View":
        """This view, which no other thread can change between two steps of a read."""
        return self

    def _source(self, weights: Weights | None = None) -> Source:
        rows = without_quarantined(self._reader, self._rows)
        if weights is not None and rows is not self._rows:
            weights = weights.only(np.isin(self._relation().positions, rows))
        draw = None if weights is None else weights.draw(self._reader, rows)
        return Source(self._reader, self._columns, rows, draw)

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

    def query(
        self,
        sql: str,
        params: Params = None,
        *,
        functions: Iterable[Udf] = (),
        timeout_s: float | None = TIMEOUT_S,
        memory_limit: int | str = MEMORY_LIMIT,
        exact: bool = False,
    ) -> "View":
        """A view of the answer to one SELECT, in which this view is the table `ds`.

        Rows of this view that the SELECT chooses, each at most once, stay where they are: the view streams them, with
        computed columns in memory. Any other result, such as that of GROUP BY, is a table in memory.

        params: values for `?` in order, or for `$name` by name.
        functions: functions made with `penstock.udf` that the SQL may call.
        timeout_s: seconds after which the query ends with an error; None for no limit.
        memory_limit: memory of the query engine, and of values in a result that is a table in memory.
        exact: whether a search uses no approximate index.

        Raises `NotFoundError` for an unknown column or function, and `InvalidInputError` for SQL that is not one valid
        SELECT, and for a query that exceeds a limit.
        """
        limits = query_limits(timeout_s, memory_limit)
        relations = {"ds": self._relation()}
        return self._of(ask(sql, relations, params, functions=functions, limits=limits, exact=exact), sql)

    def where(self, condition: str, params: Params = None) -> "View":
        """A view of the rows that meet a condition in SQL, such as `"label = 'grasp' AND meta.camera = 'left'"`.

        It has the columns and the order of this view; the condition may use every column of the table. Raises as
        `query` does.
        """
        return self._of(filter_rows(self._relation(), condition, params), condition)

    def order_by(self, *terms: str, params: Params = None) -> "View":
        """A view of the same rows in the order of SQL terms, such as `"reward DESC"` or `"label", "time DESC"`.

        Rows that are equal in all terms keep their order. The terms may use every column of the table.
        Raises as `query` does.
        """
        if not terms:
            raise InvalidInputError('order_by needs at least one term, such as "reward DESC"')
        listed = ", ".join(terms)
        return self._of(order_rows(self._relation(), listed, params), f"ORDER BY {listed}")

    def limit(self, count: int) -> "View":
        """A view of the first `count` rows, or of all if there are fewer."""
        return self._of(limit_rows(self._relation(), count))

    def sample(self, count: int, seed: int = 0) -> "View":
        """A view of `count` rows chosen at random, or of all if there are fewer; in the order of this view.

        The choice depends on the seed and the number of rows alone, and is the same on every machine.
        """
        return self._of(sample_rows(self._relation(), count, seed))

    def search(
        self,
        *,
        vector: Vector | None = None,
        text: str | None = None,
        like: int | None = None,
        where: str | pc.Expression | None = None,
        params: Params = None,
        k: int = 10,
        fuse: Fuse = "rrf",
        vector_column: str | None = None,
        text_column: str | None = None,
        metric: str | None = None,
        exact: bool = False,
        score: str = "score",
    ) -> "View":
        """A view of the best `k` rows, the best first, with a column of their scores.

        vector: find rows whose vectors are nearest to this one.
        text: find rows that have these words, by BM25; "words in quotes" are a phrase.
        like: instead of `vector`, the row id whose own vector to search by; that row is left out of the answer.
        where: search only rows that meet a condition, in SQL as in `where` (with `params`), or a pyarrow expression.
        fuse: how a search by vector and text ranks rows. "rrf" (reciprocal rank fusion) adds `1 / (60 + rank)` for each
            of the two rankings, of which it reads the first `max(100, 4 k)` rows. Weights such as
            `{"vector": 0.7, "text": 0.3}` add the weighted scores as SQL does; distances count negatively, and a row
            needs both values.
        vector_column, text_column: the columns to search; by default the only one of its kind, or the only one of them
            that has an index.
        metric: "cosine", "l2" or "dot"; by default that of the column's index, or cosine.
        exact: use no approximate index.
        score: the name of the column of scores; for "l2" these are distances.

        Rows without a match are left out, so there may be fewer than `k`. Raises `NotFoundError` for an unknown column
        or row id, and `InvalidInputError` for a search that does not fit the table, or if it has a column `score`.
        """
        relation = self._relation()
        question = SearchQuestion(relation.reader, vector, text, like, vector_column, text_column, metric)
        found = search_rows(relation, question, where=where, params=params, k=k, fuse=fuse, exact=exact, score=score)
        return self._of(found, question.describe(where))
