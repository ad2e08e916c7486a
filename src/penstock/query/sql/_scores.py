"""The scores of SQL's functions of vectors and texts."""

from typing import Any

from penstock.query.scan import Relation
from penstock.query.search import Scores, TextScores, VectorScores

_METRICS = {"cosine_similarity": "cosine", "l2_distance": "l2", "dot": "dot"}


def make_scores(relation: Relation, function: str, column: str, argument: Any) -> Scores:
    """The scores of a column's values against an argument; raises `InvalidInputError` if they do not fit."""
    field = relation.field(column)
    if function in _METRICS:
        return VectorScores(relation.reader, field, argument, _METRICS[function])
    return TextScores(relation.reader, field, argument)
