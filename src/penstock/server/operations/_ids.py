"""Ids of the API: `workspace$table`, a table of the key's own workspace, a workspace, or `$`, the root."""

from dataclasses import dataclass

from penstock.catalog import TableAddress
from penstock.catalog.registry import Principal
from penstock.server.operations._errors import invalid
from penstock.server.operations._models import NAME_PATTERN
from penstock.server.operations._operation import Operation

DELIMITER = "$"
DEFAULT_WORKSPACE = "default"
_NAME = NAME_PATTERN.strip("^$")
TABLE_ID_PATTERN = rf"^({_NAME}\$)?{_NAME}$"
WORKSPACE_ID_PATTERN = rf"^{_NAME}$"
NAMESPACE_ID_PATTERN = rf"^(\$|{_NAME})$"


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
    text, item = parts["id"], parts.get("member") or parts.get("key_id") or ""
    if operation.target == "table":
        workspace, delimiter, table = text.rpartition(DELIMITER)
        address = TableAddress(workspace if delimiter else own_workspace(principal), table)
        return Target(address.workspace, address.table)
    if text != DELIMITER:
        return Target(TableAddress(text, "table").workspace, item=item)
    if operation.root == "refused":
        raise invalid("`$` is no workspace; name one")
    return Target(own_workspace(principal) if operation.root == "own" else None, item=item)
