"""What only the table itself can tell: its version, schema and size."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

import penstock
from penstock.errors import CorruptError, NotFoundError
from penstock.server.operations._errors import ApiError, Code, invalid, throttled
from penstock.storage import OverlayStore, RetryPolicy, Store, open_store
from penstock.types import ByteRange

_RETRY = RetryPolicy(deadline_s=10.0, attempt_timeout_s=5.0)
_MAX_CONCURRENT = 4
"""A store that does not answer must not occupy all threads of the server."""
_MAX_BYTES = 4 * 1024 * 1024
"""That are read to describe one table: while they are parsed, no other request of this process goes on."""
_lock = threading.Lock()
_opening: set[str] = set()
"""Ids of the keys for which a table is being opened."""


@dataclass(frozen=True)
class TableMetadata:
    """A version of a table."""

    version: int
    schema: dict[str, Any]
    stats: dict[str, int]


def is_declared_only(location: str, options: Mapping[str, str], *, key_id: str) -> bool:
    """Whether there is no table at a location yet."""
    with _opened(location, options, key_id) as store:
        return not penstock.exists(store)


def load_metadata(
    location: str, options: Mapping[str, str], *, key_id: str, version: int | None, tag: str | None, branch: str | None
) -> TableMetadata | None:
    """Open a table at a version; None if there is no table yet. Raises an `ApiError` if there is no such version."""
    with _opened(location, options, key_id) as store:
        if not penstock.exists(store):
            return None
        try:
            dataset = penstock.load(store, version=version, tag=tag, branch=branch)
        except NotFoundError as error:
            raise ApiError(404, Code.TABLE_VERSION_NOT_FOUND, str(error)) from error
        except CorruptError as error:
            raise invalid(str(error)) from error
        summary = dataset.summary()
        fields = [pa.field(field.name, field.kind.arrow_type, field.nullable) for field in dataset.schema]
        stats = {
            "num_rows": summary.rows,
            "num_deleted_rows": summary.deleted_rows,
            "num_fragments": summary.fragments,
            "num_bytes": summary.bytes,
        }
        number = int(summary.version.rpartition("@")[2])
        return TableMetadata(number, {"fields": [_field(each) for each in fields]}, stats)


class _BoundedStore(OverlayStore):
    """A store of which a limited number of bytes can be read: objects are a tenant's, memory is everyone's."""

    def __init__(self, base: Store) -> None:
        super().__init__(base, ())
        self._left = _MAX_BYTES
        self._lock = threading.Lock()

    def get(self, key: str, *, byte_range: ByteRange | None = None, etag: str | None = None) -> memoryview:
        """Read a range, and of a whole object no more than the size that was counted."""
        byte_range = byte_range or ByteRange(0, self.head(key).size)
        with self._lock:
            self._left -= byte_range.end - byte_range.start
            if self._left < 0:
                raise invalid("the table's metadata is too large for the server to load; open the table to read it")
        return super().get(key, byte_range=byte_range, etag=etag)

    get_many = Store.get_many
    get_parts = Store.get_parts


@contextmanager
def _opened(location: str, options: Mapping[str, str], key_id: str) -> Iterator[Store]:
    with _place(key_id):
        store = _BoundedStore(open_store(location, options=options, retry=_RETRY))
        try:
            yield store
        finally:
            store.close()


@contextmanager
def _place(key_id: str) -> Iterator[None]:
    """One of few places, one for each key; raises an `ApiError` at once: a thread that waits would serve nobody."""
    with _lock:
        if key_id in _opening:
            raise throttled(1.0)
        if len(_opening) >= _MAX_CONCURRENT:
            message = "too many tables are being opened; retry, or open the table yourself"
            raise ApiError(503, Code.SERVICE_UNAVAILABLE, message, {"retry-after": "1"})
        _opening.add(key_id)
    try:
        yield
    finally:
        with _lock:
            _opening.remove(key_id)


def _field(field: pa.Field) -> dict[str, Any]:
    return {"name": field.name, "nullable": field.nullable, "type": _data_type(field.type)}


def _data_type(data_type: pa.DataType) -> dict[str, Any]:
    if isinstance(data_type, pa.BaseExtensionType):
        return _data_type(data_type.storage_type)
    described: dict[str, Any] = {"type": _NAMES.get(str(data_type), str(data_type).partition("<")[0])}
    if data_type.num_fields:
        described["fields"] = [_field(data_type.field(index)) for index in range(data_type.num_fields)]
    if pa.types.is_fixed_size_list(data_type):
        described["length"] = data_type.list_size
    elif pa.types.is_fixed_size_binary(data_type):
        described["length"] = data_type.byte_width
    return described


_NAMES = {
    "string": "utf8",
    "large_string": "large_utf8",
    "halffloat": "float16",
    "float": "float32",
    "double": "float64",
}
"""Names of pyarrow that differ from those of the Arrow specification."""
