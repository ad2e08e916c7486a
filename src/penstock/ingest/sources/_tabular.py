"""Files that are tables themselves: which files, which columns, and their rows in bounded batches.

The first file that can be read settles the columns. A later one may lack some, which are null there, and may have some
of another type, as far as they can be cast without loss; one that has columns of its own is rejected as a whole.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidInputError, SourceChanged
from penstock.format import ColumnLike
from penstock.ingest._bucket import Bucket
from penstock.ingest._source import Found, Listing, Reading, Reject, Rows, ending
from penstock.ingest.sources._arrow_columns import ColumnPlan, features_of, plan_column
from penstock.ingest.sources._expand import Damaged
from penstock.ingest.sources._values import column_name
from penstock.storage import ObjectInfo

BATCH_BYTES = 16 << 20
UNREADABLE = (pa.ArrowException, OSError, UnicodeDecodeError, Damaged)
"""What reading a broken file raises; a store that does not answer raises something else."""

_SIDECARS = ("", ".md", ".txt", ".json", ".yaml", ".yml", ".html", ".pdf", ".crc", ".sha256", ".md5")
_SIDECAR_BYTES = 4 << 20
_PANDAS_INDEX = "__index_level_"
_TRIED = 100
_SHOWN = 5
_MAX_RATIO = 1000
_UNSUSPICIOUS_BYTES = 1 << 30
"""Up to here a file may unpack to any number of times its size."""

T = TypeVar("T")


class Block(NamedTuple):
    """Some rows of a file."""

    first: int
    """The number of the first of them in the file."""
    batch: pa.RecordBatch


Scan: TypeAlias = Callable[[Bucket, ObjectInfo], Iterator[Block | Reject]]
"""The rows of one file as they are there, in order."""


@dataclass(frozen=True)
class Tabular(Reading):
    """How files that are tables are read."""

    files: Sequence[ObjectInfo]
    columns: Mapping[str, ColumnLike]
    plans: tuple[ColumnPlan, ...]
    scan: Scan

    def rows(self, bucket: Bucket, files: Sequence[ObjectInfo]) -> Iterator[Found]:
        """See `Reading`."""
        for file in files:
            yield from self._rows(bucket, file)

    def _rows(self, bucket: Bucket, file: ObjectInfo) -> Iterator[Found]:
        at = size = 0
        begun = False
        try:
            for item in self.scan(bucket, file):
                for sound in _sound(file.key, item):
                    if isinstance(sound, Reject):
                        yield sound
                        continue
                    if not begun and (flaw := _misfit(self.plans, sound.batch)) is not None:
                        yield Reject(file.key, flaw)
                        return
                    for portion in _portions(sound):
                        for found in _converted(self.plans, file.key, portion):
                            begun = True
                            yield found
                            size += found.batch.nbytes if isinstance(found, Rows) else 0
                        at = portion.first + len(portion.batch)
                        _check_growth(file.size, size)
        except SourceChanged as error:
            if begun:  # half of a file that is no more: the part is done again as a whole
                raise
            yield Reject(file.key, str(error))
        except UNREADABLE as error:
            if begun:
                yield Reject(f"{file.key}:{at}", f"cannot be read from here on: {error}")
            else:  # by its own name: it may be mended, and taken in by a later run
                yield Reject(file.key, f"cannot be read: {error}")


def open_tabular(files: Sequence[ObjectInfo], plans: Sequence[ColumnPlan], scan: Scan) -> Tabular:
    """A reading of files whose columns are settled."""
    return Tabular(files, {plan.name: plan.column for plan in plans if plan.column is not None}, tuple(plans), scan)


def plan_columns(sample: pa.RecordBatch, nulls: frozenset[str] = frozenset()) -> list[ColumnPlan]:
    """Decide on the columns by the first rows of a file and its metadata; `nulls` are columns that lack values."""
    sample = _without(sample, _unsound(sample))
    features, names = features_of(sample.schema), sample.schema.names
    return [
        plan_column(name, sample.column(place), feature=features.get(names[place]), has_nulls=names[place] in nulls)
        for name, place in column_places(names).items()
    ]


def column_places(names: Sequence[str]) -> dict[str, int]:
    """The columns of a file by the names that they get in a table; pandas' index is none of them."""
    found: dict[str, int] = {}
    for place, name in enumerate(names):
        if not name.startswith(_PANDAS_INDEX):
            found[column_name(name, found)] = place
    return found


def data_files(bucket: Bucket, files: Iterable[ObjectInfo], endings: Sequence[str]) -> list[ObjectInfo]:
    """The files with one of these endings; there must be some."""
    found = [file for file in files if ending(file.key) in endings]
    if not found:
        raise InvalidInputError(f"no file in {bucket.store.uri} ends in {' or '.join(endings)}")
    return found


def all_end_in(listing: Listing, endings: Sequence[str]) -> bool:
    """Whether files are of one kind; small ones that lie beside any data, such as a README, do not count."""
    others = [name for name in listing.sizes if name not in endings]
    sidecars = all(name in _SIDECARS and max(listing.sizes[name]) <= _SIDECAR_BYTES for name in others)
    return listing.has(endings) and sidecars


def first_readable(bucket: Bucket, files: Sequence[ObjectInfo], read: Callable[[Bucket, ObjectInfo], T]) -> T:
    """What is found in the first file that can be read."""
    told = ""
    for file in files[:_TRIED]:
        try:
            return read(bucket, file)
        except (SourceChanged, *UNREADABLE) as error:
            told = told or f"{bucket.uri(file.key)}: {error}"
    raise InvalidInputError(f"none of the first {min(len(files), _TRIED)} files can be read; the first, {told}")


def _misfit(plans: Sequence[ColumnPlan], batch: pa.RecordBatch) -> str | None:
    """Why a file's rows cannot be rows of the table, if they cannot."""
    known = {plan.name: plan for plan in plans}
    places = column_places(batch.schema.names)
    if extra := [name for name in places if name not in known]:
        names = ", ".join(map(repr, extra[:_SHOWN])) + (", …" if len(extra) > _SHOWN else "")
        return f"it has columns that the first file has not: {names}; take it in as a table of its own"
    for name, place in places.items():
        try:
            known[name].convert(batch.column(place).slice(0, 0))
        except (pa.ArrowException, TypeError):
            told = f"{batch.schema.field(place).type} here, which cannot become {known[name].type}"
            return f"its column {name!r} is {told}, as in the first file; take it in as a table of its own"
    return None


def _portions(block: Block) -> Iterator[Block]:
    """The rows of a block, so many at once that their values take about as much memory as a batch may."""
    rows = len(block.batch)
    width = block.batch.nbytes // max(1, rows) + sum(map(_longest_meant, block.batch.columns))
    step = max(1, BATCH_BYTES // max(1, width))
    for start in range(0, rows, step):
        yield Block(block.first + start, block.batch.slice(start, step))


def _longest_meant(column: pa.Array) -> int:
    """Bytes of the longest value in the dictionary of a column: any number of its rows may mean that one."""
    if not isinstance(column, pa.DictionaryArray) or not len(column.dictionary):
        return 0
    try:
        return int(pc.max(pc.binary_length(column.dictionary)).as_py() or 0)
    except pa.ArrowNotImplementedError:
        return 0


def _check_growth(size: int, unpacked: int) -> None:
    if unpacked > max(_UNSUSPICIOUS_BYTES, _MAX_RATIO * size):
        raise Damaged(f"unpacks from {size:,} to more than {unpacked:,} bytes, which looks like a decompression bomb")


def _converted(plans: Sequence[ColumnPlan], key: str, block: Block) -> Iterator[Rows | Reject]:
    batch, flaws = _convert(plans, block.batch)
    for good in _apart(key, Block(block.first, batch), flaws):
        if isinstance(good, Reject):
            yield good
        else:
            yield Rows(f"{key}[{good.first}:{good.first + len(good.batch)}]", good.batch)


def _sound(key: str, item: Block | Reject) -> Iterator[Block | Reject]:
    """Rows that are safe to look at: Arrow follows the offsets in a batch blindly wherever they lead."""
    return iter([item]) if isinstance(item, Reject) else _apart(key, item, _unsound(item.batch))


def _apart(key: str, block: Block, flaws: Mapping[int, str]) -> Iterator[Block | Reject]:
    """The good rows and the bad ones, in order."""
    at = 0
    for row in sorted(flaws):
        if row > at:
            yield Block(block.first + at, block.batch.slice(at, row - at))
        yield Reject(f"{key}:{block.first + row}", flaws[row])
        at = row + 1
    if at < len(block.batch):
        yield Block(block.first + at, block.batch.slice(at))


def _unsound(batch: pa.RecordBatch) -> dict[int, str]:
    """Rows whose bytes are not what they claim to be, such as text that is not UTF-8."""
    if _damage(batch) is None:
        return {}
    rows = ((row, _damage(batch.slice(row, 1))) for row in range(len(batch)))
    return {row: damage for row, damage in rows if damage is not None}


def _without(batch: pa.RecordBatch, flaws: Mapping[int, str]) -> pa.RecordBatch:
    if not flaws:
        return batch
    good = [batch.slice(row, 1) for row in range(len(batch)) if row not in flaws]
    columns = pa.Table.from_batches(good, batch.schema).combine_chunks().columns
    return pa.RecordBatch.from_arrays([column.combine_chunks() for column in columns], schema=batch.schema)


def _damage(batch: pa.RecordBatch) -> str | None:
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        return f"holds damaged values: {error}"
    return None


def _convert(plans: Sequence[ColumnPlan], batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, str]]:
    places = column_places(batch.schema.names)
    arrays: list[pa.Array] = []
    flaws: dict[int, str] = {}
    for plan in plans:
        if plan.name not in places:
            arrays.append(pa.nulls(len(batch), plan.type))
            continue
        array, wrong = plan.convert(batch.column(places[plan.name]))
        arrays.append(array)
        flaws |= {row: f"column {plan.name!r} {reason}" for row, reason in wrong.items()}
    return pa.RecordBatch.from_arrays(arrays, names=[plan.name for plan in plans]), flaws
