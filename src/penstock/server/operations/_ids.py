"""Ids of the API: `workspace$table`, a table of the key's own workspace, a workspace, or `$`, the root."""

import re
from dataclasses import dataclass
from typing import Any

from penstock.catalog import TableAddress
from penstock.catalog.registry import Principal
from penstock.server.operations._errors import invalid
from penstock.server.operations._models import MAX_MEMBER, MEMBER_PATTERN, NAME_PATTERN
from penstock.server.operations._operation import Operation

DELIMITER = "$"
DEFAULT_WORKSPACE = "default"
_NAME = NAME_PATTERN.strip("^$")
TABLE_ID_PATTERN = rf"^(?=([^$]{{1,63}}\$)?[^$]{{1,63}}$)({_NAME}\$)?{_NAME}$"
WORKSPACE_ID_PATTERN = rf"^{_NAME}$"
NAMESPACE_ID_PATTERN = rf"^(\$|{_NAME})$"
ITEMS: dict[str, dict[str, Any]] = {
    "member": {"pattern": MEMBER_PATTERN, "maxLength": MAX_MEMBER},
    "key_id": {"pattern": r"^[0-9A-Za-z]{12}$", "maxLength": 12},
}
"""The other parts of paths: what a JSON schema says of them."""
_ITEM_PATTERNS = {name: re.compile(schema["pattern"]) for name, schema in ITEMS.items()}


@dataclass(frozen=True)
class Target:
    """What a path names."""

    workspace: str | None = None
    """None for the root."""
    table: str = ""
    item: str = ""

    def __str__(self) -> str:
        parts = [self.workspace or DELIMITER, *filter(None, (self.table, self.item))]
        return DELIMITER.join(parts)


def own_workspace(principal: Principal) -> str:
    """The workspace of a table without one: that of the key."""
    return principal.workspace or DEFAULT_WORKSPACE


def parse_target(operation: Operation, parts: dict[str, str], principal: Principal) -> Target:
    """The target of a path's parts; raises `InvalidInputError` or `ApiError` for a text that cannot be an id."""
    if not operation.has_id:
        return Target()
    text, item = parts["id"], _parse_item(parts)
    if operation.target == "table":
        workspace, delimiter, table = text.rpartition(DELIMITER)
        address = TableAddress(workspace if delimiter else own_workspace(principal), table)
        return Target(address.workspace, address.table)
    if text != DELIMITER:
        return Target(TableAddress(text, "table").workspace, item=item)
    if operation.root == "refused":
        raise invalid("`$` is no workspace; name one")
    return Target(own_workspace(principal) if operation.root == "own" else None, item=item)


def _parse_item(parts: dict[str, str]) -> str:
    for name, pattern in _ITEM_PATTERNS.items():
        if (text := parts.get(name)) is not None:
            if not pattern.fullmatch(text) or len(text) > ITEMS[name]["maxLength"]:
                raise invalid(f"{name}: {text[:40]!r} cannot be one; it must match {pattern.pattern}")
            return text
    return ""
