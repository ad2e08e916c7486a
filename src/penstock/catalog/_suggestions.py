"""Addresses that a wrong one may stand for."""

from collections.abc import Iterable
from difflib import get_close_matches

from penstock.catalog._address import TableAddress

_MAX_SUGGESTIONS = 3


def not_found_message(catalog: object, address: TableAddress, known: Iterable[TableAddress]) -> str:
    """Say that a catalog has no such table, and name similar ones."""
    suggestions = similar_addresses(address, known)
    hint = f"did you mean {suggestions}? Otherwise" if suggestions else "to add it,"
    return (
        f"{catalog} has no table {address}; {hint} create it with "
        f'penstock.create("{address}"), or register the URI of an existing table'
    )


def dropped_message(address: TableAddress) -> str:
    """Say that a table was dropped, and how to bring it back."""
    return f"{address} was dropped; bring it back with `penstock restore {address}`"


def similar_addresses(address: TableAddress, known: Iterable[TableAddress]) -> str:
    """Addresses that may be meant, joined by "or"; empty if there is none."""
    names = {f"{each.workspace}/{each.table}": each for each in known}
    close = get_close_matches(f"{address.workspace}/{address.table}", names, _MAX_SUGGESTIONS)
    similar = dict.fromkeys(names[name] for name in close)
    similar |= dict.fromkeys(each for each in names.values() if each.table == address.table)
    return " or ".join(map(str, list(similar)[:_MAX_SUGGESTIONS]))
