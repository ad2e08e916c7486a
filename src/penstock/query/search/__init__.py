"""Scores of rows: vector similarity and text relevance, exact or by an index."""

from penstock.query.search._fuse import RANK_CONSTANT, depth_of, top_combined, top_ranks
from penstock.query.search._scores import Ranked, Scores
from penstock.query.search._text import TextScores
from penstock.query.search._vectors import VectorScores

__all__ = ["RANK_CONSTANT", "Ranked", "Scores", "TextScores", "VectorScores", "depth_of", "top_combined", "top_ranks"]
