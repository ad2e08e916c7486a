"""Conformance tests for ingest sources: subclass `SourceTests`, and define `source`, `expected` and `make`."""

import os
import pickle
import random
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from penstock.dataset import create
from penstock.engine import BadSamples
from penstock.errors import PenstockError, SourceChangedError
from penstock.format import as_column
from penstock.format.kinds import Link, Linked
from penstock.ingest import (
    SOURCES,
    FileCounts,
    IngestOptions,
    Reject,
    Row,
    RowBatch,
    Source,
    SourceItem,
    SourceListing,
    SourceScan,
    prepare,
    run,
)
from penstock.ingest._reader import SourceReader
from penstock.ingest._source import is_hidden
from penstock.storage import ObjectInfo, Store, open_store, thread_map
from penstock.testing._faults import CountingStore
from penstock.types import ByteRange

_DAMAGED_COPIES = 8
_HEAD_BYTES = 512
_CHANGES = 4
"""Reads of a file after which it changes, in turn."""


class SourceTests(ABC):
    """What every source must do; the contract is in the file of `penstock.ingest.Source`.

    The time limit of the tests detects a source that hangs.
    """

    source: ClassVar[Source]
    """The source under test."""
    expected: ClassVar[int]
    """The number of rows that `make` writes."""
    detects_truncation: ClassVar[bool] = True
    """Whether half of a file is detectably incomplete; False for formats without an end marker, such as CSV."""

    @abstractmethod
    def make(self, folder: Path) -> None:
        """Write valid data of this format into an empty folder, preferably with its reference library."""

    def test_recognises_its_format_without_reading(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        store = CountingStore(open_store(str(tmp_path)))
        files = _list(store)
        store.reset()
        assert self.source.recognise(SourceListing(files))
        assert not self.source.recognise(SourceListing([]))
        assert not store.requests

    def test_no_other_source_recognises_it(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        files = _list(open_store(str(tmp_path)))
        others = [other for other in SOURCES.values() if other.name != self.source.name]
        assert [other.name for other in others if other.recognise(SourceListing(files))] == []

    def test_yields_all_rows(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        reader, scan = self._open(tmp_path)
        found = list(scan.rows(reader, scan.files))
        assert [item for item in found if isinstance(item, Reject)] == []
        assert sum(len(item.batch) if isinstance(item, RowBatch) else 1 for item in found) == self.expected
        assert all(item.name for item in found)

    def test_rows_match_the_declared_columns(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        reader, scan = self._open(tmp_path)
        found = list(scan.rows(reader, scan.files))
        for item in found:
            names = item.batch.schema.names if isinstance(item, RowBatch) else item[1]
            assert set(scan.columns) <= set(names)
        rows = [item.values for item in found if isinstance(item, Row)]
        for name, given in scan.columns.items():
            column = as_column(name, given)
            values = [row[name] for row in rows]
            assert len(column.kind.to_array(values)) == len(values)
            assert column.nullable or all(value is not None for value in values)

    def test_scan_can_be_pickled(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        reader, scan = self._open(tmp_path)
        again, copy = pickle.loads(pickle.dumps((reader, scan)))
        assert [file.key for file in copy.files] == [file.key for file in scan.files]
        assert dict(copy.columns) == dict(scan.columns)
        assert _comparable(copy.rows(again, copy.files)) == _comparable(scan.rows(reader, scan.files))

    def test_files_are_independent(self, tmp_path: Path) -> None:
        """A file has the same rows read alone, in several threads, with others or in reverse order."""
        self.make(tmp_path)
        reader, scan = self._open(tmp_path)
        files = list(scan.files)
        alone = thread_map(lambda file: _comparable(scan.rows(reader, [file])), files, max_workers=4)
        assert _comparable(scan.rows(reader, files)) == list(chain.from_iterable(alone))
        assert _comparable(scan.rows(reader, files[::-1])) == list(chain.from_iterable(alone[::-1]))
        assert _comparable(scan.rows(reader, [])) == []

    def test_abandoned_iterator_releases_its_resources(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        reader, scan = self._open(tmp_path)
        rows = iter(scan.rows(reader, scan.files))
        next(rows)
        del rows
        assert len(_rows(scan.rows(reader, scan.files))) == self.expected

    def test_links_resolve_to_the_same_bytes(self, tmp_path: Path) -> None:
        if not self.source.links:
            pytest.skip("its values cannot be linked")
        self.make(tmp_path)
        reader, scan = self._open(tmp_path)
        copied = {row.name: row.values for row in _rows(scan.rows(reader, scan.files))}
        assert len(copied) == self.expected
        link_reader, link_scan = self._open(tmp_path, link=True)
        linked = _rows(link_scan.rows(link_reader, link_scan.files))
        assert sorted(row.name for row in linked) == sorted(copied)
        links = 0
        for row in linked:
            for name, value in row.values.items():
                if isinstance(value, Link):
                    links += 1
                    column = as_column(name, link_scan.columns.get(name, Linked(as_column(name, "bytes").kind)))
                    assert isinstance(column.kind, Linked), f"{name} is linked and not declared as such"
                    value = _fetch(link_reader, value)
                assert _plain(value) == _plain(copied[row.name][name])
        assert links

    def test_truncated_file_is_rejected(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        for path in _paths(tmp_path):
            original = path.read_bytes()
            for size in {1, len(original) // 2, max(len(original) - 1, 0)} - {0, len(original)}:
                path.write_bytes(original[:size])
                rejected = self._is_rejected(tmp_path)
                assert rejected or size != len(original) // 2 or not self.detects_truncation, f"{path} was accepted"
            path.write_bytes(original)

    def test_missing_file_does_not_affect_others(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        paths = _paths(tmp_path)
        for path in paths if len(paths) > 1 else ():
            original = path.read_bytes()
            path.unlink()
            self._is_rejected(tmp_path)
            path.write_bytes(original)

    def test_file_that_changes_is_read_whole_or_rejected(self, tmp_path: Path) -> None:
        """A file that changes between two reads yields all its rows, or none and a reject, or `SourceChangedError`."""
        self.make(tmp_path)
        reader, scan = self._open(tmp_path)
        for file in scan.files:
            whole = _comparable(scan.rows(reader, [file]))
            for reads in range(_CHANGES):
                store = _ChangedStore(reader.store, tmp_path / file.key, reads)
                try:
                    found = list(scan.rows(replace(reader, store=store), [store.head(file.key)]))
                except SourceChangedError:
                    continue
                assert _comparable(found) == whole or all(isinstance(item, Reject) for item in found), file.key

    def test_damaged_file_is_rejected_or_read(self, tmp_path: Path) -> None:
        """Damaged bytes yield rows, rejects or a `PenstockError`."""
        self.make(tmp_path)
        rng = random.Random(0)
        for path in _paths(tmp_path):
            original = path.read_bytes()
            for size in (1, 4) * (_DAMAGED_COPIES // 2):
                at = rng.randrange(min(len(original), _HEAD_BYTES))
                if rng.random() < 0.3:  # many formats have an index at the end
                    at = max(len(original) - 1 - at, 0)
                path.write_bytes(original[:at] + rng.randbytes(size) + original[at + size :])
                self._is_rejected(tmp_path)
            path.write_bytes(original)

    def test_every_listed_file_is_taken_rejected_or_ignored(self, tmp_path: Path) -> None:
        """No file is lost in silence: not an empty, hidden, unknown or damaged one."""
        self.make(tmp_path)
        paths = _paths(tmp_path)
        for path in paths:
            shutil.copy(path, path.parent / f".{path.name}")
        (tmp_path / "Thumbs.db").write_bytes(b"of another kind")
        (tmp_path / "folder-marker").touch()
        before, rows = self._ingest(tmp_path)
        assert (rows, before.rejected) == (self.expected, 0)
        assert before.taken == len(paths), "every file that `make` writes is data, labels or an index"
        assert before.ignored_reasons == {"hidden": len(paths), ".db": 1, "empty": 1}
        (tmp_path / f"zero{self.source.extensions[0]}").touch()
        after, rows = self._ingest(tmp_path)
        assert (rows, after.taken, after.listed) == (self.expected, before.taken, before.listed + 1)
        assert after.rejected == (not self.source.may_be_empty)
        for path in paths:
            original = path.read_bytes()
            path.write_bytes(original[: len(original) // 2])
            try:
                damaged, _ = self._ingest(tmp_path)
            except PenstockError:
                continue
            finally:
                path.write_bytes(original)
            assert damaged.listed == after.listed

    def _ingest(self, folder: Path) -> tuple[FileCounts, int]:
        """Ingest a folder; returns what became of its files, and the number of rows."""
        session, name = create("memory://")._session, self.source.name
        prepared = prepare(session, open_store(str(folder)), {name: self.source}, name, IngestOptions())
        outcome = run(session, prepared, bad_samples=BadSamples(action="skip"), message="", num_workers=1)
        return outcome.files, outcome.rows

    def _open(self, folder: Path, *, link: bool = False) -> tuple[SourceReader, SourceScan]:
        reader = SourceReader(open_store(str(folder)), link=link)
        return reader, self.source.open(reader, _list(reader.store))

    def _is_rejected(self, folder: Path) -> bool:
        """Whether anything in a folder is rejected; errors other than `PenstockError` propagate."""
        try:
            reader, scan = self._open(folder)
            found = list(scan.rows(reader, scan.files))
        except PenstockError:
            return True
        assert all(isinstance(item, Row | RowBatch | Reject) for item in found)
        return any(isinstance(item, Reject) and item.reason for item in found)


class _ChangedStore(CountingStore):
    """A folder in which one file is modified after some reads of it."""

    def __init__(self, store: Store, path: Path, reads: int) -> None:
        super().__init__(store)
        self._path, self._reads = path, reads

    def get(self, key: str, *, byte_range: ByteRange | None = None, etag: str | None = None) -> memoryview:
        if self._path.as_posix().endswith(key):
            if not self._reads:
                os.utime(self._path)
            self._reads -= 1
        return super().get(key, byte_range=byte_range, etag=etag)


def _list(store: Any) -> list[ObjectInfo]:
    """The files as an ingest passes them to a source."""
    return [file for file in store.list() if file.size and not is_hidden(file.key)]


def _paths(folder: Path) -> Sequence[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _rows(found: Any) -> list[Row]:
    """All rows, including those in batches, as `Row`."""
    rows: list[Row] = []
    for item in found:
        if isinstance(item, RowBatch):
            rows += [Row(f"{item.name}, row {index}", values) for index, values in enumerate(item.batch.to_pylist())]
        else:
            assert isinstance(item, Row), item
            rows.append(item)
    return rows


def _comparable(found: Any) -> list[Any]:
    """The items in a comparable form, independent of the batch boundaries."""
    items: list[Any] = []
    item: SourceItem
    for item in found:
        if isinstance(item, RowBatch):
            items += [(item.name, _plain(values)) for values in item.batch.to_pylist()]
        else:
            items.append((item.name, _plain(item[1])))
    return items


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


def _fetch(reader: SourceReader, link: Link) -> bytes:
    key = link.uri.removeprefix(reader.uri(""))
    assert link.length is not None
    return bytes(reader.store.get(key, byte_range=ByteRange(link.offset, link.offset + link.length), etag=link.etag))
