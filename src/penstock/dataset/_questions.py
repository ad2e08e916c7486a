"""Questions to a view: SQL, filters, order, samples, data frames, and saving the answer."""

from collections.abc import Iterable
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.dataset._answers import ask
from penstock.dataset._options import as_bytes
from penstock.dataset._saved_views import save_view
from penstock.errors import InvalidInputError
from penstock.plan import derive_key, random_u64
from penstock.query import (
    Condition,
    Explanation,
    Order,
    Params,
    QueryLimits,
    Relation,
    TableScan,
    Udf,
    as_dataset,
    explain_sql,
    run_sql,
)
from penstock.table import take_positions

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow.dataset

    from penstock.dataset._view import View

TIMEOUT_S = 600.0
MEMORY_LIMIT = "4GiB"
_SAMPLE = 0x73616D706C65


class Questions:
    """What can be asked of a view; each answer is a view again."""

    _question: str

    def _pinned(self) -> "View":
        raise NotImplementedError

    def _relation(self) -> Relation:
        """The rows and columns of this moment."""
        view = self._pinned()
        return Relation(view._reader, view._columns, view._rows)

    @staticmethod
    def _of(relation: Relation, question: str = "") -> "View":
        """A view of some rows and columns, which answers a question."""
        raise NotImplementedError

    def query(
        self,
        sql: str,
        params: Params = None,
        *,
        functions: Iterable[Udf] = (),
        timeout_s: float | None = TIMEOUT_S,
        memory_limit: int | str = MEMORY_LIMIT,
        exact: bool = False,
    ) -> "View":
        """A view of the answer to one SELECT, in which this view is the table `ds`.

        Rows of this view that the SELECT chooses, each at most once, stay where they are: the view streams them, with
        computed columns in memory. Any other result, such as that of GROUP BY, is a table in memory.

        params: values for `?` in order, or for `$name` by name.
        functions: functions made with `penstock.udf` that the SQL may call.
        timeout_s: seconds after which the query ends with an error; None for no limit.
        memory_limit: memory of the query engine, and of values in a result that is a table in memory.
        exact: whether a search uses no approximate index.

        Raises `NotFoundError` for an unknown column or function, and `InvalidInputError` for SQL that is not one valid
        SELECT, and for a query that exceeds a limit.
        """
        limits = query_limits(timeout_s, memory_limit)
        relations = {"ds": self._relation()}
        return self._of(ask(sql, relations, params, functions=functions, limits=limits, exact=exact), sql)

    def where(self, condition: str, params: Params = None) -> "View":
        """A view of the rows that meet a condition in SQL, such as `"label = 'grasp' AND meta.camera = 'left'"`.

        It has the columns and the order of this view; the condition may use every column of the table. Raises as
        `query` does.
        """
        relation = self._relation()
        result = run_sql(Condition(condition), {"ds": _with_all_columns(relation)}, params)
        if result.rows is None:
            raise InvalidInputError(f"{condition!r} is not a condition on single rows; use query() for a whole SELECT")
        return self._of(_chosen(relation, np.sort(result.rows)), condition)

    def order_by(self, *terms: str, params: Params = None) -> "View":
        """A view of the same rows in the order of SQL terms, such as `"reward DESC"` or `"label", "time DESC"`.

        Rows that are equal in all terms keep their order. The terms may use every column of the table.
        Raises as `query` does.
        """
        if not terms:
            raise InvalidInputError('order_by needs at least one term, such as "reward DESC"')
        relation = self._relation()
        result = run_sql(Order(", ".join(terms)), {"ds": _with_all_columns(relation)}, params)
        if result.rows is None or len(result.rows) != len(relation.rows):
            raise InvalidInputError(f"{', '.join(terms)!r} is not an order of rows; use query() for a whole SELECT")
        return self._of(_chosen(relation, result.rows), f"ORDER BY {', '.join(terms)}")

    def limit(self, count: int) -> "View":
        """A view of the first `count` rows, or of all if there are fewer."""
        relation = self._relation()
        return self._of(Relation(relation.reader, relation.columns, relation.rows[: _row_count(count)]))

    def sample(self, count: int, seed: int = 0) -> "View":
        """A view of `count` rows chosen at random, or of all if there are fewer; in the order of this view.

        The choice depends on the seed and the number of rows alone, and is the same on every machine.
        """
        relation = self._relation()
        total, count = len(relation.rows), _row_count(count)
        numbers = random_u64(derive_key(_SAMPLE, seed), np.arange(total))
        chosen = np.sort(np.argsort(numbers, kind="stable")[:count]) if count < total else np.arange(total)
        return self._of(_chosen(relation, chosen))

    def explain(
        self, sql: str, params: Params = None, *, functions: Iterable[Udf] = (), analyze: bool = False
    ) -> Explanation:
        """What `query` would read: fragments and pages that statistics leave, indexes, bytes; print it.

        It reads no rows. With `analyze` it answers the query, and counts what was read. Raises as `query` does.
        """
        relations = {"ds": self._relation()}
        return explain_sql(sql, relations, params, functions=functions, analyze=analyze)

    def to_pandas(self) -> "pandas.DataFrame":
        """All rows as a pandas data frame; media stay encoded, and tensors are arrays. Needs the extra `pandas`."""
        _imported("pandas", "pandas")
        return self.to_arrow().to_pandas()  # type: ignore[attr-defined, no-any-return]

    def to_polars(self) -> "polars.LazyFrame":
        """A lazy frame of polars, which reads only the columns and pages that its `collect()` needs.

        Media stay encoded. Needs the extra `polars`.
        """
        frame: polars.LazyFrame = _imported("polars", "Polars").scan_pyarrow_dataset(self.to_arrow_dataset())
        return frame

    def to_arrow_dataset(self) -> "pyarrow.dataset.Dataset":
        """A `pyarrow.dataset.Dataset` for engines that take one, such as DataFusion and DuckDB.

        They push columns and filters to it, which it applies exactly; media stay encoded. It can be pickled. `sort_by`
        and the joins read all rows into memory; its schema cannot be replaced, and it cannot be part of a union.
        """
        return as_dataset(TableScan(self._relation()))

    def save_view(self, name: str, description: str | None = None) -> None:
        """Save this view with its table under a name; `penstock.load(…, view=name)` opens it on any machine.

        It is bound to its version, which vacuum keeps for it. Row ids and computed columns are stored, other columns
        are not copied. The description is by default the SQL that the view came from. Raises `AlreadyExistsError` if
        there is a view of this name, and `InvalidInputError` for a view of uncommitted changes or of a result that is
        not rows of one table.
        """
        save_view(self._relation(), name, self._question if description is None else description)


def query_limits(timeout_s: float | None, memory_limit: int | str) -> QueryLimits:
    """Limits of a question from a caller's options; raises `InvalidInputError`."""
    size = as_bytes("memory_limit", memory_limit)
    return QueryLimits(time_s=timeout_s, memory_bytes=QueryLimits.memory_bytes if size is None else size)


def _row_count(count: int) -> int:
    if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
        raise InvalidInputError(f"a number of rows is a whole number from 0 on, not {count!r}")
    return int(count)


def _with_all_columns(relation: Relation) -> Relation:
    return Relation(relation.reader, tuple(relation.reader.snapshot.schema.names), relation.rows)


def _chosen(relation: Relation, indices: Any) -> Relation:
    return Relation(relation.reader, relation.columns, take_positions(relation.rows, indices))


def _imported(module: str, product: str) -> ModuleType:
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise InvalidInputError(f"{product} is not installed: pip install 'penstock[{module}]'") from error
