"""NumPy's files: `.npy`, one array each, and `.npz`, archives of arrays that are columns.

What is a row and what is a column follows from names, sizes and shapes alone:

- Where there are more than 16 files and none is larger than 1 MiB, each file is one row. Otherwise the first axis of
  an array is the rows. `--as numpy-samples` and `--as numpy-rows` settle it.
- `images.npy` beside `labels.npy` are columns of the same rows. The last number in a name tells shards apart:
  `images_001.npy` goes with `labels_001.npy` and follows `images_000.npy`. Files of another folder are shards too.
- Where there are more than 16 such names, or their lengths differ, each file holds more rows of one column.
- A column that is the only one is called `data`; the columns of an archive have their own names.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from penstock.errors import InvalidInputError, SampleError, SourceChanged
from penstock.format.kinds import Kind
from penstock.ingest._bucket import MAX_VALUE_BYTES, Bucket
from penstock.ingest._source import Found, Reading, Reject, Row, Source, spread, suffix
from penstock.ingest.sources._arrays import (
    Array,
    Piece,
    ahead,
    check_fit,
    check_together,
    common_kind,
    pieces,
    plain,
    refused,
)
from penstock.ingest.sources._npz import Member, archive_rows, open_archive
from penstock.storage import ObjectInfo, run_all
from penstock.types import Buffer

_FEW_FILES = 16
_SMALL_BYTES = 1 << 20
_MOST_COLUMNS = 16
_LOOKED_AT, _LOOKED_INTO = 1024, 32
"""How many arrays, and how many archives, settle what the columns are."""
_HEAD_BYTES = 16 << 10
_MAX_AXES = 32
_DESCR = re.compile(r"""['"]descr['"]\s*:\s*['"]([<>|=]?(?:[biufcSUVMm][0-9]{1,9}(?:\[\w+\])?|O[48]?))['"]""")
_ORDER = re.compile(r"""['"]fortran_order['"]\s*:\s*(True|False)\b""")
_SHAPE = re.compile(r"""['"]shape['"]\s*:\s*\(((?:\s*[0-9]{1,19}L?\s*,)*\s*(?:[0-9]{1,19}L?\s*)?)\)""")
_STRUCTURED = re.compile(r"""['"]descr['"]\s*:\s*[\[(]""")
_NUMBERED = re.compile(r"(?P<before>.*?)(?P<number>[0-9]+)(-of-[0-9]+)?(?P<after>[^0-9]*)", re.DOTALL)

Shard = dict[str, ObjectInfo]
"""The files of the same rows, by column."""


@dataclass(frozen=True)
class _Arrays(Reading):
    files: Sequence[ObjectInfo]
    columns: Mapping[str, Kind]
    samples: bool
    shards: Mapping[str, Shard]
    """The files of all columns, by the key of the one that stands for them, where there are several columns."""

    def rows(self, bucket: Bucket, files: Sequence[ObjectInfo]) -> Iterator[Found]:
        if self.samples:
            yield from self._samples(bucket, files)
            return
        plans = ahead(((_HEAD_BYTES, partial(self._plan, bucket, file)) for file in files), bucket.readers)
        yield from ahead((piece for plan in plans for piece in plan), bucket.readers)

    def _shard(self, file: ObjectInfo) -> Shard:
        return self.shards.get(file.key) or {next(iter(self.columns)): file}

    def _plan(self, bucket: Bucket, file: ObjectInfo) -> Iterator[Piece]:
        shard = self._shard(file)
        try:
            arrays = {column: _head(bucket, its) for column, its in shard.items()}
            check_fit(arrays, self.columns)
        except (SampleError, SourceChanged) as error:
            return iter([refused(file.key, str(error))])
        return pieces(bucket, file.key, {column: (shard[column], arrays[column]) for column in shard}, self.columns)

    def _samples(self, bucket: Bucket, files: Sequence[ObjectInfo]) -> Iterator[Found]:
        data = bucket.each([its for file in files for its in self._shard(file).values()], _can_be_a_value)
        for file in files:
            shard = self._shard(file)
            yield _sample(file, self.columns, {column: next(data)[1] for column in shard})


@dataclass(frozen=True)
class _Archives(Reading):
    files: Sequence[ObjectInfo]
    columns: Mapping[str, Kind]
    samples: bool

    def rows(self, bucket: Bucket, files: Sequence[ObjectInfo]) -> Iterator[Found]:
        if not self.samples:
            for file in files:
                yield from archive_rows(file.key, partial(_open_archive, bucket, file), self.columns)
            return
        for file, data in bucket.each(files, _can_be_a_value):
            try:
                if isinstance(data, Exception):
                    raise data
                arrays = _one_row(open_archive(_slicer(data), file.size, parse_npy))
                check_fit({name: array for name, (array, _) in arrays.items()}, self.columns)
                values = {name: array.of(member.read(array.nbytes)) for name, (array, member) in arrays.items()}
                for _, member in arrays.values():
                    member.check()
                yield Row(file.key, {name: plain(value)[0] for name, value in values.items()})
            except (SampleError, SourceChanged, ValueError) as error:
                yield Reject(file.key, str(error))


def _sample(file: ObjectInfo, kinds: Mapping[str, Kind], data: Mapping[str, memoryview | Exception]) -> Found:
    try:
        arrays: dict[str, Array] = {}
        values: dict[str, Any] = {}
        for column, its in data.items():
            if isinstance(its, Exception):
                raise its
            array = arrays[column] = _whole(parse_npy(its[:_HEAD_BYTES]), len(its)).as_one_row()
            values[column] = its[array.start :]
        check_fit(arrays, kinds)
        return Row(file.key, {column: plain(array.of(values[column]))[0] for column, array in arrays.items()})
    except (SampleError, SourceChanged, ValueError) as error:
        return Reject(file.key, str(error))


def _can_be_a_value(file: ObjectInfo) -> bool:
    return file.size <= MAX_VALUE_BYTES


def parse_npy(head: Buffer) -> Array:
    """What the beginning of a `.npy` file says of it.

    A header is a Python literal. numpy evaluates it, which Python 3.11 cannot do in several threads at once (it fails
    now and then with a SystemError), and which one made to harm can turn against us; the little that can be in it is
    found without.
    """
    head = bytes(head)
    size = {1: 2, 2: 4, 3: 4}.get(head[6]) if len(head) >= 12 and head.startswith(b"\x93NUMPY") else None
    if size is None:
        raise SampleError("it is not a .npy file, or was cut off")
    start = 8 + size + int.from_bytes(head[8 : 8 + size], "little")
    if start > len(head):
        raise SampleError(f"its header would end at byte {start:,}: it was cut off, or is no .npy file")
    text = head[8 + size : start].decode("latin1")
    descr, order, shape = (pattern.search(text) for pattern in (_DESCR, _ORDER, _SHAPE))
    if descr is None or order is None or shape is None:
        told = "speaks of a structured array" if _STRUCTURED.search(text) else f"cannot be understood: {text[:100]!r}"
        raise SampleError(f"its header {told}; plain arrays can be taken")
    lengths = tuple(int(length.rstrip("L ")) for length in shape[1].split(",") if length.strip())
    try:
        dtype = np.dtype(descr[1])
    except (TypeError, ValueError, OverflowError) as error:
        raise SampleError(f"its header gives a type that numpy has not: {error}") from None
    if len(lengths) > _MAX_AXES:
        raise SampleError(f"its header gives {len(lengths)} axes; {_MAX_AXES} are the most")
    return Array(dtype, lengths, start, order[1] == "True")


def _whole(array: Array, size: int) -> Array:
    if not array.dtype.hasobject and array.start + array.nbytes != size:
        raise SampleError(
            f"it has {size:,} bytes, and its header speaks of {array.start + array.nbytes:,}: it was cut off, or holds"
            " more than one array"
        )
    return array


def _head(bucket: Bucket, file: ObjectInfo) -> Array:
    try:
        return _whole(parse_npy(bucket.read(file, 0, min(file.size, _HEAD_BYTES))), file.size)
    except SampleError as error:
        raise SampleError(f"{file.key}: {error}") from None


def _open_archive(bucket: Bucket, file: ObjectInfo) -> dict[str, tuple[Array, Member]]:
    return open_archive(lambda start, length: bucket.read(file, start, length), file.size, parse_npy)


def _slicer(data: memoryview) -> Callable[[int, int], memoryview]:
    return lambda start, length: data[start : start + length]


def _one_row(archive: Mapping[str, tuple[Array, Member]]) -> dict[str, tuple[Array, Member]]:
    return {name: (array.as_one_row(), member) for name, (array, member) in archive.items()}


def _open(bucket: Bucket, files: Sequence[ObjectInfo], samples: bool | None = None) -> Reading:
    arrays = [file for file in files if suffix(file.key) == ".npy"]
    archives = [file for file in files if suffix(file.key) == ".npz"]
    mine = arrays or archives
    if not mine or (arrays and archives):
        found = "both .npy and .npz files; take them in one after the other" if mine else "no .npy or .npz file"
        raise InvalidInputError(f"{bucket.store.uri} holds {found}")
    if samples is None:
        samples = len(mine) > _FEW_FILES and max(file.size for file in mine) <= _SMALL_BYTES
    return (_open_arrays if arrays else _open_archives)(bucket, mine, samples)


def _open_archives(bucket: Bucket, files: Sequence[ObjectInfo], samples: bool) -> Reading:
    def look(file: ObjectInfo) -> dict[str, Array] | Exception:
        try:
            archive = _open_archive(bucket, file)
            arrays = {name: array for name, (array, _) in (_one_row(archive) if samples else archive).items()}
            check_together(arrays)
        except (SampleError, SourceChanged) as error:
            return error
        return arrays

    looks = run_all(look, spread(files, _LOOKED_INTO), max_workers=bucket.readers)
    good = [found for found in looks if not isinstance(found, Exception)]
    if not good:
        raise InvalidInputError(f"{bucket.uri(files[0].key)}: {looks[0]}")
    [(names, _)] = Counter(map(frozenset, good)).most_common(1)
    usual = [found for found in good if found.keys() == names]
    kinds = {name: common_kind(name, [found[name] for found in usual]) for name in usual[0]}
    return _Archives(files, kinds, samples)


def _open_arrays(bucket: Bucket, files: Sequence[ObjectInfo], samples: bool) -> Reading:
    heads: dict[str, Array | Exception] = {}

    def look(shards: Sequence[Shard]) -> list[dict[str, Array]]:
        """What can be read of some shards' heads."""
        new = [file for shard in shards for file in shard.values() if file.key not in heads]
        for file, found in zip(new, run_all(read, new, max_workers=bucket.readers), strict=True):
            heads[file.key] = found
        looks = [{column: heads[file.key] for column, file in shard.items()} for shard in shards]
        return [_arrays(shard) for shard in looks if not any(isinstance(head, Exception) for head in shard.values())]

    def read(file: ObjectInfo) -> Array | Exception:
        try:
            head = _head(bucket, file)
            return head.as_one_row() if samples else head
        except (SampleError, SourceChanged) as error:
            return error

    for group in (_by_number, _by_name, _by_file):
        shards = group(files)
        columns = list(dict.fromkeys(column for shard in shards for column in shard))
        complete = [shard for shard in shards if len(shard) == len(columns)]
        if not 0 < len(columns) <= _MOST_COLUMNS or 2 * len(complete) < len(shards):
            continue
        looks = look(spread(complete, _LOOKED_AT // len(columns)))
        good = [shard for shard in looks if _goes_together(shard)]
        if 2 * len(good) >= max(1, len(looks)) and (samples or group is not _by_file or _are_alike(good)):
            kinds = {column: common_kind(column, [shard[column] for shard in good]) for column in columns}
            return _reading(shards, kinds, samples)
    raise InvalidInputError(f"{bucket.store.uri} cannot be made sense of: {_reason(heads)}")


def _arrays(heads: Mapping[str, Array | Exception]) -> dict[str, Array]:
    return {column: head for column, head in heads.items() if isinstance(head, Array)}


def _goes_together(arrays: Mapping[str, Array]) -> bool:
    try:
        check_together(arrays)
    except SampleError:
        return False
    return True


def _are_alike(shards: Sequence[Mapping[str, Array]]) -> bool:
    """Whether most arrays have rows of the same type and shape, so that they may be parts of one column."""
    kinds = Counter((array.dtype, array.row_shape) for shard in shards for array in shard.values())
    return 2 * max(kinds.values()) > kinds.total()


def _reason(heads: Mapping[str, Array | Exception]) -> str:
    arrays: dict[str, Array] = {}
    for key, head in heads.items():
        if isinstance(head, Exception):
            return str(head)
        if (flaw := head.flaw()) is not None:
            return f"{key}: {flaw}"
        arrays[key] = head
    shapes = ", ".join(f"{key} {array.shape}" for key, array in list(arrays.items())[:8])
    return (
        f"its arrays are neither columns of the same rows nor parts of one column ({shapes}); give each table a folder"
        " of its own"
    )


def _reading(shards: Sequence[Shard], kinds: Mapping[str, Kind], samples: bool) -> Reading:
    if len(kinds) == 1:
        [kind] = kinds.values()
        return _Arrays([file for shard in shards for file in shard.values()], {"data": kind}, samples, {})
    files = [_together(list(shard.values())) for shard in shards]
    return _Arrays(files, kinds, samples, {file.key: shard for file, shard in zip(files, shards, strict=True)})


def _together(files: Sequence[ObjectInfo]) -> ObjectInfo:
    """What stands for files of the same rows: the first by name, whichever of them grows, and a change in any shows."""
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
            return []  # two files claim one place: numbers are not what tells them apart
    return [shards[place] for place in sorted(shards)]


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
    recognise=lambda listing: listing.are_most((".npy", ".npz")),
    open=_open,
)
NUMPY_ROWS = Source(
    "numpy-rows",
    "numpy arrays (.npy, .npz) whose first axis is rows",
    recognise=lambda _: False,
    open=partial(_open, samples=False),
)
NUMPY_SAMPLES = Source(
    "numpy-samples",
    "numpy arrays (.npy, .npz), each file of which is a row",
    recognise=lambda _: False,
    open=partial(_open, samples=True),
)
