"""Operations on API keys, and on the one that a request comes with."""

from typing import Any

from penstock.catalog.registry import KeyInfo
from penstock.errors import ConflictError, escape_controls
from penstock.server.operations._errors import denied
from penstock.server.operations._models import (
    MAX_NOTE,
    CreateKeyRequest,
    KeyResponse,
    ListKeysResponse,
    NewKeyResponse,
    WhoAmIResponse,
)
from penstock.server.operations._operation import Request, millis


def list_keys(request: Request[Any]) -> ListKeysResponse:
    """All keys of a workspace, or those of the server's admins."""
    keys = request.services.registry.keys(_owner(request))
    return ListKeysResponse(keys=[KeyResponse(**_fields(key)) for key in keys])


def create_key(request: Request[CreateKeyRequest]) -> NewKeyResponse:
    """A key for a member, with the role of the member."""
    params = request.params
    text, key = request.services.registry.create_key(
        _owner(request), params.member, expires_s=params.expires_in_s, note=_one_line(params.note or "")
    )
    return NewKeyResponse(key=text, **_fields(key))


def revoke_key(request: Request[Any]) -> KeyResponse:
    """Refuse a key from now on. An admin may revoke every key of the workspace, a member the own ones."""
    registry, principal, owner = request.services.registry, request.principal, _owner(request)
    if principal.role != "admin":
        own = {key.id for key in registry.keys(owner) if key.member == principal.member}
        if request.item not in own:
            raise denied("members revoke their own keys only; ask an admin of the workspace")
    if owner is None and request.item == principal.key_id:
        raise ConflictError("a key of the server's admin cannot revoke itself, because the last one would lock you out")
    return KeyResponse(**_fields(registry.revoke_key(owner, request.item)))


def _one_line(note: str) -> str:
    return escape_controls(" ".join(note.split()))[:MAX_NOTE]


def who_am_i(request: Request[Any]) -> WhoAmIResponse:
    """Whose key this is."""
    principal = request.principal
    return WhoAmIResponse(
        member=principal.member,
        workspace=principal.workspace,
        role=principal.role,
        server_admin=principal.is_server_admin,
        key_id=principal.key_id,
    )


def _owner(request: Request[Any]) -> str | None:
    return None if request.workspace_name is None else request.workspace.name


def _fields(key: KeyInfo) -> dict[str, Any]:
    return {
        "key_id": key.id,
        "member": key.member,
        "workspace": key.workspace,
        "note": key.note,
        "created_at_millis": key.created_us // 1000,
        "expires_at_millis": millis(key.expires_us),
        "revoked_at_millis": millis(key.revoked_us),
        "last_used_at_millis": millis(key.last_used_us),
    }
