"""The scores of SQL's functions."""

from typing import Any

from penstock.query.scan import Relation
from penstock.query.search import Scores, TextScores, VectorScores

_METRICS = {"cosine_similarity": "cosine", "dot": "dot", "l2_distance": "l2"}


def make_scores(relation: Relation, function: str, column: str, argument: Any) -> Scores:
    """The scores of a relation's rows by a function; raises `InvalidInputError` for an argument that does not fit."""
    field = relation.field(column)
    if function == "bm25":
        return TextScores(relation.reader, field, argument)
    return VectorScores(relation.reader, field, argument, _METRICS[function])
