"""What a process may use of its machine."""

from pathlib import Path

import pytest

from penstock.runners import available_memory


@pytest.mark.parametrize(
    ("group", "limits", "expected"),
    [
        ("0::/a/b", {"a/b/memory.max": "1000", "a/memory.max": "900", "memory.max": "max"}, 900),
        ("0::/not/visible/in/a/container", {"memory.max": "700"}, 700),
        ("4:cpu:/x\n5:hugetlb,memory:/x", {"memory/x/memory.limit_in_bytes": "800", "x/memory.max": "1"}, 800),
        ("4:memory:/\n0::/", {"memory/memory.limit_in_bytes": str(1 << 62), "memory.max": "max"}, None),
        ("0::/", {}, None),
    ],
)
def test_memory_is_limited_by_control_groups(
    tmp_path: Path, group: str, limits: dict[str, str], expected: int | None
) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{group}\n")
    for name, text in limits.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    physical = available_memory(tmp_path / "no such machine")
    assert physical > 1 << 28
    assert available_memory(tmp_path) == (physical if expected is None else expected)
