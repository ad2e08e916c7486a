"""The OpenAPI document as one page of HTML, without scripts and without anything from elsewhere."""

import json
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
code, pre { font: 14px/1.45 ui-monospace, monospace }
details { border: 1px solid #8886; border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem }
summary { cursor: pointer } summary b { display: inline-block; min-width: 3.2rem }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 }
td, th { border-top: 1px solid #8884; padding: .25rem .5rem .25rem 0; text-align: left; vertical-align: top }
p.quiet { opacity: .75 }
"""


def docs_page(document: bytes) -> bytes:
    """Render the document."""
    api: dict[str, Any] = json.loads(document)
    info, schemas = api["info"], api["components"]["schemas"]
    operations = [
        _operation(method, path, operation)
        for path, methods in api["paths"].items()
        for method, operation in methods.items()
    ]
    paragraphs = "".join(f"<p>{_prose(text)}</p>" for text in info["description"].split("\n\n"))
    models = "".join(_model(name, schema) for name, schema in schemas.items())
    title = f"{escape(info['title'])} {escape(info['version'])}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body><h1>{title}</h1>'
        f"{paragraphs}<p>Send the key as <code>Authorization: Bearer …</code>. "
        f'<a href="openapi.json">The same as an OpenAPI document.</a></p><h2>Operations</h2>{"".join(operations)}'
        f"<h2>Models</h2>{models}</body></html>"
    ).encode()


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [f'<p class="quiet">{_prose(operation["description"])}</p>']
    rows = [
        (each["name"], f"{each['in']}, {_type(each['schema'])}", each.get("description", ""))
        for each in operation["parameters"]
    ]
    if rows:
        parts.append(_table(("Parameter", "Type", ""), rows))
    if body := operation.get("requestBody"):
        parts.append(f"<p>Body: {_type(body['content']['application/json']['schema'])}</p>")
    answers = []
    for status, response in operation["responses"].items():
        types = ", ".join(_type(content["schema"]) for content in response["content"].values())
        answers.append((status, types, response["description"]))
    parts.append(_table(("Status", "Body", ""), answers))
    heading = f"<b>{method.upper()}</b> <code>{escape(path)}</code> {_prose(operation['summary'])}"
    return f"<details><summary>{heading}</summary>{''.join(parts)}</details>"


def _model(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = [
        (f"{field}{'' if field in required else ' ?'}", _type(each), each.get("description", ""))
        for field, each in schema.get("properties", {}).items()
    ]
    table = _table(("Field", "Type", ""), rows) if rows else ""
    text = f'<p class="quiet">{_prose(schema.get("description", ""))}</p>{table}'
    return f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>{text}</details>'


def _table(heads: tuple[str, ...], rows: list[tuple[str, str, str]]) -> str:
    head = "".join(f"<th>{each}</th>" for each in heads)
    body = "".join(
        f"<tr><td><code>{escape(name)}</code></td><td>{kind}</td><td>{_prose(text)}</td></tr>"
        for name, kind, text in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _type(schema: dict[str, Any]) -> str:
    """The type of a value in a few words, as HTML."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema and "type" not in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"])
    if "enum" in schema or "const" in schema:
        return " or ".join(
            f"<code>{escape(json.dumps(value))}</code>" for value in schema.get("enum", [schema.get("const")])
        )
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    return escape(str(schema.get("type", "any")))


def _prose(text: str) -> str:
    """Text with `code` in it."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if index % 2 else part for index, part in enumerate(parts))
