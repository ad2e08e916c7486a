"""What a name in SQL can mean: relations, their uses in FROM, and the columns that are visible at a place."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from penstock.format import Field
from penstock.query.scan import HIDDEN, Relation, is_heavy
from penstock.query.sql._ast import Node, column, named
from penstock.table import ROW_ID
from penstock.types import cached_property


@dataclass(frozen=True, eq=False)
class Base:
    """One use of a relation in FROM."""

    name: str
    relation: Relation


@dataclass(frozen=True)
class Origin:
    """The table column that a column of SQL is."""

    base: Base
    column: str

    @property
    def field(self) -> Field | None:
        """None for the row id."""
        return None if self.column == ROW_ID else self.base.relation.field(self.column)

    @property
    def heavy(self) -> bool:
        """Whether values are passed by reference."""
        return self.field is not None and is_heavy(self.field.kind)


@dataclass(frozen=True)
class Output:
    """A column of a query or of an item of FROM."""

    name: str
    origin: Origin | None = None
    """The table column that it is, if it is one."""
    handle: bool = False
    """Whether its values in SQL are handles."""
    same_row: bool = True
    """Whether its value is that of the row itself, and not of another row, as with `lag`."""


@dataclass(eq=False)
class Query:
    """A rewritten query: its columns, and whose rows its rows are."""

    node: Node
    outputs: list[Output]
    complete: bool
    """Whether `outputs` lists all columns."""
    rows_of: Base | None = None
    """Each row of the query is a row of this."""
    sources: list["Source"] = field(default_factory=list)
    ordered: bool = False
    """Whether it, or the query that it selects from, has an order."""
    can_expose: bool = False
    """Whether a column can be added: not to a query that groups or merges rows."""
    _exposed: dict[tuple[Base, str], str] = field(default_factory=dict)

    @cached_property
    def handles(self) -> list[bool]:
        """Whether each column holds handles; empty if not all columns are known."""
        return [output.handle for output in self.outputs] if self.complete else []

    @cached_property
    def by_name(self) -> dict[str, list[Output]]:
        """The columns by their name in lower case."""
        found: dict[str, list[Output]] = {}
        for output in self.outputs:
            found.setdefault(output.name.lower(), []).append(output)
        return found

    def expose(self, base: Base, hidden: str) -> str | None:
        """The name of the column that has a hidden column of a base; it is added if need be. None if it cannot be."""
        if not self.can_expose:
            return None
        if (base, hidden) not in self._exposed:
            for source in self.sources:
                inner = source.expose(base, hidden)
                if inner is not None:
                    name = f"{HIDDEN}{len(self._exposed)}{hidden}"
                    self.node["select_list"].append(named(column(source.alias, inner), name))
                    self._exposed[base, hidden] = name
                    break
            else:
                return None
        return self._exposed[base, hidden]


@dataclass(eq=False)
class Source:
    """An item of FROM."""

    alias: str
    outputs: list[Output]
    complete: bool = True
    base: Base | None = None
    """The relation, if the item is one."""
    query: Query | None = None
    """The query, if the item is one."""
    merged: frozenset[str] = frozenset()
    """Lower-case names of columns that a join merged with those of an item to the left."""

    @cached_property
    def _by_name(self) -> dict[str, Output]:
        """The first column of each name in lower case."""
        return {output.name.lower(): output for output in reversed(self.outputs)}

    @property
    def rows_of(self) -> Base | None:
        """The relation whose rows these are."""
        return self.base if self.query is None else self.query.rows_of

    def expose(self, base: Base, hidden: str) -> str | None:
        """The name of a hidden column of a relation in this item; None if the item does not have it."""
        if self.query is not None:
            return self.query.expose(base, hidden)
        return hidden if self.base is base else None

    def find(self, name: str) -> Output | None:
        """A column by its name in any case; the row id of a relation can be named."""
        lower = name.lower()
        if lower in self._by_name:
            return self._by_name[lower]
        if self.base is not None and lower == ROW_ID:
            return Output(ROW_ID, Origin(self.base, ROW_ID))
        return None


@dataclass(eq=False)
class Scope:
    """The names that are visible in an expression."""

    sources: list[Source] = field(default_factory=list)
    parent: "Scope | None" = None
    queries: dict[str, "Cte"] = field(default_factory=dict)
    """Queries of WITH by lower-case name."""
    aliases: dict[str, Node] = field(default_factory=dict)
    """Expressions of the select list by lower-case alias."""
    parameters: frozenset[str] = frozenset()
    """Lower-case names of a lambda's parameters."""

    def chain(self) -> Iterator["Scope"]:
        """This scope and those around it."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def cte(self, name: str) -> "Cte | None":
        """A query of WITH."""
        for scope in self.chain():
            if name.lower() in scope.queries:
                return scope.queries[name.lower()]
        return None

    def visible(self) -> Iterator[str]:
        """The names of all columns, for near matches."""
        for scope in self.chain():
            for source in scope.sources:
                yield from (output.name for output in source.outputs)


@dataclass(eq=False)
class Cte:
    """A query of WITH under the names that its columns have outside."""

    outputs: list[Output]
    complete: bool
    query: Query | None
    """None inside of a recursive query's own definition."""
