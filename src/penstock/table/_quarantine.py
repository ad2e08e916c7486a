"""Quarantine: rows that loaders leave out, by row id, with reasons; the rows themselves stay as they are."""

from collections.abc import Iterable, Mapping

import numpy as np

from penstock.errors import NotFoundError
from penstock.format import decode_quarantine, encode_quarantine, new_id
from penstock.plan import take_positions
from penstock.table._pages import Int64Array
from penstock.table._read import Reader
from penstock.table._stage import Stage


def read_quarantine(reader: Reader) -> dict[int, str]:
    """The list of a version as stored: reasons by row id, also of rows that were deleted since."""
    ref = reader.snapshot.quarantine
    if ref is None:
        return {}
    with reader.missing_as_corrupt():
        return decode_quarantine(ref, reader.store.get(ref.key), f"{reader.store.uri}/{ref.key}")


def quarantined_rows(reader: Reader) -> dict[int, str]:
    """The rows of a version that loaders leave out: reasons by row id."""
    listed = read_quarantine(reader)
    found = reader.positions_of(_as_ids(listed))
    return {id: reason for (id, reason), position in zip(listed.items(), found.tolist(), strict=True) if position >= 0}


def without_quarantined(reader: Reader, rows: range | Int64Array) -> range | Int64Array:
    """Positions without those of quarantined rows; the same object if there are none, since a range is fastest."""
    listed = read_quarantine(reader)
    if not listed:
        return rows
    positions = take_positions(rows, np.arange(len(rows)))
    left_out = np.isin(positions, reader.positions_of(_as_ids(listed)))
    return positions[~left_out] if left_out.any() else rows


def quarantine_rows(stage: Stage, reasons: Mapping[int, str]) -> None:
    """Stage rows to leave out; a new reason replaces the one of a row that is quarantined already."""
    listed = read_quarantine(stage.reader)
    if _store_list(stage, listed, {**listed, **reasons}):
        stage.changes.record("quarantine", quarantined=len(reasons.keys() - listed.keys()))


def release_rows(stage: Stage, ids: Iterable[int] | None) -> None:
    """Stage the release of some rows, or of all; raises `NotFoundError` for a row that is not quarantined."""
    listed = read_quarantine(stage.reader)
    released = set(listed if ids is None else ids)
    if missing := released - listed.keys():
        raise NotFoundError(f"row {min(missing)} is not quarantined; quarantined() lists the rows that are")
    if _store_list(stage, listed, {id: reason for id, reason in listed.items() if id not in released}):
        stage.changes.record("release", released=len(released))


def merge_quarantine(stage: Stage, base: Reader, theirs: Reader) -> None:
    """Stage what another side changed in the list since the base, row by row.

    Nothing conflicts: a row that one side quarantined, or gave another reason, stays quarantined if the other side
    released it, and of two reasons ours is kept.
    """
    if theirs.snapshot.quarantine == base.snapshot.quarantine:
        return
    before, our, their = (read_quarantine(reader) for reader in (base, stage.reader, theirs))
    merged = {}
    for id in our.keys() | their.keys():
        old, ours, other = before.get(id), our.get(id), their.get(id)
        kept = ours if other == old or (ours != old and ours is not None) else other
        if kept is not None:
            merged[id] = kept
    _store_list(stage, our, merged)


def _store_list(stage: Stage, before: Mapping[int, str], after: Mapping[int, str]) -> bool:
    """Store a list, if it differs, as an object of the next version; returns whether it does."""
    if after == before:
        return False
    ref = None
    if after:
        stage.intent.renew()
        ref, data = encode_quarantine(new_id(), after)
        stage.store.put(ref.key, data)
    stage.snapshot = stage.snapshot.with_quarantine(ref)
    return True


def _as_ids(listed: Mapping[int, str]) -> Int64Array:
    return np.fromiter(listed, np.int64, len(listed))
