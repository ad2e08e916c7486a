"""Scores of rows: vector similarity and text relevance, exact or by an index."""

from penstock.query.search._scores import Ranked, Scores
from penstock.query.search._text import TextScores

__all__ = ["Ranked", "Scores", "TextScores"]
