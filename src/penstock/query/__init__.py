"""Questions about a table: SQL, vector similarity and text ranking, answered as a selection of rows."""

from penstock.query.search import Ranked, Scores

__all__ = ["Ranked", "Scores"]
