"""Rewrite a question's syntax tree to one that the engine can answer over scans."""

from penstock.query.sql.rewrite._from import scan_name
from penstock.query.sql.rewrite._functions import SCORES, argument_value
from penstock.query.sql.rewrite._queries import Queries, Rewritten
from penstock.query.sql.rewrite._question import MakeScores, Question, make_scores
from penstock.query.sql.rewrite._scope import Output

__all__ = [
    "SCORES",
    "MakeScores",
    "Output",
    "Queries",
    "Question",
    "Rewritten",
    "argument_value",
    "make_scores",
    "scan_name",
]
