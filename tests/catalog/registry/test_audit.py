"""The audit log: nothing is lost while the database answers, and memory is bounded while it does not."""

import time
from dataclasses import replace

import pytest

from penstock.catalog.registry import AuditEvent, Registry
from penstock.catalog.registry import _audit as audit_module
from penstock.errors import InvalidInputError


def event(number: int, **changes: str) -> AuditEvent:
    plain = AuditEvent(number, f"request-{number}", "ann@example.org", "k" * 12, "table.describe", "team$robots", 200)
    return replace(plain, **changes)  # type: ignore[arg-type]


def numbers(events: list[AuditEvent]) -> list[int]:
    return [each.time_us for each in events]


def test_events_of_changes_are_written_at_once_and_others_soon(registry: Registry) -> None:
    workspace = registry.workspace("team")
    workspace.audit(event(1), now=True)
    [written] = workspace.audit_events()
    assert (written.time_us, written.request_id, written.member, written.outcome) == (
        1,
        "request-1",
        "ann@example.org",
        200,
    )
    workspace.audit(event(2))
    deadline = time.monotonic() + 60
    while numbers(workspace.audit_events()) != [2, 1]:  # the thread of the registry writes it
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_pages_of_events_go_back_in_time(registry: Registry) -> None:
    workspace = registry.workspace("team")
    for number in range(1200):
        workspace.audit(event(number))
    registry.flush()
    seen: list[int] = []
    page = workspace.audit_events(limit=500)
    while page:
        seen += numbers(page)
        page = workspace.audit_events(before=page[-1].id, limit=500)
    assert seen == list(reversed(range(1200)))
    for limit in (0, 1001):
        with pytest.raises(InvalidInputError):
            workspace.audit_events(limit=limit)
    with pytest.raises(InvalidInputError):
        workspace.audit_events(before=1 << 70)


def test_workspaces_and_the_server_have_logs_of_their_own(registry: Registry) -> None:
    registry.create_workspace("rival")
    registry.workspace("team").audit(event(1))
    registry.workspace("rival").audit(event(2))
    registry.audit(event(3))
    registry.audit(event(4), now=True)
    registry.flush()
    assert numbers(registry.workspace("team").audit_events()) == [1]
    assert numbers(registry.workspace("rival").audit_events()) == [2]
    assert numbers(registry.audit_events()) == [3, 4]


def test_texts_of_anybody_are_stored_escaped_and_bounded(registry: Registry) -> None:
    workspace = registry.workspace("team")
    workspace.audit(event(1, target="a\0b\ud800\x1b[31m", operation="x" * 5000, member="Ünal 漢字"))
    registry.flush()
    [written] = workspace.audit_events()
    assert written.target == "a\\x00b\\ud800\\x1b[31m"
    assert (len(written.operation), written.member) == (1000, "Ünal 漢字")


def test_events_of_a_dropped_workspace_do_not_reach_another_of_its_name(registry: Registry) -> None:
    registry.workspace("team").audit(event(1))
    registry.drop_workspace("team")
    registry.create_workspace("team")
    registry.flush()
    assert numbers(registry.workspace("team").audit_events()) == []
    registry.workspace("team").audit(event(2), now=True)
    assert numbers(registry.workspace("team").audit_events()) == [2]


def test_closing_writes_what_is_buffered(registry: Registry, url: str) -> None:
    other = Registry(url)
    other.workspace("team").audit(event(1))
    other.close()
    assert numbers(registry.workspace("team").audit_events()) == [1]


def test_memory_is_bounded(url: str, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "_MAX_BUFFERED", 10)
    dropped: list[int] = []
    registry = Registry(url, on_audit_dropped=lambda: dropped.append(1))
    workspace = registry.workspace("team")
    with registry._audit._flushing:  # the thread cannot write
        for number in range(25):
            workspace.audit(event(number))
    assert len(dropped) == 15
    registry.flush()
    assert numbers(workspace.audit_events()) == list(reversed(range(10)))
    workspace.audit(event(99))
    registry.flush()
    assert numbers(workspace.audit_events(limit=1)) == [99]
    registry.close()
