"""Compute the values of a column in parts: in worker processes if that is worthwhile, and staged for a later call.

A part is some rows of one fragment. Its key is a digest of the fragment, of the files that hold its inputs, and of the
function, so that the parts of a call that was interrupted fit a later call on any version that has these rows.
"""

import hashlib
import inspect
import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa

from penstock.errors import CorruptError, InvalidInputError, PenstockError, StorageError
from penstock.format import BLOB_REFERENCE, Field, Fragment, crc32c, infer_schema, new_int_id
from penstock.format.kinds import Linked, Values
from penstock.history import store_time
from penstock.runners import can_travel, map_in_processes
from penstock.storage import Store, thread_map
from penstock.table._encode import Encoder
from penstock.table._read import ROW_ID, Reader, as_batch

PART_ROWS = 1024
STAGE_EVERY_S = 20.0
_WORTHWHILE_S = 5.0
"""Expected seconds of work from which on worker processes are started."""
_STAGED_LIFETIME_S = 5 * 86400.0
"""Less than the time after which a vacuum may remove blobs that nothing refers to."""
_CHECKSUM_BYTES = 4
_MAX_UNSAVED_BYTES = 128 << 20

Progress = Callable[[int, int], None]
"""Called with the rows done and the rows in all."""


@dataclass(frozen=True)
class ComputeOptions:
    """How a column is computed."""

    inputs: Sequence[str] | None
    """The columns that the function gets; None for all."""
    num_workers: int | None
    """Worker processes; None for as many as `cores` if the work is worth it, 1 or less for none."""
    cores: int
    progress: Progress
    stage_every_s: float = STAGE_EVERY_S


@dataclass(frozen=True)
class Part:
    """Some rows of a fragment."""

    fragment: int
    """Index of the fragment."""
    number: int
    first: int
    """Position of its first row."""
    rows: int
    key: str


@dataclass(frozen=True, eq=False)
class PartValues:
    """The encoded values of a part."""

    values: pa.Array
    references: pa.Array | None
    """Of blobs."""
    other_shape: bool
    containers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PartJob:
    """Computes and encodes parts; travels to worker processes."""

    reader: Reader
    name: str
    field: Field | None
    """None until it is inferred from the first values."""
    source: Callable[[Any], Any]
    """From positions to values."""

    def values(self, part: Part) -> Any:
        found = self.source(np.arange(part.first, part.first + part.rows))
        if len(found) != part.rows:
            raise InvalidInputError(f"column {self.name!r}: {part.rows} rows, but {len(found)} values")
        return found

    def __call__(self, part: Part) -> PartValues:
        return self.encode(part, self.values(part))

    def encode(self, part: Part, values: Any) -> PartValues:
        assert self.field is not None
        encoder = Encoder(self.reader.store, self.reader.containers, {}, [])
        with encoder.discard_on_error():
            arrays = encoder.column(self.field, values, rows=part.rows, first_row=part.first)
        return PartValues(
            arrays[self.field.id], arrays.get(-self.field.id), bool(encoder.other_shapes), encoder.new_containers
        )


def compute_values(
    reader: Reader, compute: Callable[[dict[str, Values]], Any], names: Sequence[str], positions: Any
) -> Any:
    """The function's values for some rows."""
    return compute(as_batch(reader.columns(names, [positions])[0]))


def split_fragments(reader: Reader, fragments: Sequence[Fragment], seed: bytes, inputs: Sequence[str]) -> list[Part]:
    """The parts of all rows, in order."""
    ids = [reader.snapshot.schema[name].id for name in inputs if name != ROW_ID]
    parts, first = [], 0
    for index, fragment in enumerate(fragments):
        seen = hashlib.blake2b(seed, digest_size=16)
        seen.update(repr((fragment.id, sorted({file.id for id in ids for file in fragment.files_of(id)}))).encode())
        seen.update(np.packbits(fragment.deleted_rows).tobytes())
        for number, start in enumerate(range(0, fragment.live, PART_ROWS)):
            rows = min(PART_ROWS, fragment.live - start)
            parts.append(Part(index, number, first + start, rows, f"{seen.hexdigest()}-{number:08}"))
        first += fragment.live
    return parts


def function_digest(function: Callable[..., Any], *context: object) -> bytes | None:
    """A digest of a function with what it refers to, and of the file that defines it; None if there is none."""
    try:
        seen = hashlib.blake2b(cloudpickle.dumps(function), digest_size=32)
    except Exception:
        return None
    inner = function
    while isinstance(inner, partial):
        inner = inner.func
    inner = inner if inspect.isroutine(inner) else type(inner)
    if getattr(inner, "__module__", "__main__") != "__main__":
        with suppress(OSError, TypeError):  # pickled by name, so its code is not in there
            seen.update(Path(inspect.getfile(inner)).read_bytes())
    seen.update(repr(context).encode())
    return seen.digest()


class StagedParts:
    """Finished parts of a call, stored until it ends; without a digest of the function, none are."""

    def __init__(self, store: Store, seed: bytes | None, every_s: float) -> None:
        self._store, self._every_s = store, every_s
        self._prefix = None if seed is None else f"ingest/waiting/{hashlib.blake2b(seed, digest_size=16).hexdigest()}/"
        self._unsaved: dict[str, bytes] = {}
        self._unsaved_bytes = 0
        self._saved_s, self._has_saved = time.monotonic(), False
        self.known: set[str] = set()
        """Keys of the parts of an earlier call."""

    def find(self) -> None:
        """Find the parts of an earlier call."""
        if self._prefix is None:
            return
        found = [*self._store.list(self._prefix)]
        if found:
            oldest = store_time(self._store) - _STAGED_LIFETIME_S
            self.known = {item.key.removeprefix(self._prefix) for item in found if item.modified_s > oldest}

    def add(self, part: Part, field: Field, values: PartValues) -> None:
        if self._prefix is None or values.containers:
            return
        self._unsaved[part.key] = data = _encode_part(field, values)
        self._unsaved_bytes += len(data)
        if time.monotonic() - self._saved_s >= self._every_s or self._unsaved_bytes > _MAX_UNSAVED_BYTES:
            self.save()

    def save(self) -> None:
        """Store the parts that are finished."""
        items = [*self._unsaved.items()]
        self._unsaved, self._unsaved_bytes = {}, 0
        self._has_saved |= bool(items)
        thread_map(lambda item: self._store.put(f"{self._prefix}{item[0]}", item[1]), items, max_workers=8)
        self._saved_s = time.monotonic()

    def load(self, part: Part, known: Field | None) -> tuple[Field, PartValues] | None:
        """A part, and the field of the column; None if it is missing, damaged or not of that field."""
        if part.key not in self.known:
            return None
        try:
            stored, values = _decode_part(self._store.get(f"{self._prefix}{part.key}"))
        except (PenstockError, KeyError, TypeError, ValueError, pa.ArrowException):
            return None
        found = known or stored
        fits = values.values.type == found.kind.arrow_type and len(values.values) == part.rows
        return (found, values) if fits and stored.kind == found.kind else None

    def clear(self) -> None:
        """Remove all parts; what is left expires."""
        if self._prefix is not None and (self.known or self._has_saved):
            with suppress(StorageError):
                self._store.delete([item.key for item in self._store.list(self._prefix)])


def _encode_part(field: Field, values: PartValues) -> bytes:
    references = pa.nulls(len(values.values), BLOB_REFERENCE) if values.references is None else values.references
    about = {"field": field.to_json(), "other_shape": values.other_shape, "blobs": values.references is not None}
    schema = pa.schema(
        [("values", values.values.type), ("references", BLOB_REFERENCE)], metadata={"about": json.dumps(about)}
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays([values.values, references], schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data + crc32c(data).to_bytes(_CHECKSUM_BYTES, "little")


def _decode_part(stored: Any) -> tuple[Field, PartValues]:
    data = bytes(stored)
    body, checksum = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
    if crc32c(body).to_bytes(_CHECKSUM_BYTES, "little") != checksum:
        raise CorruptError("a staged part does not match its checksum")
    with pa.ipc.open_stream(body) as reader:
        about = json.loads(reader.schema.metadata[b"about"])
        batch = reader.read_next_batch()
        batch.validate(full=True)
    references = batch.column("references") if about["blobs"] else None
    known = replace(Field.from_json(about["field"]), id=new_int_id())
    return known, PartValues(batch.column("values"), references, bool(about["other_shape"]))


def run_parts(
    job: PartJob, parts: Sequence[Part], staged: StagedParts, options: ComputeOptions
) -> Generator[tuple[Field, Part, PartValues], None, None]:
    """The values of all parts, as they are finished, with the field of the column."""
    rows, done = sum(part.rows for part in parts), 0
    left: list[Part] = []
    options.progress(done, rows)
    for part in parts:
        loaded = staged.load(part, job.field)
        if loaded is None:
            left.append(part)
            continue
        job = replace(job, field=loaded[0])
        done += part.rows
        options.progress(done, rows)
        yield loaded[0], part, loaded[1]
    try:
        for part, values, known in _computed(job, left, options):
            staged.add(part, known, values)
            done += part.rows
            options.progress(done, rows)
            yield known, part, values
    except BaseException:
        with suppress(StorageError):
            staged.save()
        raise


def _computed(job: PartJob, parts: Sequence[Part], options: ComputeOptions) -> Iterator[tuple[Part, PartValues, Field]]:
    """Compute parts here, or the first one here and the others in processes."""
    rest, started = iter(parts), time.monotonic()
    first = next(rest, None)
    if first is None:
        return
    values = job.values(first)
    if job.field is None:
        job = replace(job, field=infer_schema({job.name: values}).fields[0])
    assert job.field is not None
    yield first, job.encode(first, values), job.field
    expected_s = (time.monotonic() - started) * (len(parts) - 1)
    num_workers = min(_num_workers(job, options, expected_s), len(parts) - 1)
    found: Iterable[tuple[Part, PartValues]] = ((part, job(part)) for part in rest)
    if num_workers > 1:
        found = map_in_processes(job, rest, num_workers)
    for part, encoded in found:
        yield part, encoded, job.field


def _num_workers(job: PartJob, options: ComputeOptions, expected_s: float) -> int:
    """The number of processes; 1 if another process cannot see the table or the function, or if it is not worth it."""
    assert job.field is not None
    if job.reader.store.is_process_local or isinstance(job.field.kind, Linked) or not can_travel(job):
        return 1
    if options.num_workers is not None:
        return options.num_workers
    return options.cores if expected_s > _WORTHWHILE_S else 1
