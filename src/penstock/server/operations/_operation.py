"""What an operation of the API is: everything that the server derives from it is derived from these fields."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

from penstock.catalog.registry import Principal, Registry, TableRow, Workspace
from penstock.catalog.vending import Vendor
from penstock.errors import NotFoundError
from penstock.server.operations._errors import ApiError, Code, Target
from penstock.server.operations._models import Model

M = TypeVar("M", bound=Model, covariant=True)

Right = Literal["reader", "writer", "admin", "server_admin", "any"]
"""Who may call an operation: a role in the workspace that the path names, or higher; or any valid key."""
Root = Literal["refused", "own", "allowed", "server_admin"]
"""What the root namespace `$` means: nothing, the workspace of the key, itself, or itself for the server's admin."""
Audit = Literal["off", "buffered", "now"]
"""Whether calls are written to the audit log, and whether that happens before the answer."""


@dataclass(frozen=True)
class Raw:
    """A response that is not JSON of a model."""

    data: bytes
    media_type: str


@dataclass(frozen=True)
class Services:
    """What handlers work with."""

    registry: Registry
    vendor: Vendor
    check_health: Callable[[], None]
    """Raises a `PenstockError` unless the database answers."""
    check_deeply: Callable[[], None]
    """Raises a `PenstockError` that names what does not work: database, workspaces, storage or credentials."""
    metrics_text: Callable[[], bytes]
    documents: Mapping[str, bytes]
    """The OpenAPI document and the page that shows it, by the names of their operations."""


@dataclass(frozen=True)
class Request(Generic[M]):
    """One authenticated call; ids are parsed and rights are checked."""

    services: Services
    principal: Principal
    workspace_name: str | None
    """None for the root namespace, and for operations without one."""
    table: str
    item: str
    """The member or the key id of the path."""
    params: M

    @property
    def workspace(self) -> Workspace:
        """The workspace; raises an `ApiError` of its own, because a table may be what is not found."""
        assert self.workspace_name is not None
        try:
            return self.services.registry.workspace(self.workspace_name)
        except NotFoundError as error:
            raise ApiError(404, Code.NAMESPACE_NOT_FOUND, str(error)) from error

    def find_table(self) -> TableRow:
        """The table; raises `NotFoundError`. Similar names are for clients to find, each in its own time."""
        return self.workspace.find(self.table)


Handler = Callable[[Request[Any]], Model | Raw]


@dataclass(frozen=True)
class Operation:
    """A row of the table of operations."""

    name: str
    """The operation id of the OpenAPI document, and the name in the audit log."""
    method: Literal["GET", "POST"]
    path: str
    summary: str
    right: Right | None
    """None for an operation that needs no key."""
    response: type[Model] | str
    """A model, or the media type of another response."""
    handler: Handler
    request: type[Model] | None = None
    """Parsed from the query string of GET, and from the body of POST."""
    target: Target = "other"
    root: Root = "refused"
    audit: Audit = "off"
    conflicts: bool = False
    """Whether it may answer 409."""

    @property
    def has_id(self) -> bool:
        """Whether the path names a table or a workspace."""
        return "{id}" in self.path


def millis(microseconds: int | None) -> int | None:
    """Milliseconds, the unit of the API."""
    return None if microseconds is None else microseconds // 1000


def expiry_millis(lifetime_s: float) -> str:
    """When credentials expire, by the clock of this server, which is also that of the header `Date`."""
    return str(int((time.time() + lifetime_s) * 1000))
