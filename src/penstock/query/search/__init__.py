"""Scores of rows: vector similarity and text relevance, exact or by an index."""

from penstock.query.search._fuse import Fuse, search_top, top_combined, top_ranks
from penstock.query.search._scores import Ranked, Scores, SearchPlan
from penstock.query.search._text import TextScores
from penstock.query.search._vectors import VectorScores

__all__ = [
    "Fuse",
    "Ranked",
    "Scores",
    "SearchPlan",
    "TextScores",
    "VectorScores",
    "search_top",
    "top_combined",
    "top_ranks",
]
