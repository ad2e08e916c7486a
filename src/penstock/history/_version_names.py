"""The names of versions: `branch@number`, or a number on the current branch."""

from collections.abc import Mapping

_SHORT_ID = 8


def format_version(branch: str, number: int) -> str:
    """The name of a version: `main@7`."""
    return f"{branch}@{number}"


def parse_version(text: str) -> tuple[str | None, int] | None:
    """Branch name and number of `main@7`; no branch for `7`; None for any other text, such as a tag."""
    branch, at, number = text.rpartition("@")
    return (branch if at else None, int(number)) if number.isdigit() else None


def branch_name(branches: Mapping[str, str], branch_id: str) -> str:
    """The name of a branch, from a mapping of names to ids; the first digits of its id if it has no name any more."""
    return next((name for name, id in branches.items() if id == branch_id), branch_id[:_SHORT_ID])
