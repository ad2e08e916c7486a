"""What a program must know beyond the format's first version; said by the table, and by each snapshot."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.errors import UnsupportedFormat

_READ: frozenset[str] = frozenset()
_WRITE: frozenset[str] = frozenset({"single-writer"})


@dataclass(frozen=True)
class Features:
    """Names of features: those needed to read, and those needed only to write."""

    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()

    def to_json(self) -> dict[str, list[str]]:
        return {"read": list(self.read), "write": list(self.write)}

    @staticmethod
    def from_json(described: Mapping[str, Sequence[str]], where: str) -> "Features":
        features = Features(tuple(described["read"]), tuple(described["write"]))
        features._check(features.read, _READ, where, "read")
        return features

    def check_writable(self, where: str) -> None:
        """Refuse to change what this version would not keep right."""
        self._check(self.write, _WRITE, where, "change")

    def _check(self, needed: Sequence[str], known: frozenset[str], where: str, verb: str) -> None:
        if unknown := sorted(set(needed) - known):
            raise UnsupportedFormat(f"{where} needs {', '.join(unknown)} to {verb} it; upgrade Penstock")
