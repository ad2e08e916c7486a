"""A table in memory, for results that are not rows of one stored table; equal values make equal tables everywhere."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from penstock.errors import InvalidInputError
from penstock.format import (
    MAX_INLINE_BYTES,
    TABLE_KEY,
    Column,
    Commit,
    Field,
    Fragment,
    Schema,
    Snapshot,
    TableInfo,
    commit_key,
    encode_snapshot,
    make_field,
    row_sizes,
)
from penstock.format.kinds import BadValueError, Kind
from penstock.history import Tree
from penstock.storage import MemoryStore, open_portable
from penstock.table._append import FileWriter, FragmentWriter
from penstock.table._computed import copied, derived_id, derived_int_id, storable, update_digest
from penstock.table._encode import from_arrow
from penstock.table._links import LinkContainers
from penstock.table._read import Reader
from penstock.types import RowRange

_BATCH_ROWS = 1 << 16
_OPERATION = "query"


def memory_table(columns: pa.Table, uri: str, *, kinds: Mapping[str, Kind] | None = None) -> Reader:
    """A table with these rows and the row ids 0, 1, 2, …; `uri` is its name in messages.

    `kinds` has the kinds that do not follow from an Arrow type, such as images. All ids derive from a
    digest of the content. Raises `InvalidInputError` for a name that no column can have, a type that cannot be stored,
    and a value of more than 16 MiB.
    """
    if repeated := [name for name, count in Counter(columns.column_names).items() if count > 1]:
        raise InvalidInputError(f"two columns are called {repeated[0]!r}; give one of them another name with AS")
    plain = storable(columns)
    declared = kinds or {}
    fields = [
        make_field(name, Column(declared.get(name) or column.type, column.null_count > 0))
        for name, column in zip(plain.column_names, plain.columns, strict=True)
    ]
    seed = _digest(fields, plain)
    fields = [replace(field, id=derived_int_id(seed, "field", field.name)) for field in fields]
    store = open_portable(uri, {})
    fragments = list(_write(store, fields, plain, seed))
    numbers = iter(range(1 << 62))
    tree = Tree(store, lambda: derived_id(seed, "manifest", next(numbers)))
    nodes = tree.save(tree.append((), fragments)) if fragments else ()
    tree.clear_unsaved()
    snapshot = Snapshot(Schema(tuple(fields)), nodes)
    commit = _publish(store, snapshot, seed)
    return Reader(store, tree, LinkContainers(False), snapshot, commit, name="result")


def is_memory_table(reader: Reader) -> bool:
    """Whether a reader reads a result in memory and not a stored table."""
    return reader.commit.operation == _OPERATION


def _arrays(fields: list[Field], table: pa.Table) -> Iterator[dict[str, pa.Array]]:
    """Columns as stored, in batches."""
    for start in range(0, len(table), _BATCH_ROWS):
        part = table.slice(start, _BATCH_ROWS)
        arrays = {}
        for field in fields:
            try:
                array = from_arrow(field.kind, part.column(field.name))
            except BadValueError as bad:
                raise InvalidInputError(f"column {field.name!r}, row {start + bad.index}: {bad.reason}") from None
            if (size := int(row_sizes(array).max())) > MAX_INLINE_BYTES:
                raise InvalidInputError(
                    f"column {field.name!r}: a value of {size} bytes is too large for a result in memory, whose limit"
                    " is 16 MiB; select _row_id instead, and read the rows from their table"
                )
            arrays[field.name] = copied(array, np.arange(len(array)))
        yield arrays


def _digest(fields: list[Field], table: pa.Table) -> bytes:
    seen = hashlib.blake2b(repr([(field.name, str(field)) for field in fields]).encode(), digest_size=32)
    seen.update(str(len(table)).encode())
    for arrays in _arrays(fields, table):
        for array in arrays.values():
            update_digest(seen, array)
    return seen.digest()


def _write(store: MemoryStore, fields: list[Field], table: pa.Table, seed: bytes) -> Iterator[Fragment]:
    """Write the fragments, and give them and their files ids that follow from the content."""
    with FileWriter(store) as files:
        writer = FragmentWriter(files, fields, _ConsecutiveIds())
        for arrays in _arrays(fields, table):
            writer.write({field.id: arrays[field.name] for field in fields})
        writer.close_fragment()
    for number, fragment in enumerate(writer.fragments):
        named = []
        for index, file in enumerate(fragment.files):
            known = replace(file, id=derived_id(seed, "file", number, index))
            store.put(known.key, store.get(file.key))
            store.delete([file.key])
            named.append(known)
        yield replace(fragment, id=derived_int_id(seed, "fragment", number), files=tuple(named))


def _publish(store: MemoryStore, snapshot: Snapshot, seed: bytes) -> Commit:
    """Store the rest of a table, so that leases and searches for newer versions find what they expect."""
    ref, data = encode_snapshot(derived_id(seed, "snapshot"), snapshot)
    store.put(ref.key, data)
    info = TableInfo(derived_id(seed, "table"), derived_id(seed, "branch"))
    commit = Commit(info.main, 0, derived_id(seed, "commit"), None, ref, 0, _OPERATION, rows=snapshot.live)
    store.put(commit_key(info.main, 0), commit.encode())
    store.put(TABLE_KEY, info.encode())
    return commit


class _ConsecutiveIds:
    """Row ids from 0 on."""

    def __init__(self) -> None:
        self._next = 0

    def allocate(self, count: int) -> tuple[RowRange, ...]:
        start, self._next = self._next, self._next + count
        return (RowRange(start, self._next),)
