"""The message about a table that a catalog does not have, with the addresses that are like it."""

from collections.abc import Iterable
from difflib import get_close_matches

from penstock.catalog._address import TableAddress

_MAX_SUGGESTIONS = 3


def not_found_message(where: str, address: TableAddress, known: Iterable[TableAddress]) -> str:
    """Say that the catalog `where` has no such table, and name up to three of the known ones."""
    names = {f"{each.workspace}/{each.table}": each for each in known}
    close = get_close_matches(f"{address.workspace}/{address.table}", names, _MAX_SUGGESTIONS)
    similar = dict.fromkeys(names[name] for name in close)
    similar |= dict.fromkeys(other for other in names.values() if other.table == address.table)
    suggestions = " or ".join(map(str, list(similar)[:_MAX_SUGGESTIONS]))
    hint = f"did you mean {suggestions}? Otherwise" if similar else "to add it,"
    return (
        f"{where} has no table {address}; {hint} create it with "
        f'penstock.create("{address}"), or register the URI of an existing table'
    )
