"""Functions that SQL has here beside those of the engine: scores, shapes, names of classes."""

import hashlib
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import PenstockError
from penstock.format import Field, value_kind
from penstock.format.kinds import Image, Label, Tensor, Text
from penstock.query.scan import HIDDEN, Derived, Relation
from penstock.query.search import Scores
from penstock.query.sql._ast import Node, arguments, call, column, constant
from penstock.query.sql.rewrite._names import Resolved, refer, resolve
from penstock.query.sql.rewrite._question import Question
from penstock.query.sql.rewrite._scope import Origin, Scope
from penstock.table import Int64Array

VECTOR_SCORES = ("cosine_similarity", "l2_distance", "dot")
SCORES = (*VECTOR_SCORES, "bm25")
OWN_FUNCTIONS = (*SCORES, "shape", "label_name")


def rewrite_own(question: Question, scope: Scope, node: Node) -> Node:
    """A call of one of `OWN_FUNCTIONS` as an expression of the engine."""
    name, given = node["function_name"].lower(), arguments(node)
    wanted = 2 if name in SCORES else 1
    if len(given) != wanted:
        raise question.errors.invalid(f"{name} takes {wanted} argument{'s' * (wanted > 1)}, not {len(given)}", node)
    found = _column(question, scope, name, given[0])
    origin = found.output.origin
    assert origin is not None
    if name == "label_name":
        return _label_name(question, found, given[0])
    if name == "shape":
        return _hidden(question, found, _shape_column(question, origin, given[0]), node)
    return _hidden(question, found, score_column(question, origin, name, given), node)


def score_column(question: Question, origin: Origin, name: str, given: list[Node]) -> str:
    """The derived column of a score; equal calls share one."""
    relation, field = origin.base.name, origin.field
    _check_score(question, name, field, given[0])
    argument = argument_value(question, name, given[1])
    if name in VECTOR_SCORES:
        argument = _vector(question, name, field, argument, given[1])
    elif not isinstance(argument, str):
        raise question.errors.invalid(f"bm25 takes the words to look for as a text, not {argument!r}", given[1])
    key = argument.tobytes() if isinstance(argument, np.ndarray) else argument.encode()
    column_name = f"{HIDDEN}{name}.{origin.column}.{hashlib.blake2b(key, digest_size=8).hexdigest()}"
    if (relation, column_name) not in question.scores:
        try:
            scores = question.make_scores(origin.base.relation, name, origin.column, argument)
        except PenstockError as error:
            raise question.errors.invalid(f"{name}({origin.column}, …): {error}", given[0]) from error
        question.scores[relation, column_name] = scores
        derived = Derived(pa.float32(), (origin.column,), _score_values(scores))
        question.derived.setdefault(relation, {})[column_name] = derived
    return column_name


def _score_values(scores: Scores) -> Any:
    def compute(positions: Int64Array) -> pa.Array:
        values = scores.at(positions)
        return pa.array(values, pa.float32(), mask=np.isnan(values))

    return compute


def _check_score(question: Question, name: str, field: Field | None, node: Node) -> None:
    kind = None if field is None else value_kind(field.kind)
    if name == "bm25" and not isinstance(kind, Text):
        raise question.errors.invalid(f"bm25 needs a column of text; {_described(field)}", node)
    if name in VECTOR_SCORES and not (isinstance(kind, Tensor) and len(kind.shape) == 1 and kind.shape[0]):
        raise question.errors.invalid(f"{name} needs a column of vectors of one length; {_described(field)}", node)


def _described(field: Field | None) -> str:
    return "this is the row id" if field is None else f"{field.name} is {field.kind}"


def _vector(question: Question, name: str, field: Field | None, argument: Any, node: Node) -> Any:
    assert field is not None
    kind = field.kind
    assert isinstance(kind, Tensor)
    try:
        vector = np.asarray(argument, np.float32).reshape(-1)
    except (TypeError, ValueError):
        raise question.errors.invalid(f"{name} takes a vector of numbers, not {argument!r}", node) from None
    if len(vector) != kind.shape[0]:
        raise question.errors.invalid(
            f"{name}: {field.name} has vectors of length {kind.shape[0]}, and this one has {len(vector)}", node
        )
    if not np.isfinite(vector).all():
        raise question.errors.invalid(f"{name}: the vector has an element that is not a finite number", node)
    return vector


def argument_value(question: Question, name: str, node: Node) -> Any:
    """The value of a constant argument: a literal, a list of literals, or a parameter."""
    if node["class"] == "PARAMETER":
        return question.param(node)
    if node["class"] == "CAST":
        return argument_value(question, name, node["child"])
    if node["class"] == "CONSTANT" and node["literal"]["kind"] in ("INTEGER", "NUMERIC", "STRING"):
        text = node["literal"]["text"]
        return text if node["literal"]["kind"] == "STRING" else float(text)
    if node["class"] == "FUNCTION" and node["function_name"] in ("list_value", "array_value"):
        return [argument_value(question, name, each) for each in arguments(node)]
    if node["class"] == "FUNCTION" and node["function_name"] == "-" and len(arguments(node)) == 1:
        return -argument_value(question, name, arguments(node)[0])
    raise question.errors.invalid(f"the second argument of {name} must be a constant or a parameter", node)


def _column(question: Question, scope: Scope, name: str, node: Node) -> Resolved:
    if node["class"] != "COLUMN_REF":
        raise question.errors.invalid(f"the first argument of {name} must be a column", node)
    found = resolve(question, scope, node)
    if not isinstance(found, Resolved) or found.output.origin is None or found.path:
        raise question.errors.invalid(f"the first argument of {name} must be a column of a table", node)
    return found


def _hidden(question: Question, found: Resolved, hidden: str, node: Node) -> Node:
    """A derived column of the row that a column belongs to."""
    origin = found.output.origin
    assert origin is not None
    name = found.source.expose(origin.base, hidden) if found.output.same_row else None
    if name is None:
        raise question.errors.invalid(
            f"{node['function_name']} needs a column of a table's own rows; call it in the inner query", node
        )
    return column(found.source.alias, name, like=node)


def _label_name(question: Question, found: Resolved, node: Node) -> Node:
    origin = found.output.origin
    field = None if origin is None else origin.field
    if field is None or not isinstance(field.kind, Label) or not field.kind.names:
        raise question.errors.invalid(f"label_name needs a label column with names; {_described(field)}", node)
    names = call("list_value", *(constant(name) for name in field.kind.names))
    return call("list_extract", names, call("+", refer(question, found, node), constant(1)), like=node)


def _shape_column(question: Question, origin: Origin, node: Node) -> str:
    field = origin.field
    kind = None if field is None else value_kind(field.kind)
    if field is None or not isinstance(kind, Tensor | Image):
        raise question.errors.invalid(f"shape needs a column of tensors or images; {_described(field)}", node)
    name = f"{HIDDEN}shape.{origin.column}"
    compute = _shapes(origin.base.relation, field)
    question.derived.setdefault(origin.base.name, {})[name] = Derived(pa.list_(pa.int64()), (origin.column,), compute)
    return name


def _shapes(relation: Relation, field: Field) -> Any:
    def compute(positions: Int64Array) -> pa.Array:
        kind = value_kind(field.kind)
        shape = getattr(kind, "shape", None)
        if shape is not None and None not in shape and not field.nullable and isinstance(kind, Tensor):
            return pa.array([list(shape)] * len(positions), pa.list_(pa.int64()))
        [columns] = relation.reader.columns([field.name], [positions])
        values = columns[field.name]
        found = [values.item(index) for index in range(len(positions))]
        return pa.array([None if each is None else list(np.shape(each)) for each in found], pa.list_(pa.int64()))

    return compute
