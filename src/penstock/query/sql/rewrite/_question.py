"""One question while it is rewritten: its relations, parameters and functions, and what its scans must offer."""

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeAlias

from penstock.format.kinds import Label
from penstock.query.scan import Derived, Relation
from penstock.query.search import Scores, TextScores, VectorScores
from penstock.query.sql._ast import Node
from penstock.query.sql._errors import SqlErrors
from penstock.query.sql._params import engine_value
from penstock.query.sql._size import MAX_GROWN_NODES
from penstock.query.sql._udf import Udf

MakeScores: TypeAlias = Callable[[Relation, str, str, Any], Scores]
"""Scores of a relation's rows: (relation, function, column, argument)."""

_METRICS = {"cosine_similarity": "cosine", "dot": "dot", "l2_distance": "l2"}
_numbers = count()


def make_scores(relation: Relation, function: str, column: str, argument: Any) -> Scores:
    """The scores of a relation's rows by a function; raises `InvalidInputError` for an argument that does not fit."""
    field = relation.field(column)
    if function == "bm25":
        return TextScores(relation.reader, field, argument)
    return VectorScores(relation.reader, field, argument, _METRICS[function])


@dataclass(eq=False)
class Question:
    """The context of a rewrite, and its results beside the new syntax tree."""

    sql: str
    relations: Mapping[str, Relation]
    params: Mapping[str, Any]
    functions: Mapping[str, Udf]
    """Functions of the user, by lower-case name."""
    make_scores: MakeScores
    errors: SqlErrors
    derived: dict[str, dict[str, Derived]] = field(default_factory=dict)
    """By the name of a relation: columns that its scan computes."""
    scores: dict[tuple[str, str], Scores] = field(default_factory=dict)
    """By the names of a relation and of a derived column."""
    handles: dict[str, set[str]] = field(default_factory=dict)
    """By the name of a relation: columns whose handles are used."""
    loaded: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Functions that load values by handle: relation and column."""
    called: set[str] = field(default_factory=set)
    """Lower-case names of the user's functions that are called."""
    referenced: dict[str, set[str]] = field(default_factory=dict)
    """By the name of a relation: columns whose values are used."""
    number: int = field(default_factory=_numbers.__next__)
    """Part of the names of this question's functions: those of all questions are in one place."""
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    """Part of the names of this question's handles, so that no value of a user is taken for one."""
    used: dict[str, str] = field(default_factory=dict)
    """Names of parameters in the new SQL to their names in the old one."""

    check: Callable[[], None] = lambda: None
    """Raises if the question was ended meanwhile."""
    nodes: int = 0
    """Expressions that were made so far."""
    _classes: dict[int, dict[str, int]] = field(default_factory=dict)

    def grow(self, count: int, at: Node) -> None:
        """Count expressions that a rewrite makes; raises `InvalidInputError` if they are too many."""
        self.nodes += count
        if self.nodes > MAX_GROWN_NODES:
            raise self.errors.invalid(
                f"with *, COLUMNS and aliases replaced by what they stand for, the SQL has more than"
                f" {MAX_GROWN_NODES:,} expressions; select fewer columns",
                at,
            )
        if self.nodes % 256 < count:
            self.check()

    def class_index(self, label: Label, name: str) -> int | None:
        """The index of a class by its name; None if there is none."""
        if id(label) not in self._classes:
            self._classes[id(label)] = {known: index for index, known in enumerate(label.names)}
        return self._classes[id(label)].get(name)

    def relation(self, name: str) -> tuple[str, Relation] | None:
        """A relation by its name in any case."""
        for known, relation in self.relations.items():
            if known.lower() == name.lower():
                return known, relation
        return None

    def param(self, node: Node) -> Any:
        """The value of a parameter; raises `InvalidInputError` if it was not given."""
        name = node["identifier"]
        if name not in self.params:
            what = f"parameter {name}" if name.isdigit() else f"parameter ${name}"
            raise self.errors.invalid(f"there is no value for {what}; {len(self.params)} are given", node)
        return self.params[name]

    def engine_params(self) -> dict[str, Any]:
        """The parameters of the new SQL."""
        return {new: engine_value(old, self.params[old]) for new, old in self.used.items()}

    def check_params(self, named: Sequence[str]) -> None:
        """Raise `InvalidInputError` for a parameter that the SQL does not name."""
        known = set(named)
        for name in self.params:
            if name not in known:
                raise self.errors.invalid(
                    f"{len(self.params)} parameters are given, and the SQL has {len(named)}"
                    if name.isdigit()
                    else f"the SQL has no parameter ${name}"
                )

    def loader(self, relation: str, column: str) -> str:
        """The name of the function that loads values by handle."""
        name = f"~load.{self.number}.{relation}.{column}"
        self.loaded[name] = relation, column
        return name

    def function_name(self, name: str) -> str:
        """The name under which the engine knows a function of the user."""
        return f"~udf.{self.number}.{name}"
