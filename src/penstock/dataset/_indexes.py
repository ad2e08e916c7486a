"""The search indexes of a dataset: create, extend, list and drop."""

from collections.abc import Callable
from typing import Any

from penstock.query import IndexInfo, create_index, drop_index, list_indexes
from penstock.table import Session

IndexProgress = Callable[[int, int], None]
"""Called with the rows done and the rows in all."""


class Indexes:
    """Search indexes; they speed up questions, and never change an answer but for the recall of vectors."""

    _session: Session

    def _commit_change(self, change: Callable[[Session], object], message: str) -> str:
        raise NotImplementedError

    def create_index(
        self,
        column: str,
        kind: str,
        *,
        name: str | None = None,
        message: str = "",
        progress: IndexProgress | None = None,
        **options: Any,
    ) -> str:
        """Commit an index of a column, and return the new version; an index that exists gets the rows it lacks.

        If it lacks none, nothing is written, and the version stays.

        kind: "vector" (options `metric`: "cosine", "l2" or "dot"; `lists`), "text" (option `stem`: a language such as
            "english") or "scalar" (numbers, labels, bools, times, text).
        name: by default the column and the kind, such as `emb_vector`.

        It is stored with the table, in bounded memory; interrupted, the same call continues. Rows that are added or
        changed later are searched exactly until the call is repeated. Raises `InvalidInputError` if the kind or an
        option does not fit the column, or if there are uncommitted changes.
        """

        def change(session: Session) -> None:
            create_index(session, column, kind, name, options, progress or (lambda _done, _rows: None))

        return self._commit_change(change, message or f"index {column} ({kind})")

    def drop_index(self, name: str, *, message: str = "") -> str:
        """Commit a version without an index, and return it. Raises `NotFoundError` if there is none of this name."""
        return self._commit_change(lambda session: drop_index(session, name), message or f"drop index {name}")

    def indexes(self) -> list[IndexInfo]:
        """The indexes of this version."""
        return list_indexes(self._session.reader)
