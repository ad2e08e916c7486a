"""Search rows by vectors and words; the answer is the best of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.dataset._questions import filter_rows
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
from penstock.table import Reader, with_computed

_METRIC = "cosine"

Vector = Sequence[float] | npt.NDArray[Any]


def search_rows(
    relation: Relation,
    question: "SearchQuestion",
    *,
    where: str | pc.Expression | None,
    params: Params,
    k: int,
    fuse: Fuse,
    exact: bool,
    score: str,
) -> Relation:
    """The best rows, the best first, with a column of their scores; see `View.search`."""
    if k < 1:
        raise InvalidInputError(f"a search gives at least one row, not k={k}")
    if score in relation.reader.snapshot.schema or score in relation.columns:
        raise InvalidInputError(f"the table has a column {score!r} already; name the scores with score=…")
    if params is not None and not isinstance(where, str):
        raise InvalidInputError("params are for a condition in SQL, and there is none")
    scores, without = question.scores(), question.own_position()
    searched = relation if where is None else filter_rows(relation, where, params)
    allowed = None if searched.is_whole else searched.distinct
    found = search_top(scores, k, allowed=allowed, exact=exact, fuse=fuse, without=without)
    column = pa.table({score: pa.array(found.scores, pa.float32())})
    reader = with_computed(relation.reader, found.positions, column)
    return Relation(reader, (*relation.columns, score), found.positions)


@dataclass(frozen=True, eq=False)
class SearchQuestion:
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
