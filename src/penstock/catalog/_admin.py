"""Members and API keys of a workspace on a server."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import quote

from penstock.catalog._http import ServerApi, understood
from penstock.catalog._settings import DEFAULT_WORKSPACE, ServerSettings

_T = TypeVar("_T", "KeyOwner", "KeyRecord")


@dataclass(frozen=True)
class KeyOwner:
    """Whose a key is, and what it may do."""

    member: str
    workspace: str | None
    """None for an admin of the server, who may do everything in every workspace."""
    role: str
    key_id: str


@dataclass(frozen=True)
class KeyRecord:
    """An API key without its secret; times in milliseconds since 1970."""

    key_id: str
    member: str
    note: str
    created_at_millis: int
    expires_at_millis: int | None = None
    revoked_at_millis: int | None = None
    last_used_at_millis: int | None = None


def own_workspace(settings: ServerSettings) -> str:
    """The workspace of tables that are named without one; the server is asked once, if only the key knows it."""
    return settings.workspace or _workspace_of_key(settings)


@lru_cache
def _workspace_of_key(settings: ServerSettings) -> str:
    return WorkspaceAdmin(settings).whoami().workspace or DEFAULT_WORKSPACE


class WorkspaceAdmin:
    """What an admin of a workspace does; raises `AccessDeniedError` for the key of anybody else."""

    def __init__(self, settings: ServerSettings, workspace: str | None = None) -> None:
        self._given = workspace
        self._api = ServerApi(settings)

    @property
    def workspace(self) -> str:
        """The one that was given, else that of the settings or of the key."""
        return self._given or own_workspace(self._api.settings)

    @property
    def _path(self) -> str:
        return f"/v1/namespace/{quote(self.workspace, safe='$')}"

    def whoami(self) -> KeyOwner:
        """Whose the key of the settings is; any valid key may ask."""
        found = self._api.get("/v1/whoami", "check the API key").document
        return self._made(KeyOwner, {"workspace": None, **found})

    def create(self) -> None:
        """Create the workspace, as an admin of the server; raises `AlreadyExistsError`."""
        self._api.post(f"{self._path}/create", f"create the workspace {self.workspace!r}", {})

    def drop(self) -> None:
        """Remove the workspace without tables, as an admin of the server, with its members and keys."""
        self._api.post(f"{self._path}/drop", f"drop the workspace {self.workspace!r}", {})

    def members(self) -> dict[str, str]:
        """The members of the workspace with their roles."""
        found = self._api.get(f"{self._path}/member/list", self._what("list the members")).document
        with self._understood():
            return {each["member"]: each["role"] for each in found["members"]}

    def set_member(self, member: str, role: str) -> None:
        """Add a member, or change the role of one: reader, writer or admin."""
        path = f"{self._path}/member/{quote(member, safe='')}/set"
        self._api.post(path, self._what(f"set the role of {member!r}"), {"role": role}, repeatable=True)

    def remove_member(self, member: str) -> None:
        """Remove a member; their keys are refused from then on."""
        path = f"{self._path}/member/{quote(member, safe='')}/remove"
        self._api.post(path, self._what(f"remove {member!r}"), {})

    def keys(self) -> list[KeyRecord]:
        """The keys of the workspace, revoked ones included."""
        found = self._api.get(f"{self._path}/key/list", self._what("list the API keys")).document
        with self._understood():
            return [self._made(KeyRecord, each) for each in found["keys"]]

    def create_key(self, member: str, *, expires_s: float | None, note: str) -> tuple[str, KeyRecord]:
        """A new key of a member, with the role of the member: its text, which is never shown again, and its record."""
        body = {"member": member, "expires_in_s": expires_s, "note": note}
        found = self._api.post(f"{self._path}/key/create", self._what(f"create a key for {member!r}"), body).document
        with self._understood():
            return str(found["key"]), self._made(KeyRecord, found)

    def revoke_key(self, key_id: str) -> KeyRecord:
        """Have a key refused; members may revoke their own ones."""
        path = f"{self._path}/key/{quote(key_id, safe='')}/revoke"
        found = self._api.post(path, self._what(f"revoke the key {key_id}"), {}, repeatable=True).document
        return self._made(KeyRecord, found)

    def _what(self, operation: str) -> str:
        return f"{operation} of the workspace {self.workspace!r}"

    def _made(self, cls: type[_T], found: Mapping[str, Any]) -> _T:
        """A record of the fields that are known here; a newer server may send more."""
        with self._understood():
            return cls(**{each.name: found[each.name] for each in fields(cls) if each.name in found})

    def _understood(self) -> AbstractContextManager[None]:
        return understood(self._api.settings.url, "read members and keys")
