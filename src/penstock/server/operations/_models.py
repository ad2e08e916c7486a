"""Requests and responses, in the shapes of the Lance Namespace specification where it has them.

Fields that are not listed are ignored, as servers of that specification do; a field of the wrong type is refused.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Role = Literal["reader", "writer", "admin"]
NAME_PATTERN = r"^[a-z0-9](\.?[a-z0-9_-])*$"
Name = Annotated[str, Field(min_length=1, max_length=63, pattern=NAME_PATTERN)]
MEMBER_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._@+-]*$"
MAX_MEMBER = 254
"""The length of an e-mail address."""
Member = Annotated[str, Field(max_length=MAX_MEMBER, pattern=MEMBER_PATTERN)]
MAX_NOTE = 200
Note = Annotated[str, Field(max_length=MAX_NOTE, pattern=r"^[^\x00]*$")]
RefName = Annotated[str, Field(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$")]
Properties = Annotated[
    dict[
        Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00]+$")],
        Annotated[str, Field(max_length=4096, pattern=r"^[^\x00]*$")],
    ],
    Field(max_length=64),
]
PropertiesOut = dict[str, str]
_MAX_VERSION = 2**63 - 1
_MAX_LIFETIME_S = 3650 * 86_400


def _parse_flag(value: Any) -> Any:
    return {"true": True, "1": True, "false": False, "0": False}.get(value, value)


def _parse_number(value: Any) -> Any:
    return int(value) if isinstance(value, str) and len(value) < 20 and value.isascii() and value.isdecimal() else value


Flag = Annotated[bool, BeforeValidator(_parse_flag)]
"""`true` or `false`, `1` or `0` in a query string."""
Limit = Annotated[int, Field(ge=1, le=500), BeforeValidator(_parse_number)]


class Model(BaseModel):
    """Strict about types, silent about unknown fields."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Empty(Model):
    """No fields."""


class ErrorResponse(Model):
    """Every answer that is not a success."""

    error: str = Field(description="What happened, to which object, and what to do.")
    code: int = Field(ge=0, description="A code of the Lance Namespace specification.")
    detail: str | None = Field(None, description="The name of the code.")
    instance: str = Field(description="The id of the request, for the log of the server.")


class DescribeTableRequest(Model):
    """What to tell of a table."""

    model_config = ConfigDict(
        json_schema_extra={
            "anyOf": [
                {"properties": {"tag": {"type": "null"}}},
                {"properties": {"version": {"type": "null"}, "branch": {"type": "null"}}},
            ]
        }
    )

    version: Annotated[int, Field(ge=0, le=_MAX_VERSION)] | None = None
    tag: RefName | None = Field(None, description="Cannot be combined with a version or a branch.")
    branch: RefName | None = None
    access: Literal["read", "write"] | None = Field(
        None, description="Limits the credentials; by default they allow what the key allows."
    )
    vend_credentials: bool | None = Field(None, description="Whether to add credentials; true by default.")
    with_table_uri: bool | None = None
    check_declared: bool | None = Field(None, description="Whether to look if the table exists in the store.")
    load_detailed_metadata: bool | None = Field(
        None, description="Whether the server opens the table, for its version, schema and statistics."
    )


class DescribeTableResponse(Model):
    """Where a table is, and the credentials to access it."""

    table: str
    namespace: list[str]
    location: str
    table_uri: str | None = None
    version: int | None = None
    storage_options: dict[str, str] | None = Field(
        None, description="Options by the names of object stores; `expires_at_millis` if they expire."
    )
    access: Literal["read", "write"] | None = Field(None, description="What the credentials allow.")
    schema_: dict[str, Any] | None = Field(None, alias="schema", description="The schema in the JSON form of Arrow.")
    stats: dict[str, int] | None = None
    properties: PropertiesOut
    managed_versioning: bool = False
    is_only_declared: bool | None = None
    created_at_millis: int


class DeclareTableRequest(Model):
    """A new table."""

    location: None = Field(None, description="The server chooses the location.")
    vend_credentials: bool | None = Field(None, description="Whether to add credentials; true by default.")
    properties: Properties | None = None


class DeclareTableResponse(Model):
    """The location of a new table, and credentials to write it."""

    location: str
    storage_options: dict[str, str] | None = None
    properties: PropertiesOut
    managed_versioning: bool = False
    created_at_millis: int


class RegisterTableRequest(Model):
    """An existing table."""

    location: Annotated[str, Field(min_length=1, max_length=1024)]
    properties: Properties | None = None


class ExpectedTableRequest(Model):
    """A table that the client knows already."""

    location: Annotated[str, Field(min_length=1, max_length=1024)] | None = Field(
        None, description="Where that table is; another one of the same name is left alone."
    )


class TableResponse(Model):
    """A table that was registered, dropped, restored, renamed or forgotten."""

    id: list[str]
    location: str
    properties: PropertiesOut
    created_at_millis: int
    dropped_at_millis: int | None = None
    purge_at_millis: int | None = Field(None, description="Until then a dropped table can be restored.")


class RenameTableRequest(Model):
    """Another name for a table."""

    new_table_name: Name
    new_namespace_id: Annotated[list[Name], Field(max_length=1)] | None = Field(
        None, description="A table stays in its workspace; another one is refused."
    )


class CredentialsRequest(Model):
    """Which rights the credentials give, and for which table."""

    access: Literal["read", "write"] | None = None
    location: str | None = Field(
        None, max_length=2000, description="Where the table was when it was opened: it may have another name by now."
    )


class StorageCredentials(Model):
    """Credentials in the shape of the Iceberg REST specification."""

    prefix: str
    config: dict[str, str]


class CredentialsResponse(Model):
    """Fresh credentials for a table."""

    table: str
    access: Literal["read", "write"] = Field(description="What they allow.")
    storage_options: dict[str, str]
    storage_credentials: list[StorageCredentials] = Field(alias="storage-credentials")


class ListTablesRequest(Model):
    """A page of the tables of a workspace."""

    page_token: Name | None = None
    limit: Limit = 100
    dropped: Flag = Field(False, description="List the tables that can be restored.")
    details: Flag = Field(False, description="Add locations and times.")


class TableDetail(Model):
    """One table of a list."""

    name: str
    location: str
    created_at_millis: int
    dropped_at_millis: int | None = None
    purge_at_millis: int | None = None


class ListTablesResponse(Model):
    """Names of tables, sorted."""

    tables: list[str]
    details: list[TableDetail] | None = None
    page_token: str | None = Field(None, description="Names the next page; absent on the last one.")


class ListWorkspacesResponse(Model):
    """Names of workspaces, sorted."""

    namespaces: list[str]


class WorkspaceResponse(Model):
    """A workspace."""

    properties: PropertiesOut


class MemberResponse(Model):
    """A member of a workspace."""

    member: str
    role: Role


class ListMembersResponse(Model):
    """The members of a workspace."""

    members: list[MemberResponse]


class SetMemberRequest(Model):
    """The role of a member."""

    role: Role


class KeyResponse(Model):
    """An API key; its secret is shown on creation only."""

    key_id: str
    member: str
    workspace: str | None = None
    note: str
    created_at_millis: int
    expires_at_millis: int | None = None
    revoked_at_millis: int | None = None
    last_used_at_millis: int | None = None


class NewKeyResponse(KeyResponse):
    """A new API key."""

    key: str = Field(description="The only time that the key is shown.")


class CreateKeyRequest(Model):
    """A new API key for a member."""

    member: Member
    expires_in_s: Annotated[float, Field(gt=0, le=_MAX_LIFETIME_S)] | None = None
    note: Note | None = None


class ListKeysResponse(Model):
    """The API keys of a workspace, revoked ones included."""

    keys: list[KeyResponse]


class ListAuditRequest(Model):
    """A page of the audit log, newest events first."""

    before: Annotated[int, Field(ge=0, le=_MAX_VERSION), BeforeValidator(_parse_number)] | None = Field(
        None, description="Only events before the one with this id."
    )
    limit: Limit = 100


class AuditEventResponse(Model):
    """Who did what, and whether it succeeded."""

    id: int
    time_us: int
    request_id: str
    member: str
    key_id: str
    operation: str
    target: str
    outcome: int = Field(description="The status of the answer.")
    detail: str


class ListAuditResponse(Model):
    """Events of the audit log, newest first."""

    events: list[AuditEventResponse]


class WhoAmIResponse(Model):
    """Whose key this is, and what it may do."""

    member: str
    workspace: str | None = Field(None, description="Absent for the server's admin.")
    role: Role
    server_admin: bool
    key_id: str


class HealthRequest(Model):
    """How much to check."""

    deep: Flag = Field(False, description="Check the workspaces, the storage and the credentials as well.")


class HealthResponse(Model):
    """The server answers, and so does its database."""

    status: Literal["ok"] = "ok"
    version: str
