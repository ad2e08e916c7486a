"""The exam of the contract of sources of rows: subclass `SourceTests`, and give it `source`, `expected` and `make`."""

import pickle
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from penstock.errors import PenstockError
from penstock.format import as_column
from penstock.format.kinds import Link, Linked
from penstock.ingest import SOURCES, Found, Listing, Reading, Reject, Row, Rows, Source
from penstock.ingest._bucket import Bucket
from penstock.ingest._source import is_hidden
from penstock.storage import ObjectInfo, open_store, run_all
from penstock.testing._faults import CountingStore
from penstock.types import ByteRange

_DAMAGES = 8
_HEAD_BYTES = 512


class SourceTests(ABC):
    """What every source must do; see the list in `penstock.ingest.Source`'s own file.

    That a source does not hang is for the time limit of the tests to find out.
    """

    source: ClassVar[Source]
    """The source under examination."""
    expected: ClassVar[int]
    """How many rows `make` makes."""
    cuts_show: ClassVar[bool] = True
    """Whether half of a file cannot be taken for a whole one; False for formats that end anywhere, such as CSV."""

    @abstractmethod
    def make(self, folder: Path) -> None:
        """Write data of this kind, without a flaw, into an empty folder; its own library does it best."""

    def test_recognises_its_own_without_reading(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        store = CountingStore(open_store(str(tmp_path)))
        files = _listed(store)
        store.reset()
        assert self.source.recognise(Listing(files))
        assert not self.source.recognise(Listing([]))
        assert not store.requests

    def test_no_other_source_takes_it_for_its_own(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        files = _listed(open_store(str(tmp_path)))
        others = [other for other in SOURCES.values() if other.name != self.source.name]
        assert [other.name for other in others if other.recognise(Listing(files))] == []

    def test_gives_all_rows(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        bucket, reading = self._opened(tmp_path)
        found = list(reading.rows(bucket, reading.files))
        assert [item for item in found if isinstance(item, Reject)] == []
        assert sum(len(item.batch) if isinstance(item, Rows) else 1 for item in found) == self.expected
        assert all(item.name for item in found)

    def test_rows_have_the_columns_that_were_promised(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        bucket, reading = self._opened(tmp_path)
        found = list(reading.rows(bucket, reading.files))
        for item in found:
            names = item.batch.schema.names if isinstance(item, Rows) else item[1]
            assert set(reading.columns) <= set(names)
        rows = [item.values for item in found if isinstance(item, Row)]
        for name, given in reading.columns.items():
            column = as_column(name, given)
            values = [row[name] for row in rows]
            assert len(column.kind.to_array(values)) == len(values)
            assert column.nullable or all(value is not None for value in values)

    def test_survives_pickling(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        bucket, reading = self._opened(tmp_path)
        again, copy = pickle.loads(pickle.dumps((bucket, reading)))
        assert [file.key for file in copy.files] == [file.key for file in reading.files]
        assert dict(copy.columns) == dict(reading.columns)
        assert _told(copy.rows(again, copy.files)) == _told(reading.rows(bucket, reading.files))

    def test_files_do_not_depend_on_each_other(self, tmp_path: Path) -> None:
        """One by one, from several threads, all at once or backwards: a file has the same rows."""
        self.make(tmp_path)
        bucket, reading = self._opened(tmp_path)
        files = list(reading.files)
        alone = run_all(lambda file: _told(reading.rows(bucket, [file])), files, max_workers=4)
        assert _told(reading.rows(bucket, files)) == list(chain.from_iterable(alone))
        assert _told(reading.rows(bucket, files[::-1])) == list(chain.from_iterable(alone[::-1]))
        assert _told(reading.rows(bucket, [])) == []

    def test_a_stopped_reader_leaves_nothing_behind(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        bucket, reading = self._opened(tmp_path)
        rows = iter(reading.rows(bucket, reading.files))
        next(rows)
        del rows
        assert len(_rows(reading.rows(bucket, reading.files))) == self.expected

    def test_links_lead_to_the_same_bytes(self, tmp_path: Path) -> None:
        if not self.source.links:
            pytest.skip("its values cannot be linked")
        self.make(tmp_path)
        bucket, reading = self._opened(tmp_path)
        copied = {row.name: row.values for row in _rows(reading.rows(bucket, reading.files))}
        assert len(copied) == self.expected
        linking, pointing = self._opened(tmp_path, link=True)
        linked = _rows(pointing.rows(linking, pointing.files))
        assert sorted(row.name for row in linked) == sorted(copied)
        links = 0
        for row in linked:
            for name, value in row.values.items():
                if isinstance(value, Link):
                    links += 1
                    column = as_column(name, pointing.columns.get(name, Linked(as_column(name, "bytes").kind)))
                    assert isinstance(column.kind, Linked), f"{name} is linked and not said to be"
                    value = _fetched(linking, value)
                assert _plain(value) == _plain(copied[row.name][name])
        assert links

    def test_a_file_that_is_cut_off_is_refused(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        for path in _paths(tmp_path):
            whole = path.read_bytes()
            for size in {1, len(whole) // 2, max(len(whole) - 1, 0)} - {0, len(whole)}:
                path.write_bytes(whole[:size])
                refused = self._refused(tmp_path)
                assert refused or size != len(whole) // 2 or not self.cuts_show, f"half of {path} was taken"
            path.write_bytes(whole)

    def test_a_file_that_is_gone_stops_no_other(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        paths = _paths(tmp_path)
        for path in paths if len(paths) > 1 else ():
            whole = path.read_bytes()
            path.unlink()
            self._refused(tmp_path)
            path.write_bytes(whole)

    def test_a_file_that_is_damaged_is_refused_or_read(self, tmp_path: Path) -> None:
        """Whatever the bytes say, what comes is rows, rejects or an error of ours."""
        self.make(tmp_path)
        dice = random.Random(0)
        for path in _paths(tmp_path):
            whole = path.read_bytes()
            for size in (1, 4) * (_DAMAGES // 2):
                at = dice.randrange(min(len(whole), _HEAD_BYTES))
                if dice.random() < 0.3:  # much of what describes a file stands at its end
                    at = max(len(whole) - 1 - at, 0)
                path.write_bytes(whole[:at] + dice.randbytes(size) + whole[at + size :])
                self._refused(tmp_path)
            path.write_bytes(whole)

    def _opened(self, folder: Path, *, link: bool = False) -> tuple[Bucket, Reading]:
        bucket = Bucket(open_store(str(folder)), link=link)
        return bucket, self.source.open(bucket, _listed(bucket.store))

    def _refused(self, folder: Path) -> bool:
        """Whether anything in a folder is refused; other errors than ours pass through."""
        try:
            bucket, reading = self._opened(folder)
            found = list(reading.rows(bucket, reading.files))
        except PenstockError:
            return True
        assert all(isinstance(item, Row | Rows | Reject) for item in found)
        return any(isinstance(item, Reject) and item.reason for item in found)


def _listed(store: Any) -> list[ObjectInfo]:
    """The files as an ingest gives them to a source."""
    return [file for file in store.list() if file.size and not is_hidden(file.key)]


def _paths(folder: Path) -> Sequence[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _rows(found: Any) -> list[Row]:
    """All rows one by one, those in batches too."""
    rows: list[Row] = []
    for item in found:
        if isinstance(item, Rows):
            rows += [Row(f"{item.name}, row {at}", values) for at, values in enumerate(item.batch.to_pylist())]
        else:
            assert isinstance(item, Row), item
            rows.append(item)
    return rows


def _told(found: Any) -> list[Any]:
    """What was found, in a form that can be compared; how rows were put together into batches does not matter."""
    told: list[Any] = []
    item: Found
    for item in found:
        if isinstance(item, Rows):
            told += [(item.name, _plain(values)) for values in item.batch.to_pylist()]
        else:
            told.append((item.name, _plain(item[1])))
    return told


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return repr(value) if isinstance(value, float) else value  # a NaN is not equal to itself


def _fetched(bucket: Bucket, link: Link) -> bytes:
    key = link.uri.removeprefix(bucket.uri(""))
    assert link.length is not None
    return bytes(bucket.store.get(key, byte_range=ByteRange(link.offset, link.offset + link.length), etag=link.etag))
