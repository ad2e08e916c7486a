"""NumPy files: `.npy` with one array each, and `.npz` archives whose arrays are columns.

File names, sizes and shapes decide what is a row and what is a column:

- If there are more than 16 files and none is larger than 1 MiB, each file is one row. Otherwise the first axis of
  an array is the rows. `--as numpy-samples` and `--as numpy-rows` override this.
- `images.npy` and `labels.npy` are columns of the same rows. The last number in a name identifies the shard:
  `images_001.npy` belongs to `labels_001.npy` and follows `images_000.npy`. Files of another folder are shards too.
- If there are more than 16 such names, or their lengths differ, each file holds more rows of one column.
- A single column is called `data`; the columns of an archive keep their names.
"""

import io
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from penstock.errors import InvalidInputError, SampleError, SourceChangedError
from penstock.format.kinds import Kind
from penstock.ingest._reader import MAX_VALUE_BYTES, SourceReader
from penstock.ingest._source import Reject, Row, Source, SourceItem, SourceScan, evenly_spaced, suffix
from penstock.ingest.sources._arrays import (
    PREFETCH_BYTES,
    Array,
    ArraySlice,
    check_fit,
    check_together,
    common_kind,
    rejected,
    row_slices,
    to_native,
)
from penstock.ingest.sources._npy import NPY_HEAD_BYTES, parse_npy
from penstock.ingest.sources._npz import ArchiveFile, Member, archive_rows, open_archive, read_member
from penstock.storage import ObjectInfo, Prefetch, read_ahead, thread_map

_FEW_FILES = 16
_SMALL_BYTES = 1 << 20
_MAX_COLUMNS = 16
_SAMPLED_ARRAYS, _SAMPLED_ARCHIVES = 1024, 32
"""How many files are inspected to decide the columns."""
_NUMBERED = re.compile(r"(?P<before>.*?)(?P<number>[0-9]+)(-of-[0-9]+)?(?P<after>[^0-9]*)", re.DOTALL)

Shard = dict[str, ObjectInfo]
"""Column to file, for files that hold the same rows."""


@dataclass(frozen=True)
class _Arrays(SourceScan):
    files: Sequence[ObjectInfo]
    columns: Mapping[str, Kind]
    samples: bool
    shards: Mapping[str, Shard]
    """The shard of each representative file; empty if there is one column."""

    @property
    def companions(self) -> Mapping[str, Collection[str]]:  # type: ignore[override]
        return {key: [file.key for file in shard.values() if file.key != key] for key, shard in self.shards.items()}

    def rows(self, reader: SourceReader, files: Sequence[ObjectInfo]) -> Iterator[SourceItem]:
        if self.samples:
            yield from self._samples(reader, files)
            return
        prefetch = Prefetch(reader.max_concurrency, PREFETCH_BYTES)
        plans = read_ahead(partial(self._plan, reader), files, prefetch=prefetch, size=lambda _: NPY_HEAD_BYTES)
        slices = chain.from_iterable(plans)
        yield from read_ahead(lambda part: part.read(), slices, prefetch=prefetch, size=lambda part: part.nbytes)

    def _shard(self, file: ObjectInfo) -> Shard:
        return self.shards.get(file.key) or {next(iter(self.columns)): file}

    def _plan(self, reader: SourceReader, file: ObjectInfo) -> Iterator[ArraySlice]:
        shard = self._shard(file)
        try:
            arrays = {column: _read_header(reader, its) for column, its in shard.items()}
            check_fit(arrays, self.columns)
        except (SampleError, SourceChangedError) as error:
            return iter([rejected(file.key, str(error))])
        return row_slices(reader, file.key, {column: (shard[column], arrays[column]) for column in shard}, self.columns)

    def _samples(self, reader: SourceReader, files: Sequence[ObjectInfo]) -> Iterator[SourceItem]:
        data = reader.read_many([its for file in files for its in self._shard(file).values()], _fits_one_value)
        for file in files:
            shard = self._shard(file)
            yield _sample(file, self.columns, {column: next(data)[1] for column in shard})


@dataclass(frozen=True)
class _Archives(SourceScan):
    files: Sequence[ObjectInfo]
    columns: Mapping[str, Kind]
    samples: bool

    def rows(self, reader: SourceReader, files: Sequence[ObjectInfo]) -> Iterator[SourceItem]:
        if not self.samples:
            for file in files:
                yield from archive_rows(file.key, partial(_open_archive, reader, file), self.columns)
            return
        for file, data in reader.read_many(files, _fits_one_value):
            try:
                if isinstance(data, Exception):
                    raise data
                arrays = _as_one_row(_selected(reader, open_archive(io.BytesIO(data), file.size)))
                check_fit({name: array for name, (array, _) in arrays.items()}, self.columns)
                values = {
                    name: array.from_bytes(read_member(name, member, array.nbytes))
                    for name, (array, member) in arrays.items()
                }
                yield Row(file.key, {name: to_native(value)[0] for name, value in values.items()})
            except (SampleError, SourceChangedError, ValueError) as error:
                yield Reject(file.key, str(error))


def _sample(file: ObjectInfo, kinds: Mapping[str, Kind], data: Mapping[str, memoryview | Exception]) -> SourceItem:
    try:
        arrays: dict[str, Array] = {}
        values: dict[str, Any] = {}
        for column, its in data.items():
            if isinstance(its, Exception):
                raise its
            array = arrays[column] = _check_whole(parse_npy(its[:NPY_HEAD_BYTES]), len(its)).as_one_row()
            values[column] = its[array.start :]
        check_fit(arrays, kinds)
        return Row(
            file.key, {column: to_native(array.from_bytes(values[column]))[0] for column, array in arrays.items()}
        )
    except (SampleError, SourceChangedError, ValueError) as error:
        return Reject(file.key, str(error))


def _fits_one_value(file: ObjectInfo) -> bool:
    return file.size <= MAX_VALUE_BYTES


def _check_whole(array: Array, size: int) -> Array:
    if not array.dtype.hasobject and array.start + array.nbytes != size:
        raise SampleError(
            f"it has {size:,} bytes, and its header declares {array.start + array.nbytes:,}: it is truncated, or holds"
            " more than one array"
        )
    return array


def _read_header(reader: SourceReader, file: ObjectInfo) -> Array:
    try:
        return _check_whole(parse_npy(reader.read(file, 0, min(file.size, NPY_HEAD_BYTES))), file.size)
    except SampleError as error:
        raise SampleError(f"{file.key}: {error}") from None


def _open_archive(reader: SourceReader, file: ObjectInfo) -> dict[str, Member]:
    return _selected(reader, open_archive(ArchiveFile(reader, file), file.size))


def _selected(reader: SourceReader, archive: dict[str, Member]) -> dict[str, Member]:
    return {name: member for name, member in archive.items() if reader.selects(name)} or archive


def _as_one_row(archive: Mapping[str, Member]) -> dict[str, Member]:
    return {name: (array.as_one_row(), member) for name, (array, member) in archive.items()}


def _open(reader: SourceReader, files: Sequence[ObjectInfo], samples: bool | None = None) -> SourceScan:
    arrays = [file for file in files if suffix(file.key) == ".npy"]
    archives = [file for file in files if suffix(file.key) == ".npz"]
    chosen = arrays or archives
    if not chosen or (arrays and archives):
        found = "both .npy and .npz files; ingest them separately" if chosen else "no .npy or .npz file"
        raise InvalidInputError(f"{reader.store.uri} holds {found}")
    likely = len(chosen) > _FEW_FILES and max(file.size for file in chosen) <= _SMALL_BYTES
    if arrays:
        return _open_arrays(reader, chosen, likely if samples is None else samples)
    if samples is not None or likely:
        return _open_archives(reader, chosen, likely if samples is None else samples)
    try:
        return _open_archives(reader, chosen, False)
    except InvalidInputError:
        try:
            return _open_archives(reader, chosen, True)  # arrays that have no rows in common are fields of one sample
        except InvalidInputError:
            pass
        raise


def _open_archives(reader: SourceReader, files: Sequence[ObjectInfo], samples: bool) -> SourceScan:
    def inspect(file: ObjectInfo) -> dict[str, Array] | Exception:
        try:
            archive = _open_archive(reader, file)
            arrays = {name: array for name, (array, _) in (_as_one_row(archive) if samples else archive).items()}
            check_together(arrays)
        except (SampleError, SourceChangedError) as error:
            return error
        return arrays

    inspected = thread_map(inspect, evenly_spaced(files, _SAMPLED_ARCHIVES), max_workers=reader.max_concurrency)
    good = [found for found in inspected if not isinstance(found, Exception)]
    if not good:
        raise InvalidInputError(f"{reader.uri(files[0].key)}: {inspected[0]}")
    [(names, _)] = Counter(map(frozenset, good)).most_common(1)
    usual = [found for found in good if found.keys() == names]
    kinds = {name: common_kind(name, [found[name] for found in usual]) for name in usual[0]}
    return _Archives(files, kinds, samples)


def _open_arrays(reader: SourceReader, files: Sequence[ObjectInfo], samples: bool) -> SourceScan:
    headers: dict[str, Array | Exception] = {}

    def inspect(shards: Sequence[Shard]) -> list[dict[str, Array]]:
        """The arrays of those shards whose headers can be read."""
        new = [file for shard in shards for file in shard.values() if file.key not in headers]
        for file, found in zip(new, thread_map(read, new, max_workers=reader.max_concurrency), strict=True):
            headers[file.key] = found
        read_shards = [{column: headers[file.key] for column, file in shard.items()} for shard in shards]
        return [
            _arrays(shard) for shard in read_shards if not any(isinstance(one, Exception) for one in shard.values())
        ]

    def read(file: ObjectInfo) -> Array | Exception:
        try:
            header = _read_header(reader, file)
            return header.as_one_row() if samples else header
        except (SampleError, SourceChangedError) as error:
            return error

    for group in (_by_number, _by_name, _by_file):
        shards = group(files)
        columns = list(dict.fromkeys(column for shard in shards for column in shard))
        complete = [shard for shard in shards if len(shard) == len(columns)]
        if not 0 < len(columns) <= _MAX_COLUMNS or 2 * len(complete) < len(shards):
            continue
        inspected = inspect(evenly_spaced(complete, _SAMPLED_ARRAYS // len(columns)))
        good = [shard for shard in inspected if _are_columns(shard)]
        if 2 * len(good) >= max(1, len(inspected)) and (samples or group is not _by_file or _are_alike(good)):
            kinds = {column: common_kind(column, [shard[column] for shard in good]) for column in columns}
            return _scan(shards, kinds, samples)
    raise InvalidInputError(f"{reader.store.uri} cannot be mapped to columns: {_reason(headers)}")


def _arrays(headers: Mapping[str, Array | Exception]) -> dict[str, Array]:
    return {column: header for column, header in headers.items() if isinstance(header, Array)}


def _are_columns(arrays: Mapping[str, Array]) -> bool:
    try:
        check_together(arrays)
    except SampleError:
        return False
    return True


def _are_alike(shards: Sequence[Mapping[str, Array]]) -> bool:
    """Whether most arrays have the same dtype and row shape, so that they can be parts of one column."""
    kinds = Counter((array.dtype, array.row_shape) for shard in shards for array in shard.values())
    return 2 * max(kinds.values()) > kinds.total()


def _reason(headers: Mapping[str, Array | Exception]) -> str:
    arrays: dict[str, Array] = {}
    for key, header in headers.items():
        if isinstance(header, Exception):
            return str(header)
        if (problem := header.problem()) is not None:
            return f"{key}: {problem}"
        arrays[key] = header
    shapes = ", ".join(f"{key} {array.shape}" for key, array in list(arrays.items())[:8])
    return (
        f"its arrays are neither columns of the same rows nor parts of one column ({shapes}); put each table into"
        " a separate folder"
    )


def _scan(shards: Sequence[Shard], kinds: Mapping[str, Kind], samples: bool) -> SourceScan:
    if len(kinds) == 1:
        [kind] = kinds.values()
        return _Arrays([file for shard in shards for file in shard.values()], {"data": kind}, samples, {})
    files = [_representative(list(shard.values())) for shard in shards]
    return _Arrays(files, kinds, samples, {file.key: shard for file, shard in zip(files, shards, strict=True)})


def _representative(files: Sequence[ObjectInfo]) -> ObjectInfo:
    """One `ObjectInfo` that represents the files of a shard: a change of any of them changes it."""
    etags = None if any(file.etag is None for file in files) else " ".join(str(file.etag) for file in files)
    return ObjectInfo(
        min(file.key for file in files),
        sum(file.size for file in files),
        etags,
        max(file.modified_s for file in files),
    )


def _by_number(files: Sequence[ObjectInfo]) -> list[Shard]:
    shards: dict[tuple[str, int, str], Shard] = {}
    for file in files:
        folder, stem = _split(file.key)
        found = _NUMBERED.fullmatch(stem)
        number, column = "", stem
        if found is not None:
            number = found["number"].lstrip("0") or "0"
            column = "_".join(part for part in (found["before"].strip("_-. "), found["after"].strip("_-. ")) if part)
        shard = shards.setdefault((folder, len(number), number), {})
        if shard.setdefault(column or "data", file) is not file:
            return []  # two files share shard and column: numbers do not identify shards
    return [shards[order] for order in sorted(shards)]


def _by_name(files: Sequence[ObjectInfo]) -> list[Shard]:
    shards: dict[str, Shard] = {}
    for file in files:
        folder, stem = _split(file.key)
        shards.setdefault(folder, {})[stem] = file
    return list(shards.values())


def _by_file(files: Sequence[ObjectInfo]) -> list[Shard]:
    return [{"data": file} for file in files]


def _split(key: str) -> tuple[str, str]:
    folder, _, name = key.rpartition("/")
    return folder, name.rpartition(".")[0]


NUMPY = Source(
    "numpy",
    "numpy arrays (.npy, .npz): the first axis is rows, or each of many small files is a row",
    extensions=(".npy", ".npz"),
    recognise=lambda listing: listing.has_mostly((".npy", ".npz")),
    open=_open,
)
NUMPY_ROWS = Source(
    "numpy-rows",
    "numpy arrays (.npy, .npz) whose first axis is rows",
    extensions=(".npy", ".npz"),
    recognise=lambda _: False,
    open=partial(_open, samples=False),
)
NUMPY_SAMPLES = Source(
    "numpy-samples",
    "numpy arrays (.npy, .npz): each file is a row",
    extensions=(".npy", ".npz"),
    recognise=lambda _: False,
    open=partial(_open, samples=True),
)
