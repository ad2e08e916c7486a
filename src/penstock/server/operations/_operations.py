"""The table of operations: if an operation is not in it, the server does not have it."""

from penstock.server.operations import _credentials, _keys, _models, _system, _tables, _workspaces
from penstock.server.operations._operation import Operation

_TABLE = "/v1/table/{id}"
_WORKSPACE = "/v1/namespace/{id}"

_TABLE_OPERATIONS = (
    Operation(
        "describe_table", "POST", f"{_TABLE}/describe", "Locate a table, with credentials to access it.", "reader",
        _models.DescribeTableResponse, _tables.describe_table, _models.DescribeTableRequest,
        target="table", audit="buffered",
    ),
    Operation(
        "refresh_credentials", "GET", f"{_TABLE}/credentials", "Issue credentials for a table again.", "reader",
        _models.CredentialsResponse, _credentials.refresh_credentials, _models.CredentialsRequest,
        target="table", audit="buffered",
    ),
    Operation(
        "table_exists", "POST", f"{_TABLE}/exists", "Answer 404 if there is no such table.", "reader",
        _models.Empty, _tables.table_exists, _models.Empty, target="table",
    ),
    Operation(
        "declare_table", "POST", f"{_TABLE}/declare", "Reserve a name and a location for a new table.", "writer",
        _models.DeclareTableResponse, _tables.declare_table, _models.DeclareTableRequest,
        target="table", audit="now", conflicts=True,
    ),
    Operation(
        "register_table", "POST", f"{_TABLE}/register", "Add an existing table.", "server_admin",
        _models.TableResponse, _tables.register_table, _models.RegisterTableRequest,
        target="table", audit="now", conflicts=True,
    ),
    Operation(
        "deregister_table", "POST", f"{_TABLE}/deregister", "Forget a table for ever; its objects stay.", "admin",
        _models.TableResponse, _tables.deregister_table, _models.Empty, target="table", audit="now",
    ),
    Operation(
        "drop_table", "POST", f"{_TABLE}/drop", "Drop a table; it can be restored for some days.", "writer",
        _models.TableResponse, _tables.drop_table, _models.ExpectedTableRequest, target="table", audit="now",
        conflicts=True,
    ),
    Operation(
        "undrop_table", "POST", f"{_TABLE}/undrop", "Restore the table of this name that was dropped last.", "writer",
        _models.TableResponse, _tables.undrop_table, _models.ExpectedTableRequest, target="table", audit="now",
        conflicts=True,
    ),
    Operation(
        "rename_table", "POST", f"{_TABLE}/rename", "Give a table another name.", "writer",
        _models.TableResponse, _tables.rename_table, _models.RenameTableRequest,
        target="table", audit="now", conflicts=True,
    ),
)  # fmt: skip

_WORKSPACE_OPERATIONS = (
    Operation(
        "list_tables", "GET", f"{_WORKSPACE}/table/list", "List the tables of a workspace.", "reader",
        _models.ListTablesResponse, _tables.list_tables, _models.ListTablesRequest, target="workspace", root="own",
    ),
    Operation(
        "list_namespaces", "GET", f"{_WORKSPACE}/list", "List the workspaces that the key may see.", "reader",
        _models.ListWorkspacesResponse, _workspaces.list_workspaces, target="workspace", root="allowed",
    ),
    Operation(
        "create_namespace", "POST", f"{_WORKSPACE}/create", "Create a workspace.", "server_admin",
        _models.WorkspaceResponse, _workspaces.create_workspace, _models.Empty,
        target="workspace", audit="now", conflicts=True,
    ),
    Operation(
        "drop_namespace", "POST", f"{_WORKSPACE}/drop", "Drop a workspace without tables.", "server_admin",
        _models.WorkspaceResponse, _workspaces.drop_workspace, _models.Empty,
        target="workspace", audit="now", conflicts=True,
    ),
    Operation(
        "describe_namespace", "POST", f"{_WORKSPACE}/describe", "Describe a workspace.", "reader",
        _models.WorkspaceResponse, _workspaces.describe_workspace, _models.Empty, target="workspace", root="allowed",
    ),
    Operation(
        "namespace_exists", "POST", f"{_WORKSPACE}/exists", "Answer 404 if there is no such workspace.", "reader",
        _models.Empty, _workspaces.workspace_exists, _models.Empty, target="workspace", root="allowed",
    ),
    Operation(
        "list_audit", "GET", f"{_WORKSPACE}/audit/list", "Read an audit log, newest events first.", "admin",
        _models.ListAuditResponse, _workspaces.list_audit, _models.ListAuditRequest,
        target="workspace", root="server_admin",
    ),
)  # fmt: skip

_MEMBER_OPERATIONS = (
    Operation(
        "list_members", "GET", f"{_WORKSPACE}/member/list", "List the members of a workspace.", "admin",
        _models.ListMembersResponse, _workspaces.list_members,
    ),
    Operation(
        "set_member", "POST", f"{_WORKSPACE}/member/{{member}}/set", "Add a member, or change a role.", "admin",
        _models.MemberResponse, _workspaces.set_member, _models.SetMemberRequest, audit="now", conflicts=True,
    ),
    Operation(
        "remove_member", "POST", f"{_WORKSPACE}/member/{{member}}/remove", "Remove a member and all their keys.",
        "admin", _models.Empty, _workspaces.remove_member, _models.Empty, audit="now", conflicts=True,
    ),
    Operation(
        "list_keys", "GET", f"{_WORKSPACE}/key/list", "List keys; those of the server's admins with `$`.", "admin",
        _models.ListKeysResponse, _keys.list_keys, root="server_admin",
    ),
    Operation(
        "create_key", "POST", f"{_WORKSPACE}/key/create", "Create a key for a member.", "admin",
        _models.NewKeyResponse, _keys.create_key, _models.CreateKeyRequest, root="server_admin", audit="now",
    ),
    Operation(
        "revoke_key", "POST", f"{_WORKSPACE}/key/{{key_id}}/revoke",
        "Revoke a key: an admin every key of the workspace, a member the own ones.", "reader",
        _models.KeyResponse, _keys.revoke_key, _models.Empty, root="server_admin", audit="now", conflicts=True,
    ),
    Operation(
        "who_am_i", "GET", "/v1/whoami", "Tell whose key this is.", "any", _models.WhoAmIResponse, _keys.who_am_i,
    ),
)  # fmt: skip

_SERVER_OPERATIONS = (
    Operation("health", "GET", "/health", "Check the server and its database; with `deep`, all that it needs.", None,
              _models.HealthResponse, _system.health, _models.HealthRequest),
    Operation("metrics", "GET", "/metrics", "Read the metrics, for Prometheus.", "server_admin", _system.METRICS_TYPE,
              _system.metrics),
    Operation("openapi", "GET", "/openapi.json", "Read this document.", None, _system.DOCUMENT_TYPE,
              _system.openapi_document),
    Operation("docs", "GET", "/docs", "Read this document as a page.", None, _system.PAGE_TYPE, _system.docs_page),
)  # fmt: skip

OPERATIONS = (*_TABLE_OPERATIONS, *_WORKSPACE_OPERATIONS, *_MEMBER_OPERATIONS, *_SERVER_OPERATIONS)
