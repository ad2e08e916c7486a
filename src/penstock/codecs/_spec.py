"""Codec specs: a name, or a name and a level, such as `zstd` or `jpeg:90`."""

import re
from collections.abc import Mapping

from penstock.errors import InvalidInputError

_SPEC = re.compile(r"([a-z0-9]+)(?::([0-9]{1,3}))?")


def split_spec(text: str) -> tuple[str, int | None]:
    """Split `name` or `name:level`; raises `InvalidInputError` for other text."""
    if not isinstance(text, str) or not (match := _SPEC.fullmatch(text)):
        raise InvalidInputError(f"{text!r} is not a codec; write a name, or a name and a level, such as 'zstd:3'")
    return match[1], None if match[2] is None else int(match[2])


def join_spec(name: str, level: int | None) -> str:
    """Inverse of `split_spec`."""
    return name if level is None else f"{name}:{level}"


def check_level(name: str, level: int | None, levels: Mapping[str, range | None]) -> None:
    """Raise `InvalidInputError` for a name that is not in `levels`, or a level out of its range."""
    if name not in levels:
        raise InvalidInputError(f"unknown codec {name!r}; choose one of {', '.join(levels)}")
    allowed = levels[name]
    if level is None or (allowed and level in allowed):
        return
    raise InvalidInputError(
        f"{name} has levels {allowed[0]} to {allowed[-1]}, not {level}" if allowed else f"{name} has no levels"
    )
