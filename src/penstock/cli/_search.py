"""`penstock search`."""

import json
from typing import Annotated, Any

import typer

from penstock.cli._command import CommandContext, CommandResult, Uri
from penstock.cli._rows import Force, Output, check_output, rows_result
from penstock.cli._versions import AsOf, Branch, Tag, Version, VersionNamer, load_version, newest_commit
from penstock.errors import InvalidInputError
from penstock.table import ROW_ID

_SCORE = "score"


def search(
    context: CommandContext,
    uri: Uri,
    text: Annotated[
        str | None, typer.Option(metavar="WORDS", help='Rows with these words; "in quotes": a phrase.')
    ] = None,
    like: Annotated[int | None, typer.Option(metavar="ROW_ID", help="Rows with vectors like this row's.")] = None,
    vector: Annotated[
        str | None, typer.Option(metavar="JSON", help="Rows with vectors near this list of numbers.")
    ] = None,
    column: Annotated[
        str | None, typer.Option(metavar="NAME", help="The column of text; by default the only one.")
    ] = None,
    vector_column: Annotated[str | None, typer.Option(metavar="NAME", help="The column of vectors, likewise.")] = None,
    where: Annotated[
        str | None, typer.Option(metavar="CONDITION", help="Only rows that meet a condition in SQL.")
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, max=100_000, metavar="ROWS", help="Number of rows.")] = 10,
    weights: Annotated[
        str | None,
        typer.Option(metavar="V,T", help="Weights of vector and text, such as 0.7,0.3; by default ranks are fused."),
    ] = None,
    metric: Annotated[str | None, typer.Option(help="cosine, l2 or dot; by default the index's.")] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Use no approximate index.")] = False,
    columns: Annotated[str | None, typer.Option(metavar="A,B", help="Show only these columns.")] = None,
    output: Output = None,
    force: Force = False,
    version: Version = None,
    tag: Tag = None,
    branch: Branch = None,
    as_of: AsOf = None,
) -> CommandResult:
    """Search a table by words, by the vector of a row, or by both; shows the best rows first."""
    check_output(output, force=force)
    query = None if vector is None else _parse_vector(vector)
    fuse: Any = "rrf" if weights is None else _parse_weights(weights)
    dataset = load_version(context, uri, version=version, tag=tag, branch=branch, as_of=as_of)
    view = dataset.select(dataset.schema.names if columns is None else columns.split(","))
    score = _SCORE
    while score in dataset.schema:
        score += "_"
    document = {"uri": dataset.uri, "version": VersionNamer(dataset)(newest_commit(dataset))}
    context.status = lambda: "searching"
    with dataset.lease():
        found = view.search(
            vector=query, text=text, like=like, where=where, k=k, fuse=fuse, vector_column=vector_column,
            text_column=column, metric=metric, exact=exact, score=score,
        )  # fmt: skip
        names = [name for name in view.schema.names if name != ROW_ID]
        return rows_result(context, found.select([ROW_ID, score, *names]), output, document, k)


def _parse_vector(text: str) -> list[float]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, list):
        raise InvalidInputError("--vector is a list of numbers, such as '[0.1, 0.2]'")
    return found


def _parse_weights(text: str) -> dict[str, float]:
    try:
        vector, words = (float(part) for part in text.split(","))
    except ValueError:
        raise InvalidInputError("--weights are two numbers, of vector and text, such as 0.7,0.3") from None
    return {"vector": vector, "text": words}
