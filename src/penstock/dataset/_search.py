"""Search a view by vectors and words; the answer is a view of the best rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError, NotFoundError
from penstock.format import Field
from penstock.format.kinds import Embedding, Tensor, Text
from penstock.query import (
    Fuse,
    Params,
    Relation,
    Scores,
    TextScores,
    VectorScores,
    open_index,
    search_top,
)
from penstock.table import Int64Array, Reader, with_computed

if TYPE_CHECKING:
    from penstock.dataset._view import View

_METRIC = "cosine"

Vector = Sequence[float] | npt.NDArray[Any]


class Search:
    """What can be searched in a view."""

    def _relation(self) -> Relation:
        raise NotImplementedError

    @staticmethod
    def _of(relation: Relation, question: str = "") -> "View":
        raise NotImplementedError

    def where(self, condition: str, params: Params = None) -> "View":
        raise NotImplementedError

    def __getitem__(self, key: Any) -> Any:
        raise NotImplementedError

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
        if k < 1:
            raise InvalidInputError(f"a search gives at least one row, not k={k}")
        relation = self._relation()
        if score in relation.reader.snapshot.schema or score in relation.columns:
            raise InvalidInputError(f"the table has a column {score!r} already; name the scores with score=…")
        question = _Question(relation.reader, vector, text, like, vector_column, text_column, metric)
        scores, without = question.scores(), question.own_position()
        found = search_top(
            scores, k, allowed=self._allowed(relation, where, params), exact=exact, fuse=fuse, without=without
        )
        column = pa.table({score: pa.array(found.scores, pa.float32())})
        reader = with_computed(relation.reader, found.positions, column)
        return self._of(Relation(reader, (*relation.columns, score), found.positions), question.describe(where))

    def _allowed(self, relation: Relation, where: str | pc.Expression | None, params: Params) -> Int64Array | None:
        """Ascending positions of the rows to search; None for all of the table."""
        if isinstance(where, str):
            return self._of(relation).where(where, params)._relation().distinct
        if params is not None:
            raise InvalidInputError("params are for a condition in SQL, and there is none")
        if where is not None:
            found: Relation = self._of(relation)[where]._relation()
            return found.distinct
        everything = isinstance(relation.rows, range) and relation.rows == range(relation.reader.snapshot.live)
        return None if everything else relation.distinct


@dataclass(frozen=True, eq=False)
class _Question:
    """What to search by."""

    reader: Reader
    vector: Vector | None
    text: str | None
    like: int | None
    vector_column: str | None
    text_column: str | None
    metric: str | None

    def __post_init__(self) -> None:
        if self.vector is not None and self.like is not None:
            raise InvalidInputError("give either a vector or the row to search like, not both")
        if not self._has_vector and self.text is None:
            raise InvalidInputError("there is nothing to search by; give vector=, text= or like=")
        for given, name, value in (
            (self._has_vector, "vector_column", self.vector_column),
            (self._has_vector, "metric", self.metric),
            (self.text is not None, "text_column", self.text_column),
        ):
            if value is not None and not given:
                raise InvalidInputError(f"{name} is given, but there is no {name.partition('_')[0]} to search by")

    @property
    def _has_vector(self) -> bool:
        return self.vector is not None or self.like is not None

    def scores(self) -> dict[str, Scores]:
        """The scores that are asked for, by name."""
        found: dict[str, Scores] = {}
        if self._has_vector:
            field = _choose(self.reader, "vector", self.vector_column, _vector_fields(self.reader))
            index = open_index(self.reader, field, "vector") if self.metric is None else None
            metric = _METRIC if index is None else str(index.options["metric"])
            found["vector"] = VectorScores(self.reader, field, self._query(field), self.metric or metric)
        if self.text is not None:
            field = _choose(self.reader, "text", self.text_column, _text_fields(self.reader))
            found["text"] = TextScores(self.reader, field, self.text)
        return found

    def own_position(self) -> tuple[int, ...]:
        """The position of the row to search like."""
        if self.like is None:
            return ()
        position = int(self.reader.positions_of(np.array([self.like], np.int64))[0])
        if position < 0:
            raise NotFoundError(f"there is no row with id {self.like} in this version")
        return (position,)

    def _query(self, field: Field) -> Vector:
        if self.vector is not None:
            return self.vector
        own = np.array(self.own_position(), np.int64)
        value: Vector | None = self.reader.columns([field.name], [own])[0][field.name].item(0)
        if value is None:
            raise InvalidInputError(f"row {self.like} has no vector in column {field.name!r} to search by")
        return value

    def describe(self, where: object) -> str:
        """The search in words, for a saved view."""
        parts = [
            "vector" if self.vector is not None else "",
            "" if self.like is None else f"like row {self.like}",
            "" if self.text is None else f"text {self.text!r}",
        ]
        condition = "" if where is None else f" where {where}"
        return f"search by {' and '.join(filter(None, parts))}{condition}"


def _vector_fields(reader: Reader) -> list[Field]:
    schema = reader.snapshot.schema
    named = [field for field in schema if isinstance(field.kind, Embedding)]
    return named or [
        field
        for field in schema
        if type(field.kind) is Tensor and len(field.kind.shape) == 1 and field.kind.shape[0] and _is_float(field.kind)
    ]


def _is_float(kind: Tensor) -> bool:
    return "float" in kind.dtype


def _text_fields(reader: Reader) -> list[Field]:
    return [field for field in reader.snapshot.schema if type(field.kind) is Text]


def _choose(reader: Reader, what: str, name: str | None, fields: Sequence[Field]) -> Field:
    """The column of a name, or the only one there is."""
    if name is not None:
        return reader.snapshot.schema[name]
    indexed = [field for field in fields if open_index(reader, field, what) is not None]
    for some in (indexed, fields):
        if len(some) == 1:
            return some[0]
    if not fields:
        raise InvalidInputError(f"the table has no column of {what}s to search in")
    names = ", ".join(field.name for field in fields)
    raise InvalidInputError(f"the table has several columns of {what}s: {names}; choose one with {what}_column=…")
