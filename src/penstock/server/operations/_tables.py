"""Operations on one table."""

from contextlib import suppress
from typing import Any

from penstock.catalog.registry import TableRow
from penstock.errors import AlreadyExistsError, InvalidInputError, NotFoundError, PenstockError
from penstock.server.operations._credentials import allowed_access, vend
from penstock.server.operations._errors import ApiError, Code, denied, invalid, settings_of_the_server
from penstock.server.operations._metadata import is_declared_only, load_metadata
from penstock.server.operations._models import (
    DeclareTableRequest,
    DeclareTableResponse,
    DescribeTableRequest,
    DescribeTableResponse,
    Empty,
    ExpectedTableRequest,
    ListTablesRequest,
    ListTablesResponse,
    RegisterTableRequest,
    RenameTableRequest,
    TableDetail,
    TableResponse,
)
from penstock.server.operations._operation import Request, millis


def describe_table(request: Request[DescribeTableRequest]) -> DescribeTableResponse:
    """Where a table is, with credentials; the one request of `open_table`."""
    params = request.params
    if params.tag is not None and (params.version is not None or params.branch is not None):
        raise invalid("a tag names a version by itself; leave out the version and the branch")
    row = request.find_table()
    options = None if params.vend_credentials is False else vend(request, row.location, params.access)
    chosen = {"tag": params.tag, "branch": params.branch}
    own_options, key_id = request.services.vendor.server_options, request.principal.key_id
    version, schema, stats, declared_only = params.version, None, None, None
    if params.load_detailed_metadata:
        found = load_metadata(row.location, own_options, key_id=key_id, version=version, **chosen)
        declared_only = found is None
        if found is not None:
            version, schema, stats = found.version, found.schema, found.stats
    elif params.check_declared:
        declared_only = is_declared_only(row.location, own_options, key_id=key_id)
    return DescribeTableResponse(
        table=row.name,
        namespace=[request.workspace_name or ""],
        location=row.location,
        table_uri=_uri(row.location) if params.with_table_uri else None,
        version=version,
        storage_options=options,
        access=None if options is None else allowed_access(request.principal, params.access),
        schema=schema,
        stats=stats,
        properties={**row.properties, **{name: value for name, value in chosen.items() if value is not None}},
        is_only_declared=declared_only,
        created_at_millis=row.created_us // 1000,
    )


def _uri(location: str) -> str:
    return location if "://" in location else f"file://{location}"


def table_exists(request: Request[Any]) -> Empty:
    """Answer 404 if there is no such table."""
    request.find_table()
    return Empty()


def declare_table(request: Request[DeclareTableRequest]) -> DeclareTableResponse:
    """Reserve a name, at a location that the server chooses."""
    workspace, vendor = request.workspace, request.services.vendor
    try:
        workspace.find(request.table)
    except NotFoundError:
        pass
    else:  # before a location is made that nobody would use
        raise AlreadyExistsError(
            f"{request.workspace_name}${request.table} exists already; open it, or choose another name"
        )
    with settings_of_the_server():
        location = vendor.new_location()
    try:
        row = workspace.declare(
            request.table,
            location,
            owned=True,
            properties=request.params.properties,
            created_by=request.principal.member,
        )
    except (AlreadyExistsError, InvalidInputError):  # after any other error the table may exist
        with suppress(PenstockError):
            vendor.remove(location)
        raise
    try:
        options = None if request.params.vend_credentials is False else vend(request, location, None)
    except PenstockError:
        with suppress(PenstockError):
            workspace.drop(request.table)  # the name is free again, and the location is purged later
        raise
    return DeclareTableResponse(
        location=row.location,
        storage_options=options,
        properties=dict(row.properties),
        created_at_millis=row.created_us // 1000,
    )


def register_table(request: Request[RegisterTableRequest]) -> TableResponse:
    """Add a table that exists, in one of the locations that the server was started with."""
    location = request.params.location
    try:
        request.services.vendor.check_location(location)
    except InvalidInputError as error:
        raise denied(str(error)) from error
    row = request.workspace.declare(
        request.table,
        location,
        owned=False,
        properties=request.params.properties,
        created_by=request.principal.member,
    )
    return _table(request, row)


def deregister_table(request: Request[Any]) -> TableResponse:
    """Forget a table, for ever; its objects stay."""
    return _table(request, request.workspace.forget(request.table))


def drop_table(request: Request[ExpectedTableRequest]) -> TableResponse:
    """Drop a table; it can be restored until `purge_at_millis`."""
    return _table(request, request.workspace.drop(request.table, location=request.params.location))


def undrop_table(request: Request[ExpectedTableRequest]) -> TableResponse:
    """Restore the table of this name that was dropped last, or the one at a location."""
    return _table(request, request.workspace.restore(request.table, location=request.params.location))


def rename_table(request: Request[RenameTableRequest]) -> TableResponse:
    """Give a table another name; its objects stay where they are."""
    target = request.params.new_namespace_id
    if target and target != [request.workspace_name]:
        if not request.principal.is_server_admin:
            raise denied(f"this key has no rights in the workspace {target[0]}")
        raise ApiError(403, Code.UNSUPPORTED, "a table stays in its workspace; leave out new_namespace_id")
    return _table(request, request.workspace.rename(request.table, request.params.new_table_name))


def list_tables(request: Request[ListTablesRequest]) -> ListTablesResponse:
    """One page of the tables of a workspace."""
    params = request.params
    rows = request.workspace.tables(after=params.page_token, limit=params.limit + 1, dropped=params.dropped)
    page = rows[: params.limit]
    return ListTablesResponse(
        tables=[row.name for row in page],
        details=[_detail(row) for row in page] if params.details else None,
        # Dropped tables may share a name.
        page_token=(page[-1].id if params.dropped else page[-1].name) if len(rows) > len(page) else None,
    )


def _detail(row: TableRow) -> TableDetail:
    return TableDetail(
        name=row.name,
        location=row.location,
        created_at_millis=row.created_us // 1000,
        dropped_at_millis=millis(row.dropped_us),
        purge_at_millis=millis(row.purge_us),
    )


def _table(request: Request[Any], row: TableRow) -> TableResponse:
    return TableResponse(
        id=[request.workspace_name or "", row.name],
        location=row.location,
        properties=dict(row.properties),
        created_at_millis=row.created_us // 1000,
        dropped_at_millis=millis(row.dropped_us),
        purge_at_millis=millis(row.purge_us),
    )
