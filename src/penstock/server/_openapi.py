"""The OpenAPI document, derived from the table of operations."""

import json
import re
from typing import Any, Literal

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from penstock._version import __version__
from penstock.server.operations import (
    DELIMITER,
    ITEMS,
    NAMESPACE_ID_PATTERN,
    OPERATIONS,
    TABLE_ID_PATTERN,
    WORKSPACE_ID_PATTERN,
    ErrorResponse,
    Model,
    Operation,
)

_DESCRIPTION = """\
Tables of Penstock: where they are, and short-lived credentials that fit one table. The data itself is read from and
written to the store; it never passes through this server.

Shapes and error codes follow the Lance Namespace specification 1.0: a workspace is a namespace, and ids are joined by
`$`. An id without a workspace is in that of the key. `/v1/table/{id}/credentials` follows the Iceberg REST catalog."""

_STATUSES = {
    400: "A parameter is invalid; `error` names it.",
    401: "No key, or one that is unknown, expired or revoked.",
    403: "The key has no right to do this, or is one of another workspace.",
    404: "There is no such object.",
    405: "The path has no such method.",
    408: "The body did not arrive in time.",
    409: "The name is taken, or the object is in use.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    429: "Too many requests; `Retry-After` says when to come back.",
    500: "An internal error, or settings of the server that do not work; `instance` finds it in the log of the server.",
    503: "The database or the store does not answer, or there are too many requests at once.",
}
_ITEM_DESCRIPTIONS = {"member": "The name of a member.", "key_id": "The id of a key: the part after `pen_`."}
_ERROR_HEADERS = {429: ("retry-after",), 405: ("allow",), 401: ("www-authenticate",)}


def openapi_document() -> bytes:
    """The document, as JSON."""
    inputs = dict.fromkeys(each.request for each in OPERATIONS if each.method == "POST" and each.request is not None)
    outputs: dict[type[Model], None] = {ErrorResponse: None}
    for operation in OPERATIONS:
        if not isinstance(operation.response, str):
            outputs[operation.response] = None
    models: list[tuple[type[BaseModel], Literal["validation", "serialization"]]] = []
    models += [(model, "validation") for model in inputs]
    models += [(model, "serialization") for model in outputs]
    _, definitions = models_json_schema(models, ref_template="#/components/schemas/{model}")
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(operation)
    document = {
        "openapi": "3.1.0",
        "info": {"title": "Penstock", "version": __version__, "description": _DESCRIPTION},
        "paths": paths,
        "components": {
            "schemas": dict(sorted(definitions["$defs"].items())),
            "securitySchemes": {
                "BearerAuth": {"type": "http", "scheme": "bearer", "description": "An API key."},
                "ApiKeyAuth": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }
    return json.dumps(document, indent=1).encode()


def _operation(operation: Operation) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "description": _rights(operation),
        "parameters": _parameters(operation),
        "responses": _responses(operation),
        "security": [] if operation.right is None else [{"BearerAuth": []}, {"ApiKeyAuth": []}],
    }
    if operation.method == "POST" and operation.request is not None:
        required = any(field.is_required() for field in operation.request.model_fields.values())
        content = {"application/json": {"schema": _reference(operation.request)}}
        described["requestBody"] = {"required": required, "content": content}
    return described


def _rights(operation: Operation) -> str:
    if operation.right is None:
        return "Open to everybody."
    if operation.right == "any":
        return "For every valid key."
    if operation.right == "server_admin":
        return "For the server's admin."
    return f"For the role {operation.right} of the workspace, or a higher one."


def _responses(operation: Operation) -> dict[str, Any]:
    if isinstance(operation.response, str):
        kind = "object" if "json" in operation.response else "string"
        content = {operation.response.partition(";")[0]: {"schema": {"type": kind}}}
    else:
        content = {"application/json": {"schema": _reference(operation.response)}}
    documented: dict[str, Any] = {"200": {"description": "Success.", "content": content}}
    for status in sorted(statuses(operation)):
        headers = {name: {"schema": {"type": "string"}} for name in _ERROR_HEADERS.get(status, ())}
        documented[str(status)] = {
            "description": _STATUSES[status],
            "content": {"application/json": {"schema": _reference(ErrorResponse)}},
            **({"headers": headers} if headers else {}),
        }
    for response in documented.values():
        response.setdefault("headers", {})["x-request-id"] = {"schema": {"type": "string"}}
    return documented


def statuses(operation: Operation) -> set[int]:
    """Every status of an error that an operation may answer with."""
    found = {405, 500, 503}
    if operation.right is not None:
        found |= {401, 403, 429}
    if operation.right is not None or operation.request is not None:
        found |= {400}
    if operation.has_id:
        found |= {404}
    if operation.method == "POST":
        found |= {408, 413, 415}
    return found | ({409} if operation.conflicts else set())


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    names = re.findall(r"{(\w+)}", operation.path)
    found = [{"name": name, "in": "path", "required": True, **_path_parameter(operation, name)} for name in names]
    if operation.has_id:
        schema = {"type": "string", "enum": [DELIMITER]}
        found.append({"name": "delimiter", "in": "query", "schema": schema, "description": "Joins the parts of an id."})
    if operation.method == "GET" and operation.request is not None:
        schemas = operation.request.model_json_schema(ref_template="#/components/schemas/{model}")["properties"]
        for name, schema in schemas.items():
            description = {"description": schema["description"]} if "description" in schema else {}
            found.append({"name": name, "in": "query", "required": False, "schema": _not_null(schema), **description})
    return found


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query string has no null: what is not sent is absent."""
    choices = [choice for choice in schema.get("anyOf", [schema]) if choice.get("type") != "null"]
    return {name: value for name, value in choices[0].items() if name not in ("title", "description")}


def _path_parameter(operation: Operation, name: str) -> dict[str, Any]:
    if name in ITEMS:
        return {"schema": {"type": "string", **ITEMS[name]}, "description": _ITEM_DESCRIPTIONS[name]}
    if operation.target == "table":
        schema = {"type": "string", "pattern": TABLE_ID_PATTERN, "maxLength": 127}
        return {"schema": schema, "description": "`workspace$table`, or a table of the key's workspace."}
    pattern = WORKSPACE_ID_PATTERN if operation.root == "refused" else NAMESPACE_ID_PATTERN
    text = "A workspace." if operation.root == "refused" else "A workspace, or `$`, the root."
    return {"schema": {"type": "string", "pattern": pattern, "minLength": 1, "maxLength": 63}, "description": text}


def _reference(model: type[Model]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}
