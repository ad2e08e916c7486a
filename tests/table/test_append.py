"""Append accepts rows in any form, stores them exactly, and rolls back a call that fails."""

import io
import os
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import simplejpeg
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock
from penstock import Audio, Boxes, Bytes, Column, Dataset, Image, Json, Label, Linked, List, Struct, Tensor, Text
from penstock.errors import InvalidInputError, StorageError
from penstock.format.kinds import Kind
from penstock.storage import Store, open_store
from penstock.testing import Fault, FaultyStore, assert_same
from tests.format.test_kinds import any_kind, same
from tests.servers import StoreLocation

steady = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
MIB = 1 << 20


def keys(store: Store) -> list[str]:
    return [item.key for item in store.list()]


def values_of(view: penstock.View, name: str = "x") -> list[Any]:
    return [row[name] for row in view]


COLUMNS = {"n": [1, 2, 3], "t": ["a", "b", "c"], "v": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]}
ROWS = [dict(zip(COLUMNS, row, strict=True)) for row in zip(*COLUMNS.values(), strict=True)]
TABLE = pa.table({"n": [1, 2, 3], "t": ["a", "b", "c"], "v": pa.array(COLUMNS["v"], pa.list_(pa.float64(), 2))})
SCHEMA = {"n": int, "t": str, "v": Tensor("float64", (2,))}


class ArrowStreamExporter:
    """Has the Arrow C stream interface, like Polars and DuckDB."""

    def __arrow_c_stream__(self, requested: Any = None) -> Any:
        return TABLE.__arrow_c_stream__(requested)


FORMS: dict[str, Callable[[], Any]] = {
    "columns": lambda: COLUMNS,
    "columns of arrays": lambda: {
        "n": np.array([1, 2, 3]),
        "t": np.array(["a", "b", "c"]),
        "v": np.array(COLUMNS["v"]),
    },
    "columns of Arrow arrays": lambda: {name: TABLE[name] for name in COLUMNS},
    "columns of pandas": lambda: {
        "n": pd.Series([1, 2, 3], [9, 8, 7]),
        "t": pd.Series(["a", "b", "c"]),
        "v": TABLE["v"],
    },
    "rows": lambda: ROWS,
    "tuple of rows": lambda: tuple(ROWS),
    "generator": lambda: (row for row in ROWS),
    "rows in another order": lambda: [dict(reversed(row.items())) for row in ROWS],
    "table": lambda: TABLE,
    "record batch": lambda: TABLE.combine_chunks().to_batches()[0],
    "reader": lambda: TABLE.to_reader(max_chunksize=2),
    "record batches": lambda: iter(TABLE.to_batches(max_chunksize=1)),
    "rows and record batches": lambda: [ROWS[0], *TABLE.slice(1, 1).to_batches(), ROWS[2]],
    "slice of a chunked table": lambda: pa.concat_tables([TABLE, TABLE, TABLE]).slice(2, 5).slice(1, 3),
    "data frame": lambda: TABLE.to_pandas(),
    "arrow stream": ArrowStreamExporter,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("schema", [SCHEMA, None], ids=["given", "inferred"])
def test_every_input_form_appends_the_same_rows(form: str, schema: Any) -> None:
    ds = penstock.create("memory://", schema)
    assert ds.append(FORMS[form]()) == 3
    assert_same(list(ds), ROWS)
    assert (ds.schema["n"].kind, ds.schema["t"].kind) == (Tensor("int64"), Text())
    ds.append(FORMS[form]())
    ds.commit()
    assert_same(list(ds), ROWS * 2)


def test_a_view_of_one_table_can_be_appended_to_another() -> None:
    source = penstock.create("memory://", {"n": Column(Tensor("int64"), nullable=True), "t": str})
    source.append({"n": [1, None, 3], "t": ["a", "b", "c"]})
    copy = penstock.create("memory://", source.schema)
    copy.append(source[::-1])
    copy.append({"n": source["n"][:], "t": source["t"][:]})
    assert_same(values_of(copy, "n"), [3, None, 1, 1, None, 3])


def list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(kind)


ARROW: dict[str, tuple[pa.Array, Any]] = {
    "large_string": (pa.array(["a", "ü"], pa.large_string()), ["a", "ü"]),
    "string_view": (pa.array(["a", "ü"], pa.string_view()), ["a", "ü"]),
    "large_binary": (pa.array([b"a", b""], pa.large_binary()), [b"a", b""]),
    "fixed binary": (pa.array([b"ab", b"cd"], pa.binary(2)), [b"ab", b"cd"]),
    "dictionary": (pa.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
    "dictionary of numbers": (pa.array([7, 7, 8]).dictionary_encode(), [7, 7, 8]),
    "bool": (pa.array([True, False]), [True, False]),
    "bools with a null": (pa.array([True, None]), [True, None]),
    "half float": (pa.array(np.array([1.5, 2], np.float16)), [1.5, 2]),
    "uint64": (pa.array([2**64 - 1], pa.uint64()), [2**64 - 1]),
    "timestamp": (pa.array([datetime(2020, 1, 2)]), [np.datetime64("2020-01-02", "us")]),
    "time zone": (
        pa.array([datetime(2020, 1, 2)], pa.timestamp("ms", "Asia/Tokyo")),
        [np.datetime64("2020-01-02", "ms")],
    ),
    "date": (pa.array([datetime(2020, 1, 2).date()]), [np.datetime64("2020-01-02", "s")]),
    "duration": (pa.array([5], pa.duration("ns")), [np.timedelta64(5, "ns")]),
    "list": (pa.array([[1, 2], [], None]), [[1, 2], [], None]),
    "large list": (pa.array([[1, 2], []], pa.large_list(pa.int8())), [[1, 2], []]),
    "list of text": (pa.array([["a"], [], ["b", None]]), [["a"], [], ["b", None]]),
    "list of lists": (pa.array([[[1], [2, 3]], []]), [[[1], [2, 3]], []]),
    "list of times": (pa.array([[5]], pa.list_(pa.timestamp("s"))), [[np.datetime64(5, "s")]]),
    "fixed list": (pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2)), [[1, 2], [3, 4]]),
    "fixed list with a null": (pa.array([[1, 2], None], pa.list_(pa.int16(), 2)), [[1, 2], None]),
    "fixed list of bools": (pa.array([[True, False]], pa.list_(pa.bool_(), 2)), [[True, False]]),
    "fixed list of times": (pa.array([[5, 6]], pa.list_(pa.timestamp("s"), 2)), [np.array([5, 6], "M8[s]")]),
    "fixed list of lists": (pa.array([[[1], [2]]], pa.list_(pa.list_(pa.int8(), 1), 2)), [[[1], [2]]]),
    "fixed list of text": (pa.array([["a", "b"]], pa.list_(pa.string(), 2)), [["a", "b"]]),
    "struct": (pa.array([{"a": 1, "b": "x"}, None]), [{"a": 1, "b": "x"}, None]),
    "list of structs": (pa.array([[{"a": 1.5}], []]), [[{"a": 1.5}], []]),
    "slice": (pa.array(["a", "b", "c", "d"]).slice(1, 2), ["b", "c"]),
    "slice of lists": (pa.array([[1], [2, 3], [4]]).slice(1), [[2, 3], [4]]),
    "slice of fixed lists": (pa.array([[1, 2], [3, 4]], pa.list_(pa.int16(), 2)).slice(1), [[3, 4]]),
    "slice of structs": (pa.array([{"a": [1]}, {"a": [2, 3]}]).slice(1), [{"a": [2, 3]}]),
    "chunks": (pa.chunked_array([["a"], [], ["b", "c"]]), ["a", "b", "c"]),
    "no chunks": (pa.chunked_array([], pa.string()), []),
}


@pytest.mark.parametrize("case", ARROW)
def test_arrow_columns_of_every_common_type_are_inferred(case: str) -> None:
    array, expected = ARROW[case]
    ds = penstock.create("memory://")
    assert ds.append(pa.table({"x": array})) == len(expected)
    if expected:
        assert_same(values_of(ds), expected)
        assert ds.append({"x": array}) == len(expected)
        assert_same(values_of(ds), expected * 2)


def test_arrow_tensors_are_accepted_with_any_axis_permutation() -> None:
    storage = pa.FixedSizeListArray.from_arrays(pa.array(range(12), pa.int32()), 6)
    rows = np.arange(12, dtype=np.int32).reshape(2, 2, 3)
    plain = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int32(), (2, 3)), storage)
    named = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int32(), (2, 3), dim_names=["a", "b"]), storage)
    permuted = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int32(), (2, 3), permutation=[1, 0]), storage)
    for tensors, expected in (
        (plain, rows),
        (named, rows),
        (permuted, rows.swapaxes(1, 2)),
        (plain.slice(1), rows[1:]),
    ):
        ds = penstock.create("memory://")
        ds.append({"x": tensors})
        np.testing.assert_array_equal(ds["x"][:], expected)
    ds = penstock.create("memory://", {"x": Column(Tensor("float64", (2, 3)), nullable=True)})
    ds.append({"x": plain})
    assert ds["x"][:].dtype == np.float64


@pytest.mark.parametrize(
    ("kind", "array", "expected"),
    [
        (Tensor("bfloat16"), pa.array([1.0, 2.0], pa.float32()), [1, 2]),
        (Tensor("float8_e5m2"), pa.array([1, 2]), [1, 2]),
        (Tensor("complex64"), pa.array([1.0, 2.0]), [1, 2]),
        (Tensor("int8"), pa.array([1.0, None]), [1, None]),
        (Tensor("float32"), pa.array([1, 2]), [1, 2]),
        (Tensor("float32", (None,)), pa.array([[1.0], None]), [[1.0], None]),
        (Tensor("float32", (None,)), pa.array([[1, 2]], pa.list_(pa.int8(), 2)), [[1, 2]]),
        (Tensor("bfloat16", (2,)), pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)), [[1, 2]]),
        (Tensor("datetime64[ns]"), pa.array([5, None], pa.timestamp("s")), [np.datetime64(5, "s"), None]),
        (Tensor("datetime64[ns]", (None,)), pa.array([[5]], pa.list_(pa.timestamp("s"))), [np.array([5], "M8[s]")]),
        (Label(("a", "b")), pa.array(["b", None]).dictionary_encode(), [1, None]),
        (Json(), pa.array([{"a": [1]}, None]), [{"a": [1]}, None]),
        (Text(), pa.nulls(2), [None, None]),
        (Tensor("int8", (2,)), pa.nulls(2), [None, None]),
        (Boxes(), pa.array([[[1.0, 2.0, 3.0, 4.0]], []]), [[[1, 2, 3, 4]], []]),
        (List(Text()), pa.array([["a"]], pa.large_list(pa.large_string())), [["a"]]),
    ],
    ids=str,
)
def test_arrow_of_another_type_is_converted_if_lossless(kind: Kind, array: pa.Array, expected: Any) -> None:
    ds = penstock.create("memory://", {"x": Column(kind, nullable=True)})
    ds.append({"x": array})
    assert_same(values_of(ds), expected)


@steady
@given(st.data(), any_kind(), st.booleans())
def test_arrow_exports_round_trip(data: st.DataObject, drawn: Any, nullable: bool) -> None:
    kind, strategy = drawn
    values = data.draw(st.lists(st.none() | strategy if nullable else strategy, min_size=1, max_size=4))
    ds = penstock.create("memory://", {"x": Column(kind, nullable=nullable)})
    ds.append({"x": values})
    copy = penstock.create("memory://", ds.schema)
    copy.append(ds[::-1].to_arrow())
    assert same(values_of(copy), values[::-1])


ARROW_INVALID: dict[str, tuple[Kind, pa.Array, int, str]] = {
    "number for text": (Text(), pa.array([1]), 0, "expected a string, got int"),
    "text for a number": (Tensor("int64"), pa.array(["1"]), 0, "strings cannot"),
    "text for bytes": (Bytes(), pa.array(["1"]), 0, "expected bytes, got str"),
    "not utf-8": (Text(), pa.array([b"\xff"]), 0, "expected a string, got bytes"),
    "float with a fraction": (Tensor("int64"), pa.array([1.0, 2.5]), 0, "float64 values cannot"),
    "too large": (Tensor("int8"), pa.array([1, 300]), 1, "does not fit int8"),
    "too large a float": (Tensor("float32"), pa.array([1.0, 1e300]), 1, "does not fit float32"),
    "number for bool": (Tensor("bool"), pa.array([0, 5]), 0, "cannot be stored as bool"),
    "byte for bool": (Tensor("bool"), pa.array([0, 5], pa.uint8()), 1, "1 and 0"),
    "null in a list": (Tensor("int64", (None,)), pa.array([[1], [1, None]]), 1, "an element is null"),
    "null in a fixed list": (Tensor("int64", (2,)), pa.array([[1, None]], pa.list_(pa.int64(), 2)), 0, "NoneType"),
    "other length": (Tensor("int64", (2,)), pa.array([[1, 2, 3]], pa.list_(pa.int64(), 3)), 0, r"got shape \(3,\)"),
    "too fine a time": (Tensor("datetime64[s]"), pa.array([0, 1], pa.timestamp("ns")), 1, "without loss"),
    "time for a number": (Tensor("int64"), pa.array([1], pa.timestamp("s")), 0, "datetime64"),
    "time of day": (Tensor("datetime64[s]"), pa.array([1], pa.time32("s")), 0, "type time cannot"),
    "decimal": (Tensor("float64"), pa.array([1], pa.decimal128(20, 2)), 0, "type Decimal cannot"),
    "no class": (Label(("a", "b")), pa.array([0, 7]), 1, "not one of the 2 classes"),
    "no class name": (Label(("a", "b")), pa.array(["a", "z"]), 1, "'z' is not one"),
    "no json": (Json(), pa.array(['{"a": 1}', "nope"]), 1, "not JSON"),
    "no image": (Image(), pa.array([b"x"]), 0, "not of an image format"),
    "other sound": (Audio("wav"), pa.array([b"fLaC" + bytes(30)]), 0, "these are flac"),
    "missing": (Tensor("int64"), pa.array([1, None]), 1, "missing, and the column is not nullable"),
    "all missing": (Text(), pa.nulls(2), 0, "missing, and the column is not nullable"),
    "links": (Linked(Bytes()), pa.array([{"path": "p"}], Linked(Bytes()).arrow_type), 0, "expected a penstock.Link"),
    "deep inside": (
        List(Struct({"a": Label(("x",))})),
        pa.array([[], [{"a": 0}, {"a": 1}]], List(Struct({"a": Label(("x",))})).arrow_type),
        1,
        "not one of the 1 classes",
    ),
}


@pytest.mark.parametrize("case", ARROW_INVALID)
def test_arrow_that_does_not_fit_raises_with_column_and_row(case: str) -> None:
    kind, array, row, reason = ARROW_INVALID[case]
    ds = penstock.create("memory://", {"x": kind})
    with pytest.raises(InvalidInputError, match=f"column 'x', row {row}: .*{reason}.*The whole call was rolled back"):
        ds.append({"x": array})
    assert not ds.summary().has_changes


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"n": [1, 2], "t": ["a"]}, r"different numbers of rows: 'n' 2, 't' 1"),
        ({"n": [1], "t": ["a"], "z": [1]}, "no column 'z'; the table has n, t"),
        ({"n": [1]}, "column 't', row 0: no value was given, and the column is not nullable"),
        ([{"n": 1, "t": "a"}, {"n": 1}], "column 't', row 1: the value is missing"),
        ([{"n": 1, "t": "a"}, ("n", 1)], "row 1: expected a dictionary, got tuple"),
        ({"n": 5, "t": ["a"]}, "column 'n': expected a list or an array with a value per row, got int"),
        ({"n": [1], "t": "a"}, "column 't': expected a list"),
        ({"n": {1}, "t": ["a"]}, "column 'n': expected a list"),
        ("n", "append takes a dictionary of columns"),
        (b"n", "append takes a dictionary of columns"),
        (np.zeros(3), "append takes a dictionary of columns"),
        (5, "append takes a dictionary of columns"),
        (None, "append takes a dictionary of columns"),
        (pa.table([[1], [2]], names=["n", "n"]), "two columns of one name"),
        (pd.DataFrame({"n": [1, "x"], "t": ["a", "b"]}), "pandas data of mixed"),
        ({3: [1]}, "no column 3"),
    ],
    ids=str,
)
def test_invalid_appends_raise_with_a_reason(data: Any, reason: str) -> None:
    ds = penstock.create("memory://", {"n": int, "t": str})
    with pytest.raises(InvalidInputError, match=reason):
        ds.append(data)
    assert not ds.summary().has_changes
    assert len(ds) == 0


@pytest.mark.parametrize(
    "data", [[], {}, {"n": []}, iter([]), pa.table({"n": pa.array([], pa.int64())}), pd.DataFrame()]
)
@pytest.mark.parametrize("schema", [{"n": int}, None])
def test_an_empty_append_changes_nothing(data: Any, schema: Any) -> None:
    ds = penstock.create("memory://", schema)
    assert ds.append(data) == 0
    assert not ds.summary().has_changes


def test_rows_without_columns_raise() -> None:
    ds = penstock.create("memory://")
    with pytest.raises(InvalidInputError, match="no columns"):
        ds.append([{}, {}])
    nullable = penstock.create("memory://", {"n": Column(Tensor("int64"), nullable=True)})
    nullable.append([{}, {}])
    assert values_of(nullable, "n") == [None, None]


def rows_then(last: Callable[[], Any]) -> Iterator[dict[str, Any]]:
    for number in range(3000):
        yield {"n": number, "b": bytes(17 * MIB) if number == 5 else b"x"}
    yield last()


def fail() -> Any:
    raise RuntimeError("the source broke")


@pytest.mark.parametrize(
    ("last", "error", "reason"),
    [
        (lambda: {"n": 1.5, "b": b""}, InvalidInputError, "column 'n', row 3000: "),
        (lambda: {"n": 1, "b": None}, InvalidInputError, "column 'b', row 3000: the value is missing"),
        (lambda: {"n": 1, "b": b"", "c": 1}, InvalidInputError, "no column 'c'"),
        (lambda: {"n": 1, "b": Path("/nowhere")}, InvalidInputError, "column 'b', row 3000: cannot be read"),
        (fail, RuntimeError, "the source broke"),
    ],
    ids=["value", "missing", "column", "file", "source"],
)
@pytest.mark.parametrize("inferred", [True, False])
def test_a_failed_append_leaves_no_objects(
    store_uri: StoreLocation, last: Callable[[], Any], error: type[Exception], reason: str, inferred: bool
) -> None:
    schema = None if inferred else {"n": Column(Tensor("int64"), file_bytes=4096, page_bytes=1024), "b": Bytes()}
    ds = penstock.create(store_uri.uri, schema, storage_options=store_uri.options)
    before = keys(store_uri.open())
    with pytest.raises(error, match=reason):
        ds.append(rows_then(last))
    assert keys(store_uri.open()) == before
    assert not ds.summary().has_changes
    assert (len(ds), len(ds.schema.names)) == (0, 0 if inferred else 2)
    assert ds.append([{"n": 1, "b": b"x"}]) == 1
    ds.commit()
    assert_same(list(penstock.load(store_uri.uri, storage_options=store_uri.options)), [{"n": 1, "b": b"x"}])


class SignalsPuts(FaultyStore):
    """Signals each put that has ended, with success or failure."""

    def __init__(self, store: Store, *faults: Fault) -> None:
        super().__init__(store, *faults)
        self.puts_ended = threading.Semaphore(0)

    def put(self, key: str, data: Any) -> None:
        try:
            super().put(key, data)
        finally:
            self.puts_ended.release()


@pytest.mark.parametrize("failing", [0, 3])
@pytest.mark.parametrize("wait_for_puts", [False, True])
def test_a_store_failure_leaves_no_objects_and_can_be_retried(failing: int, wait_for_puts: bool) -> None:
    store = open_store("memory://")
    penstock.create(store, {"n": Column(Tensor("int64"), file_bytes=8192, page_bytes=8192)})
    faulty = SignalsPuts(store, Fault("fail_before", "put", "data/*", skip=failing))
    ds = penstock.load(faulty)
    before = keys(store)

    def rows() -> Iterator[dict[str, int]]:
        for number in range(1024 * (8 if wait_for_puts else 4)):
            if wait_for_puts and number == 1024 * 7 - 1:
                for _ in range(6):
                    faulty.puts_ended.acquire()
                time.sleep(0.1)
            yield {"n": number}

    with pytest.raises(StorageError, match="injected"):
        ds.append(rows())
    assert keys(store) == before
    assert not ds.summary().has_changes
    ds.append({"n": np.arange(1000)})
    ds.commit()
    np.testing.assert_array_equal(penstock.load(store)["n"][:], np.arange(1000))


def test_later_batches_must_fit_the_schema_inferred_from_the_first() -> None:
    ds = penstock.create("memory://")
    with pytest.raises(InvalidInputError, match="column 'x', row 2000: strings cannot be stored as int64"):
        ds.append({"x": number if number < 2000 else "a"} for number in range(2001))
    assert ds.schema.names == []
    ds.append({"x": [1]})
    with pytest.raises(InvalidInputError, match="column 'x', row 0: float64"):
        ds.append({"x": [1.5]})
    assert values_of(ds) == [1]


def test_rows_may_omit_nullable_and_filled_columns_across_batches() -> None:
    ds = penstock.create("memory://", {"a": int, "b": Column(Text(), nullable=True)})
    ds.add_column("c", Column(Tensor("int64"), nullable=True), fill=7)
    ds.add_column("d", Image(), fill=np.full((1, 1, 3), 9, np.uint8))
    rows: list[dict[str, Any]] = [{"a": number} for number in range(2100)]
    rows[1023] |= {"b": "x", "c": None}
    rows[1025] |= {"c": 8, "d": np.zeros((1, 1, 3), np.uint8)}
    ds.append(iter(rows))
    expected = [7] * 2100
    assert_same(values_of(ds, "c"), [*expected[:1023], None, 7, 8, *expected[1026:]])
    assert [int(value[0, 0, 0]) for value in values_of(ds, "d")] == [9] * 1025 + [0] + [9] * 1074
    assert [number for number, value in enumerate(values_of(ds, "b")) if value is not None] == [1023]


def test_a_generator_is_consumed_as_its_rows_are_stored(tmp_path: Path) -> None:
    alive: set[int] = set()
    most_alive = 0

    def rows() -> Iterator[dict[str, Any]]:
        nonlocal most_alive
        for number in range(200):
            value = np.full(MIB // 2, number % 256, np.uint8)
            alive.add(number)
            weakref.finalize(value, alive.discard, number)
            most_alive = max(most_alive, len(alive))
            yield {"x": value}

    ds = penstock.create(tmp_path, {"x": Tensor("uint8", (MIB // 2,))})
    assert ds.append(rows()) == 200
    assert most_alive <= 130  # two batches of 32 MiB: one buffered, one being stored
    assert ds["x"][199][0] == 199


def test_files_given_by_path_are_streamed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(bytes(2 * MIB))
    ds = penstock.create(tmp_path / "table", {"x": Bytes()})
    tracemalloc.start()
    try:
        ds.append({"x": [file] * 80})
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100 * MIB
    assert len(ds["x"][79]) == 2 * MIB


def test_many_small_appends_stay_in_order() -> None:
    ds = penstock.create("memory://", {"x": int})
    for number in range(300):
        ds.append({"x": [number]})
        if number % 100 == 50:
            ds.commit()
    ds.commit()
    np.testing.assert_array_equal(ds["x"][:], np.arange(300))
    assert penstock.load(ds._session.store)[-1] == {"x": 299}


def test_paths_and_open_files_are_read_as_bytes(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_bytes(b"from a path")
    read, write = os.pipe()

    def feed() -> None:
        for _ in range(9):
            os.write(write, b"x" * 999)
        os.close(write)

    threading.Thread(target=feed).start()
    with path.open("rb") as open_file, os.fdopen(read, "rb", buffering=0) as pipe:
        ds = penstock.create("memory://", {"x": Bytes()})
        ds.append({"x": [path, open_file, io.BytesIO(b"in memory"), pipe, memoryview(b"abcd")[::2]]})
        assert not open_file.closed
    assert ds["x"][:] == [b"from a path", b"from a path", b"in memory", b"x" * 999 * 9, b"ac"]


class ShortReads(io.RawIOBase):
    """A file whose reads return fewer bytes than requested, as sockets do."""

    def __init__(self, data: bytes) -> None:
        self._rest = data

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        part, self._rest = self._rest[: min(size, 70_000)], self._rest[70_000:]
        return part


@pytest.mark.parametrize("size", [0, 1, 70_000, 70_001, 16 * MIB, 16 * MIB + 1, 17 * MIB])
def test_short_reads_do_not_end_a_file(size: int) -> None:
    data = np.arange(size, dtype=np.uint32).astype(np.uint8).tobytes()
    ds = penstock.create("memory://", {"x": Bytes()})
    ds.append({"x": [ShortReads(data)]})
    assert ds["x"][0] == data


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Path("/nowhere/a"), "cannot be read: .*No such file"),
        (Path("/"), "cannot be read: .*Is a directory"),
        (io.StringIO("text"), "expected a file of bytes, got one of str"),
    ],
)
def test_an_unreadable_file_raises_with_column_and_row(value: Any, reason: str) -> None:
    ds = penstock.create("memory://", {"x": Bytes()})
    with pytest.raises(InvalidInputError, match=f"column 'x', row 1: {reason}"):
        ds.append({"x": [b"", value]})


def test_a_closed_file_raises() -> None:
    closed = io.BytesIO(b"x")
    closed.close()
    with pytest.raises(InvalidInputError, match=r"column 'x', row 0: cannot be read: .*closed"):
        penstock.create("memory://", {"x": Bytes()}).append({"x": [closed]})


@pytest.mark.parametrize("size", [100, 17 * MIB])
@pytest.mark.parametrize("form", ["bytes", "file", "arrow"])
def test_bytes_of_another_kind_raise_at_any_length(size: int, form: str) -> None:
    given: Any = [bytes(size)]
    if form == "file":
        given = [io.BytesIO(bytes(size))]
    if form == "arrow":
        given = pa.array(given, pa.large_binary())
    ds = penstock.create("memory://", {"x": Image()})
    before = keys(ds._session.store)
    with pytest.raises(InvalidInputError, match="column 'x', row 0: these bytes are not of an image format"):
        ds.append({"x": given})
    assert keys(ds._session.store) == before


def inferred(values: Any) -> Dataset:
    ds = penstock.create("memory://")
    ds.append({"x": values})
    return ds


def test_data_frames_lose_their_index_and_keep_nulls() -> None:
    frame = pd.DataFrame(
        {"n": [1.5, None], "t": ["a", None], "d": np.array(["2020-01-01", "NaT"], "M8[us]")}, index=[7, 9]
    )
    ds = penstock.create("memory://")
    ds.append(frame)
    assert ds.schema.names == ["n", "t", "d"]
    assert_same(list(ds), [{"n": 1.5, "t": "a", "d": np.datetime64("2020-01-01")}, {"n": None, "t": None, "d": None}])


def test_integers_that_pandas_widened_to_float_fit_a_nullable_int_column() -> None:
    ds = penstock.create("memory://", {"n": Column(Tensor("int64"), nullable=True)})
    ds.append(pd.DataFrame({"n": [1, None, 3]}))
    assert_same(values_of(ds, "n"), [1, None, 3])


def test_pandas_categories_become_text() -> None:
    assert values_of(inferred(pd.Series(["a", "b", "a"], dtype="category"))) == ["a", "b", "a"]


def test_pages_of_light_columns_are_smaller_unless_a_size_is_set() -> None:
    ds = penstock.create(
        "memory://",
        {
            "n": int,
            "label": Tensor("float32"),
            "custom": Column(Tensor("int64"), page_bytes=64 << 10),
            "heavy": Tensor("uint8", (512,)),
        },
    )
    rows = 12_000
    numbers = np.arange(rows)
    ds.append({"n": numbers, "label": numbers, "custom": numbers, "heavy": np.zeros((rows, 512), np.uint8)})
    ds.commit()
    (fragment,) = ds._session.tree.fragments(ds._session.snapshot.nodes)
    row_bytes = {"n": 12, "label": 12, "custom": 8, "heavy": 512}
    page_bytes = {"n": 32 << 10, "label": 32 << 10, "custom": 64 << 10, "heavy": 256 << 10}
    for name, size in row_bytes.items():
        (file,) = fragment.files_of(ds.schema[name].id)
        assert np.abs(file.page_rows[:-1] * size - page_bytes[name]).max() < size
    assert_same(ds["n"][:].tolist(), numbers.tolist())


def test_pages_of_a_light_column_added_later_are_smaller() -> None:
    ds = penstock.create("memory://", {"heavy": Tensor("uint8", (512,))})
    ds.append({"heavy": np.zeros((9000, 512), np.uint8)})
    ds.add_column("n", values=np.arange(9000))
    (fragment,) = ds._session.tree.fragments(ds._session.snapshot.nodes)
    (file,) = fragment.files_of(ds.schema["n"].id)
    assert file.page_rows.tolist() == [8192, 808]


def test_encoded_bytes_can_be_an_array(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    files = [simplejpeg.encode_jpeg(pixels, quality=90), Image("bmp").to_array([pixels])[0].as_py()]
    arrays = [np.frombuffer(file, np.uint8) for file in files]
    strided = np.repeat(arrays[0], 2)[::2]
    ds = penstock.create(tmp_path / "t", {"image": Image(), "raw": Bytes()})
    ds.append({"image": [*arrays, strided], "raw": [*arrays, strided]})
    ds.append([{"image": arrays[0], "raw": arrays[1]}])
    ds.update(positions=[0], data={"image": arrays[1]})
    ds.update(positions=[1, 2], data={"image": [arrays[0], arrays[1]]})
    ds.add_column("again", Image(), compute=lambda batch: [np.frombuffer(files[1], np.uint8) for _ in batch["raw"]])
    ds.commit()
    table = ds.to_arrow()
    assert table["image"].to_pylist() == [files[1], files[0], files[1], files[0]]
    assert table["raw"].to_pylist() == [*files, files[0], files[1]]
    assert table["again"].to_pylist() == [files[1]] * 4
    with pytest.raises(InvalidInputError, match="column 'image', row 0: these bytes are not of an image format"):
        ds.append([{"image": np.zeros(10, np.uint8), "raw": b""}])
    large = Image("bmp").to_array([np.zeros((2400, 2400, 3), np.uint8)])[0].as_py()  # a blob
    ds.append([{"image": np.frombuffer(large, np.uint8), "raw": b"", "again": files[0]}])
    assert ds.select("image")[-1:].to_arrow()["image"][0].as_py() == large
