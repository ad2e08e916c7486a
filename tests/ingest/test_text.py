"""CSV and JSON lines sources: types shared by all files, and invalid lines that reject only themselves."""

import csv
import gzip
import io
import json
import re
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.engine import BadSamples
from penstock.errors import InvalidInputError, SourceChangedError, StorageError
from penstock.format import Column
from penstock.format.kinds import Embedding, Json, List, Tensor, Text
from penstock.ingest import (
    SOURCES,
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
from penstock.ingest._source import RejectedFileError
from penstock.ingest.sources import _limits, _streams, _text, _texts
from penstock.ingest.sources._text import CSV, JSONL
from penstock.ingest.sources._texts import LINES, TEXT
from penstock.storage import ObjectInfo, Store, open_store
from penstock.testing import SourceTests


class TestCsv(SourceTests):
    source = CSV
    expected = 60
    detects_truncation = False

    def make(self, folder: Path) -> None:
        lines = "".join(f'{number},{number / 4},"text, {number}",{"" if number % 7 else 1}\n' for number in range(20))
        (folder / "a.csv").write_text(f"n,score,text,maybe\n{lines}")
        (folder / "b.csv.gz").write_bytes(gzip.compress(f"n,score,text,maybe\n{lines}".encode()))
        tabs = "".join(f"{number}\t{number / 4}\ttext\t\n" for number in range(20))
        (folder / "c.tsv").write_text(f"n\tscore\ttext\tmaybe\n{tabs}")


class TestJsonLines(SourceTests):
    source = JSONL
    expected = 40
    detects_truncation = False

    def make(self, folder: Path) -> None:
        rows = [{"n": number, "text": "ä", "list": [0.5] * (number % 3), "more": {"a": []}} for number in range(20)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "a.jsonl").write_text(lines)
        (folder / "b.ndjson.gz").write_bytes(gzip.compress(lines.encode()))


class TestCompressed(SourceTests):
    source = JSONL
    expected = 80

    def make(self, folder: Path) -> None:
        lines = "".join(json.dumps({"n": number, "text": f"{number:x}"}) + "\n" for number in range(20)).encode()
        for name in ("a.jsonl.zst", "b.ndjson.zstd", "c.jsonl.bz2", "d.JSONL.GZ"):
            (folder / name).write_bytes(packed(name, lines))


class TestTexts(SourceTests):
    source = TEXT
    expected = 6
    detects_truncation = False

    def make(self, folder: Path) -> None:
        for name in ("pos/0.txt", "pos/1.txt", "neg/0.txt", "neg/1.TXT.gz", "neg/2.txt.zst", "neg/3.txt"):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(packed(name, f"a text in {name}\nof lines\n".encode()))


class TestLines(SourceTests):
    source = LINES
    expected = 6
    detects_truncation = False

    def make(self, folder: Path) -> None:
        for name in ("a.txt", "b.txt.gz", "c.txt.bz2"):
            (folder / name).write_bytes(packed(name, b"first\n\nsecond of " + name.encode()))

    def test_recognises_its_format_without_reading(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        files = list(open_store(str(tmp_path)).list())
        assert not LINES.recognise(SourceListing(files)), "only --as lines chooses it"

    def test_no_other_source_recognises_it(self, tmp_path: Path) -> None:
        self.make(tmp_path)
        files = list(open_store(str(tmp_path)).list())
        assert [name for name, source in SOURCES.items() if source.recognise(SourceListing(files))] == ["text"]


def packed(name: str, data: bytes) -> bytes:
    """Data compressed as the name of its file says."""
    codec = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2"}.get(Path(name).suffix.lower())
    sink = pa.BufferOutputStream()
    if codec is None:
        return data
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def stored(files: dict[str, str | bytes]) -> Store:
    store = open_store("memory://")
    for name, data in files.items():
        store.put(name, data.encode() if isinstance(data, str) else data)
    return store


def read(source: Source, files: dict[str, str | bytes]) -> tuple[SourceScan, list[SourceItem]]:
    reader = SourceReader(stored(files))
    scan = source.open(reader, list(reader.store.list()))
    return scan, list(scan.rows(reader, scan.files))


def rows(found: list[SourceItem]) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    for item in found:
        if isinstance(item, RowBatch):
            items += item.batch.to_pylist()
        elif isinstance(item, Row):
            items.append(dict(item.values))
    return items


def rejects(found: list[SourceItem]) -> dict[str, str]:
    return {item.name: item.reason for item in found if isinstance(item, Reject)}


def taken_in(files: dict[str, str | bytes]) -> penstock.Dataset:
    ds = penstock.create("memory://")
    prepared = prepare(ds._session, stored(files), SOURCES, None, IngestOptions())
    run(ds._session, prepared, bad_samples=BadSamples(action="raise", limit=0), message="", num_workers=1)
    return ds


def test_types_are_inferred_and_missing_values_are_null() -> None:
    text = (
        "i,f,b,day,when,text,empty,time\n"
        "1,0.5,true,2020-01-01,2020-01-01 10:00:00,NA,,10:00\n"
        " 2 ,NA,false,,2020-01-02 10:00:00,,,11:00\n"
    )
    scan, found = read(CSV, {"a.csv": text})
    assert rows(found) == [
        {
            "i": 1,
            "f": 0.5,
            "b": True,
            "day": date(2020, 1, 1),
            "when": datetime(2020, 1, 1, 10),
            "text": "NA",
            "empty": "",
            "time": "10:00",
        },
        {
            "i": 2,
            "f": None,
            "b": False,
            "day": None,
            "when": datetime(2020, 1, 2, 10),
            "text": "",
            "empty": "",
            "time": "11:00",
        },
    ]
    assert scan.columns == {
        "f": Column(Tensor("float64"), nullable=True),
        "day": Column(Tensor("datetime64[s]"), nullable=True),
    }


def test_first_file_decides_the_types() -> None:
    files: dict[str, str | bytes] = {
        "1.csv": "a,b\n1,x\n",
        "2.csv": "b,a\n3,4\n",
        "3.csv": "a,b\n5.5,y\n",
        "4.csv": "b\nz\n",
    }
    _, found = read(CSV, files)
    assert rows(found) == [{"a": 1, "b": "x"}, {"a": 4, "b": "3"}, {"a": None, "b": "z"}]
    [(name, reason)] = rejects(found).items()
    assert name == "3.csv:2"
    assert "5.5" in reason
    assert "'a'" in reason


def test_extra_columns_reject_the_file() -> None:
    _, found = read(CSV, {"1.csv": "a\n1\n", "2.csv": "a,b,c\n1,2,3\n"})
    assert list(rejects(found)) == ["2.csv"]
    assert "'b', 'c'" in rejects(found)["2.csv"]


def test_invalid_rows_are_rejected_by_row_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row numbers are right across blocks and after values with line breaks."""
    monkeypatch.setattr(_text, "_BLOCK_BYTES", 64)
    lines, bad = [], []
    for number in range(2, 200):
        if number % 17 == 0:
            bad.append(number)
        lines.append(
            f"{number},1,2" if number % 34 == 0 else f"x{number},y" if number % 17 == 0 else f'{number},"y\nz"'
        )
    scan, found = read(CSV, {"a.csv": "n,text\n" + "\n".join(lines)})
    assert scan.columns == {}
    assert sorted(rejects(found)) == sorted(f"a.csv:{number}" for number in bad)
    assert [row["n"] for row in rows(found)] == [number for number in range(2, 200) if number % 17]
    for item in found:
        if isinstance(item, RowBatch):
            [(start, end)] = re.findall(r"\[(\d+):(\d+)\]", item.name)
            assert item.batch.column("n").to_pylist() == list(range(int(start), int(end)))


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_delimiter_is_detected(separator: str) -> None:
    _, found = read(CSV, {"a.csv": "\ufeff" + separator.join("abc") + "\n" + separator.join("123") + "\n"})
    assert rows(found) == [{"a": 1, "b": 2, "c": 3}]


def test_line_endings() -> None:
    for end in ("\n", "\r\n", "\r"):
        _, found = read(CSV, {"a.csv": end.join(["a,b", '1,"x', 'y"', '2,5" pipe', ""])})
        assert [row["a"] for row in rows(found)] == [1, 2]
        assert rows(found)[1]["b"] == '5" pipe'


def test_ingest_into_a_table() -> None:
    ds = taken_in({"1.csv": "a,b\n1,x\n,y\n", "2.csv.gz": gzip.compress(b"b,a\nz,3\n")})
    assert [ds[row]["b"] for row in range(3)] == ["x", "y", "z"]
    assert [ds[row]["a"] for row in (0, 2)] == [1, 3]
    assert ds[1]["a"] is None


class Failing(SourceReader):
    """Fails after a number of reads."""

    def read(self, file: ObjectInfo, start: int = 0, length: int | None = None) -> memoryview:
        if file.key.startswith("b"):
            raise ERRORS[file.key.split(".")[0]]
        return super().read(file, start, length)


ERRORS = {"b_gone": SourceChangedError("it is gone"), "b_silent": StorageError("no answer")}


@pytest.mark.parametrize("name", ["csv", "jsonl", "csv.gz", "jsonl.gz", "parquet", "arrow"])
def test_missing_file_is_rejected_and_storage_error_is_raised(name: str) -> None:
    source = SOURCES[name.partition(".")[0]]
    sink = io.BytesIO()
    if source.name == "parquet":
        pq.write_table(pa.table({"a": [1]}), sink)
    elif source.name == "arrow":
        pyarrow.feather.write_feather(pa.table({"a": [1]}), sink)
    else:
        sink.write(b"a\n1\n" if source is CSV else b'{"a": 1}')
    data = gzip.compress(sink.getvalue()) if name.endswith(".gz") else sink.getvalue()
    reader = Failing(stored({f"{key}.{name}": data for key in ("a", "b_gone", "b_silent", "c")}))
    scan = source.open(reader, [file for file in reader.store.list() if "silent" not in file.key])
    found = list(scan.rows(reader, scan.files))
    assert [row["a"] for row in rows(found)] == [1, 1]
    assert list(rejects(found)) == [f"b_gone.{name}"]
    with pytest.raises(StorageError, match="no answer"):
        list(scan.rows(reader, list(reader.store.list())))


def test_invalid_utf8_is_rejected() -> None:
    _, found = read(
        CSV, {"a.csv": b"n,text\n1,good\n2,b\xe4d\n3,fine\n", "b.csv": b"\xff\xfen\0,\0\n\0", "c.csv": b"\n"}
    )
    assert [row["n"] for row in rows(found)] == [1, 3]
    assert list(rejects(found)) == ["a.csv:3", "b.csv", "c.csv"]
    _, found = read(CSV, {"a.csv": b"n,text\n1,good\n2\n", "b.csv": b"n,text\n2,b\xe4d,3\n4,good\n"})
    assert list(rejects(found)) == ["a.csv:3", "b.csv:2"]
    assert [row["n"] for row in rows(found)] == [1, 4]


def test_unclosed_quote_rejects_the_rest_of_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_text, "_BLOCK_BYTES", 1000)
    good = "".join(f"{number},text\n" for number in range(500))
    _, found = read(CSV, {"a.csv": f'n,t\n{good}1,"never closed\n{good}', "b.csv": "n,t\n7,x\n"})
    assert rows(found)[-1] == {"n": 7, "t": "x"}
    assert len(rows(found)) > 300
    [name] = rejects(found)
    assert re.fullmatch(r"a\.csv:\d+", name)


@pytest.mark.parametrize("source", [CSV, JSONL])
def test_decompression_bomb_is_stopped(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_limits, "HARMLESS_BYTES", 100_000)
    monkeypatch.setattr(_limits, "MAX_RATIO", 200)
    monkeypatch.setattr(_text, "_BLOCK_BYTES", 10_000)
    monkeypatch.setattr(_text, "BUFFER_BYTES", 10_000)
    monkeypatch.setattr(_streams, "BUFFER_BYTES", 10_000)
    head, line = ("a,b\n1,2\n", "1,2\n") if source is CSV else ('{"a": 1}\n', '{"a": 1}\n')
    bomb = gzip.compress((head + line * 200_000).encode())
    assert 200 * len(bomb) < 4 * 200_000
    files: dict[str, str | bytes] = {f"a.{source.name}.gz": bomb, f"b.{source.name}": head}
    with pytest.raises(RejectedFileError, match=rf"a\.{source.name}\.gz .*looks like a decompression bomb"):
        read(source, files)
    store = open_store("memory://")
    for name, data in files.items():
        store.put(name, data if isinstance(data, bytes) else data.encode())
    ds = penstock.create("memory://")
    prepared = prepare(ds._session, store, SOURCES, None, IngestOptions())
    outcome = run(ds._session, prepared, bad_samples=BadSamples(), message="", num_workers=1)
    assert [(reject.name, outcome.rows, len(ds)) for reject in outcome.rejects] == [(f"a.{source.name}.gz", 1, 1)]
    again = prepare(ds._session, store, SOURCES, None, IngestOptions())
    assert [file.key for file in again.new] == [f"a.{source.name}.gz"], "a rejected file is not recorded as ingested"


def test_damaged_gzip_is_rejected() -> None:
    whole = gzip.compress(b"a\n" + b"".join(b"%d\n" % (number * 7919 % 100_003) for number in range(100_000)))
    _, found = read(CSV, {"a.csv": "a\n1\n", "b.csv.gz": b"no gzip at all", "c.csv.gz": whole[: len(whole) // 2]})
    names = list(rejects(found))
    assert names[0] == "b.csv.gz"
    assert names[1].startswith("c.csv.gz")


CELL = st.text(st.characters(codec="utf-8", exclude_characters="\0\r"), max_size=5)


@settings(deadline=None)
@given(st.lists(st.tuples(CELL, st.integers(-9, 9), CELL), min_size=1, max_size=20))
def test_csv_text_roundtrip(given_rows: list[tuple[str, int, str]]) -> None:
    sink = io.StringIO()
    writer = csv.writer(sink, quoting=csv.QUOTE_NONNUMERIC)
    writer.writerows([("a", "n", "b"), *given_rows, ("text", 1, "text")])
    _, found = read(CSV, {"a.csv": sink.getvalue()})
    assert [(row["a"], row["n"], row["b"]) for row in rows(found)] == [*given_rows, ("text", 1, "text")]


def test_json_values_decide_kinds() -> None:
    lines: list[dict[str, Any]] = [
        {
            "n": 1,
            "f": 1,
            "text": "a",
            "o": {"x": [1]},
            "mixed": 1,
            "words": ["a"],
            "uneven": [[1], [2, 3]],
            "none": None,
        },
        {"n": 2, "f": 0.5, "text": "b", "o": {}, "mixed": "a", "words": [], "uneven": [[1]], "embedding": [0.5, 1.5]},
        {"n": 3, "f": 2, "text": None, "o": {"y": None}, "mixed": None, "words": ["b", "c"], "uneven": []},
    ]
    scan, found = read(JSONL, {"a.jsonl": "\n".join(map(json.dumps, lines))})
    assert scan.columns == {
        "n": Column(Tensor("int64")),
        "f": Column(Tensor("float64")),
        "text": Column(Text(), nullable=True),
        "o": Column(Json()),
        "mixed": Column(Json(), nullable=True),
        "words": Column(List(Text())),
        "uneven": Column(Json()),
        "none": Column(Json(), nullable=True),
        "embedding": Column(Embedding(2), nullable=True),
    }
    assert [item.name for item in found] == ["a.jsonl:1", "a.jsonl:2", "a.jsonl:3"]
    assert rows(found) == [dict.fromkeys(scan.columns) | line for line in lines]
    ds = taken_in({"a.jsonl": "\n".join(map(json.dumps, lines))})
    assert ds[1]["mixed"] == "a"
    assert ds[1]["embedding"].tolist() == [0.5, 1.5]
    assert ds[0]["uneven"] == [[1], [2, 3]]


def test_invalid_lines_are_rejected_by_line_number() -> None:
    lines = [
        b'{"a": 1}',
        b"{",
        b"",
        b"[1]",
        b'{"a": "\xff"}',
        b'{"a": ' + b"[" * 100_000,
        b'{"a": 2}',
        b'{"a":1,"b":null}',
    ]
    _, found = read(JSONL, {"a.jsonl": b"\xef\xbb\xbf" + b"\n".join(lines)})
    assert list(rejects(found)) == ["a.jsonl:2", "a.jsonl:4", "a.jsonl:5", "a.jsonl:6"]
    assert "list" in rejects(found)["a.jsonl:4"]
    assert rows(found) == [{"a": number, "b": None} for number in (1, 2, 1)]
    assert found[-1].name == "a.jsonl:8"


def test_oversized_line_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_streams, "MAX_LINE_BYTES", 1000)
    monkeypatch.setattr(_streams, "BUFFER_BYTES", 100)
    long = json.dumps({"a": "x" * 5000})
    _, found = read(JSONL, {"a.jsonl": f'{{"a": "1"}}\n{long}\n{{"a": "2"}}\n{long}'})
    assert rows(found) == [{"a": "1"}, {"a": "2"}]
    assert list(rejects(found)) == ["a.jsonl:2", "a.jsonl:4"]


def test_unknown_key_after_the_sample_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_text, "_SAMPLED_LINES", 2)
    lines = '{"a": 1}\n{"a": 2}\n{"a": 3, "b": 4}\n{"a": 5}\n'
    _, found = read(JSONL, {"a.jsonl": lines, "b.jsonl": '{"_c": 1}\n'})
    assert rows(found) == [{"a": 1, "c": None}, {"a": 2, "c": None}, {"a": 5, "c": None}, {"a": None, "c": 1}]
    assert "'b'" in rejects(found)["a.jsonl:3"]


def test_files_without_objects_raise() -> None:
    with pytest.raises(InvalidInputError, match=r"a\.jsonl:1"):
        read(JSONL, {"a.jsonl": "nothing"})
    with pytest.raises(InvalidInputError, match=r"a\.csv"):
        read(CSV, {"a.csv": b"\xff\n"})
    with pytest.raises(InvalidInputError, match="no file"):
        read(CSV, {"a.jsonl": "{}"})


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.lists(st.dictionaries(st.sampled_from("abc"), JSON), min_size=1, max_size=6))
def test_any_objects_become_rows(given_rows: list[dict[str, Any]]) -> None:
    """Any first lines lead to some kind."""
    scan, found = read(JSONL, {"a.jsonl": "\n".join(map(json.dumps, given_rows))})
    assert rows(found) == [dict.fromkeys(scan.columns) | row for row in given_rows]
    for name, column in scan.columns.items():
        assert isinstance(column, Column)
        values = [row[name] for row in rows(found)]
        assert len(column.kind.to_array(values)) == len(values)
        assert column.nullable == (None in values)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.ndjson", "a.txt"])
@pytest.mark.parametrize("suffix", ["", ".gz", ".zst", ".zstd", ".bz2"])
def test_every_text_source_reads_every_compression(name: str, suffix: str, tmp_path: Path) -> None:
    data = {"csv": b"text\nhello\n", "tsv": b"text\nhello\n", "txt": b"hello"}.get(name[2:], b'{"text": "hello"}\n')
    (tmp_path / f"{name}{suffix}").write_bytes(packed(name + suffix, data))
    result = penstock.ingest(tmp_path, tmp_path / "table")
    assert penstock.load(tmp_path / "table")["text"][:] == ["hello"]
    assert result.kind == {"csv": "csv", "tsv": "csv", "txt": "text"}.get(name[2:], "jsonl")


def test_text_files_are_rows_with_their_classes_and_splits(tmp_path: Path) -> None:
    for number, name in enumerate(["train/pos/1", "train/neg/1", "test/pos/1", "test/neg/1"]):
        (tmp_path / "imdb" / name).parent.mkdir(parents=True)
        (tmp_path / "imdb" / f"{name}.txt").write_text(f"\ufeffreview {number}\nof a film")
    (tmp_path / "imdb" / "latin.txt").write_bytes("Tränen".encode("latin-1"))
    (tmp_path / "imdb" / "latin.txt").rename(tmp_path / "imdb" / "train" / "pos" / "latin.txt")
    result = penstock.ingest(tmp_path / "imdb", tmp_path / "table")
    ds = penstock.load(tmp_path / "table")
    assert sorted(ds["text"][:]) == [f"review {number}\nof a film" for number in range(4)]
    assert ds.schema["label"].kind == penstock.Label(("neg", "pos"))
    assert sorted(ds["split"][:]) == ["test", "test", "train", "train"]
    assert [(reject.name, reject.reason[:14]) for reject in result.rejects] == [
        ("train/pos/latin.txt", "not UTF-8 text")
    ]
    assert "each text file is a row; --as lines" in result.notes[0]


def test_a_text_above_the_limit_says_to_take_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_texts, "_MAX_TEXT_BYTES", 10)
    long = b"a text of many bytes\n"
    _, found = read(TEXT, {"a.txt": b"short", "b.txt": long, "c.txt.zst": packed("c.txt.zst", long)})
    assert [item.name for item in found if isinstance(item, Reject)] == ["b.txt", "c.txt.zst"]
    assert all("--as lines makes each line a row" in item.reason for item in found if isinstance(item, Reject))


@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "a.json.zst"])
def test_json_files_without_others_are_lines(name: str, tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / name).write_bytes(packed(name, b'{"text": "a"}\n{"text": "b"}\n'))
    assert penstock.ingest(tmp_path / "source", tmp_path / "table").rows == 2
    (tmp_path / "source" / "b.jsonl").write_text('{"text": "c"}\n')
    other = penstock.ingest(tmp_path / "source", tmp_path / "other", kind="jsonl")
    assert (other.rows, other.files.ignored) == (1, 1), "next to others it is metadata"
    (tmp_path / "array.json").write_text('[{"text": "a"}]')
    with pytest.raises(InvalidInputError, match="is a list and not an object; write one object in each line"):
        penstock.ingest(tmp_path / "array.json", tmp_path / "third")
