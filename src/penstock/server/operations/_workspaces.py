"""Operations on workspaces, their members and their audit logs."""

from typing import Any

from penstock.server.operations._errors import denied
from penstock.server.operations._models import (
    AuditEventResponse,
    Empty,
    ListAuditRequest,
    ListAuditResponse,
    ListMembersResponse,
    ListWorkspacesResponse,
    MemberResponse,
    SetMemberRequest,
    WorkspaceResponse,
)
from penstock.server.operations._operation import Request


def list_workspaces(request: Request[Any]) -> ListWorkspacesResponse:
    """The workspaces that a key may see; those in a workspace are none."""
    if request.workspace_name is not None:
        assert request.workspace.name
        return ListWorkspacesResponse(namespaces=[])
    if not request.principal.is_server_admin:
        return ListWorkspacesResponse(namespaces=[request.principal.workspace or ""])
    return ListWorkspacesResponse(namespaces=[each.name for each in request.services.registry.workspaces()])


def create_workspace(request: Request[Any]) -> WorkspaceResponse:
    """Create an empty workspace."""
    assert request.workspace_name is not None
    request.services.registry.create_workspace(request.workspace_name)
    return WorkspaceResponse(properties={})


def drop_workspace(request: Request[Any]) -> WorkspaceResponse:
    """Drop a workspace that has no tables, dropped ones included."""
    assert request.workspace_name is not None
    request.services.registry.drop_workspace(request.workspace_name)
    return WorkspaceResponse(properties={})


def describe_workspace(request: Request[Any]) -> WorkspaceResponse:
    """The properties of a workspace: none yet."""
    if request.workspace_name is not None:
        assert request.workspace.name
    return WorkspaceResponse(properties={})


def workspace_exists(request: Request[Any]) -> Empty:
    """Answer 404 if there is no such workspace."""
    describe_workspace(request)
    return Empty()


def list_members(request: Request[Any]) -> ListMembersResponse:
    """All members, with their roles."""
    members = request.services.registry.members(request.workspace.name)
    return ListMembersResponse(members=[MemberResponse(member=each.name, role=each.role) for each in members])


def set_member(request: Request[SetMemberRequest]) -> MemberResponse:
    """Add a member, or change the role of one."""
    request.services.registry.set_member(request.workspace.name, request.item, request.params.role)
    return MemberResponse(member=request.item, role=request.params.role)


def remove_member(request: Request[Any]) -> Empty:
    """Remove a member; all keys of the member are refused from then on."""
    if request.item == request.principal.member and not request.principal.is_server_admin:
        raise denied("an admin cannot remove themselves; ask another admin of the workspace")
    request.services.registry.remove_member(request.workspace.name, request.item)
    return Empty()


def list_audit(request: Request[ListAuditRequest]) -> ListAuditResponse:
    """One page of the audit log of a workspace, or of the server."""
    log = request.services.registry if request.workspace_name is None else request.workspace
    events = log.audit_events(request.params.before, request.params.limit)
    return ListAuditResponse(
        events=[
            AuditEventResponse(
                id=event.id or 0,
                time_us=event.time_us,
                request_id=event.request_id,
                member=event.member,
                key_id=event.key_id,
                operation=event.operation,
                target=event.target,
                outcome=event.outcome,
                detail=event.detail,
            )
            for event in events
        ]
    )
