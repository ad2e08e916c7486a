"""Indexes: what they answer is what a scan answers, at every version, and they are built in bounded steps."""

from dataclasses import replace
from datetime import timedelta
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import CorruptError, InvalidInputError, NotFoundError, StorageError
from penstock.format import IndexEntry, crc32c, new_id
from penstock.query.indexes import answer_filter, open_index
from penstock.query.indexes._build import BuildPlan, build_segment, merge_sorted
from penstock.query.indexes._kind import KEY, TableLayout
from penstock.query.indexes._pages import PagedTable, PageWriter
from penstock.query.indexes._scalar import ScalarKind
from penstock.storage import Store, open_store
from penstock.testing import CountingStore, Fault, FaultyStore
from tests.servers import new_location


def memory_store() -> Store:
    return open_store(f"memory://{new_id()}")


SCHEMA: dict[str, Any] = {
    "n": penstock.Column("int64", nullable=True),
    "f": penstock.Column("float32", nullable=True),
    "t": penstock.Column("text", nullable=True),
    "b": "bool",
    "at": "datetime64[us]",
}


def rows(rng: np.random.Generator, count: int) -> dict[str, Any]:
    floats = rng.choice(np.array([0, -1.5, 2, np.nan, np.inf], np.float32), count).tolist()
    return {
        "n": [None if rng.random() < 0.2 else int(rng.integers(-3, 4)) for _ in range(count)],
        "f": [None if rng.random() < 0.2 else value for value in floats],
        "t": [None if rng.random() < 0.2 else str(rng.choice(["a", "b", "ü", ""])) for _ in range(count)],
        "b": rng.random(count) < 0.5,
        "at": rng.integers(0, 5, count).astype("datetime64[us]"),
    }


field = pc.field
moment = pa.scalar(2, pa.timestamp("us"))
FILTERS = [
    (field("n") == 2, ["n"]),
    (field("n") > 0, ["n"]),
    (field("n").is_null(), ["n"]),
    (~(field("n") == 2), ["n"]),
    (field("n").isin([1, 3]), ["n"]),
    (field("f") >= 2, ["f"]),
    (field("f") != 2, ["f"]),
    (field("t") == "ü", ["t"]),
    (field("t") > "a", ["t"]),
    (field("b") == pa.scalar(True), ["b"]),
    (field("at") < moment, ["at"]),
    ((field("n") == 2) & (field("t") == "a"), ["n", "t"]),
    ((field("n") == 2) | (field("t") == "a"), ["n", "t"]),
    ((field("n") > 1) & (field("at") == moment) & (field("b") == pa.scalar(False)), ["n", "at", "b"]),
]


def check_answers(ds: penstock.Dataset) -> int:
    """Compare every filter with a scan; returns how many the indexes answered."""
    reader, answered = ds._reader, 0
    everything = reader.arrow(list(SCHEMA), np.arange(len(ds))).append_column("_", pa.array(np.arange(len(ds))))
    for filter, columns in FILTERS:
        answer = answer_filter(reader, filter)
        if answer is None:
            continue
        answered += 1
        table = reader.arrow(columns, answer.unchecked).append_column("_", pa.array(answer.unchecked))
        found = np.union1d(answer.matches, np.asarray(table.filter(filter)["_"]))
        assert found.tolist() == np.asarray(everything.filter(filter)["_"]).tolist(), filter
    return answered


OPERATIONS = ["append", "delete", "update", "update other", "compact", "extend", "branch", "merge", "reset", "drop"]


@given(st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=6), st.integers(0, 1 << 20))
@settings(max_examples=15)
def test_an_index_answers_as_a_scan_does_whatever_happens_to_the_table(operations: list[str], seed: int) -> None:
    rng, store = np.random.default_rng(seed), memory_store()
    ds = penstock.create(store, SCHEMA)
    ds.append(rows(rng, 300))
    ds.commit("rows")
    for column in SCHEMA:
        ds.create_index(column, kind="scalar")
    assert check_answers(ds) == len(FILTERS)
    other = ds.branches.create("other")
    for number, operation in enumerate(operations):
        chosen = rng.choice(len(ds), min(len(ds), 40), replace=False)
        if operation == "append":
            ds.append(rows(rng, 30))
        elif operation == "delete":
            ds.delete(positions=chosen[:20])
        elif operation == "update":
            ds.update(positions=chosen, data={"n": [int(value) for value in rng.integers(-3, 4, len(chosen))]})
        elif operation == "update other":
            other.update(positions=[int(rng.integers(0, len(other)))], data={"t": f"other {number}"})
            other.commit("other")
            check_answers(other)
        elif operation == "compact":
            ds.commit()
            penstock.compact(store)
            ds = penstock.load(store)
        elif operation == "extend":
            ds.commit()
            ds.create_index("n", kind="scalar")
            assert next(index for index in ds.indexes() if index.column == "n").uncovered == 0
        elif operation == "branch":
            ds.commit()
            other = ds.branches.create(f"b{number}")
        elif operation == "merge":
            ds.commit()
            ds.merge(other.version.partition("@")[0], on_conflict="theirs")
        elif operation == "reset":
            ds.commit()
            ds.reset(max(0, int(ds.version.partition("@")[2]) - 2))
        elif operation == "drop" and any(index.column == "t" for index in ds.indexes()):
            ds.commit()
            ds.drop_index("t_scalar")
        check_answers(ds)
    ds.commit()
    check_answers(penstock.load(store))
    assert not penstock.verify(store).damaged


def test_an_index_survives_vacuum_and_goes_with_its_versions() -> None:
    store = memory_store()
    ds = penstock.create(store, SCHEMA)
    ds.append(rows(np.random.default_rng(0), 500))
    ds.commit("rows")
    ds.create_index("n", kind="scalar")
    penstock.vacuum(store, older_than=timedelta(0))
    assert check_answers(penstock.load(store))
    ds.drop_index("n_scalar")
    penstock.vacuum(store, older_than=timedelta(0))
    assert not list(store.list("index/"))


def test_damage_to_an_index_is_found() -> None:
    store = memory_store()
    ds = penstock.create(store, SCHEMA)
    ds.append(rows(np.random.default_rng(0), 500))
    ds.commit("rows")
    ds.create_index("n", kind="scalar")
    for item in list(store.list("index/search/")):
        data = bytearray(store.get(item.key))
        data[len(data) // 2] ^= 1
        good = bytes(store.get(item.key))
        store.put(item.key, bytes(data))
        assert any(item.key in line for line in penstock.verify(store).damaged), item.key
        store.put(item.key, good)
    assert not penstock.verify(store).damaged


def test_errors_say_what_to_do() -> None:
    ds = penstock.create(memory_store(), {**SCHEMA, "image": "uint8[4, 4]"})
    with pytest.raises(InvalidInputError, match=r"choose one of .*scalar"):
        ds.create_index("n", kind="btree")
    with pytest.raises(InvalidInputError, match="for numbers, labels, bools, times and text"):
        ds.create_index("image", kind="scalar")
    with pytest.raises(InvalidInputError, match="no option 'metric'"):
        ds.create_index("n", kind="scalar", metric="cosine")
    with pytest.raises(NotFoundError, match="no index 'x'; there is none"):
        ds.drop_index("x")
    ds.create_index("n", kind="scalar")
    with pytest.raises(InvalidInputError, match="has a scalar index already, 'n_scalar'"):
        ds.create_index("n", kind="scalar", name="again")
    with pytest.raises(InvalidInputError, match="another column, kind or options"):
        ds.create_index("f", kind="scalar", name="n_scalar")
    ds.append(rows(np.random.default_rng(0), 2) | {"image": np.zeros((2, 4, 4), np.uint8)})
    with pytest.raises(InvalidInputError, match="uncommitted changes"):
        ds.create_index("f", kind="scalar")


def test_a_concurrent_writer_keeps_its_rows_and_the_index_is_kept() -> None:
    store = memory_store()
    rng = np.random.default_rng(0)
    ds = penstock.create(store, SCHEMA)
    ds.append(rows(rng, 100))
    ds.commit("rows")
    other = penstock.load(store)
    other.append(rows(rng, 20))
    ds.create_index("n", kind="scalar")
    other.commit("more")
    found = penstock.load(store)
    assert len(found) == 120
    assert [index.uncovered for index in found.indexes()] == [20]
    other.update(positions=[0], data={"n": 3})
    ds = penstock.load(store)
    other.commit("update")
    ds.create_index("f", kind="scalar")
    assert check_answers(penstock.load(store))


class SmallRuns(ScalarKind):
    """An index that is built in many runs."""

    run_bytes: ClassVar[int] = 8 * 100


def test_a_build_continues_after_the_runs_that_are_finished() -> None:
    store = memory_store()
    ds = penstock.create(store, {"n": "int64"})
    ds.append({"n": np.random.default_rng(0).integers(0, 50, 1000)})
    ds.commit("rows")
    reader, column = ds._reader, ds.schema["n"]
    seen: list[int] = []

    class Recorded(SmallRuns):
        def run(self, row_ids: Any, values: Any, objects: Any) -> Any:
            seen.append(len(row_ids))
            return super().run(row_ids, values, objects)

    faulty = FaultyStore(store, Fault("fail_before", "put", key="index/building/*.json", skip=4))
    plan = BuildPlan(replace(reader, store=faulty), column, Recorded("n", pa.int64()), new_id(), np.arange(1000))
    with pytest.raises(StorageError):
        build_segment(plan, {}, lambda _done, _rows: None)
    runs, seen[:] = len(seen), []
    steps: list[tuple[int, int]] = []
    segment = build_segment(replace(plan, reader=reader), {}, lambda done, count: steps.append((done, count)))
    assert runs == 5
    assert 0 < len(seen) <= 7
    assert steps[-1] == (1000, 1000)
    table = PagedTable(store, plan.key_of, segment.tables["values"], plan.kind.tables["values"])
    entries = pa.Table.from_batches([page for pages in table.scan(group=3) for page in pages])
    values = reader.arrow(["n", "_row_id"], np.arange(1000)).sort_by([("n", "ascending"), ("_row_id", "ascending")])
    assert entries[KEY].to_pylist() == values["n"].to_pylist()
    assert entries["row_id"].to_pylist() == values["_row_id"].to_pylist()


@given(
    st.lists(st.lists(st.sampled_from("aaaabcdü"), max_size=60), min_size=1, max_size=6),
    st.integers(1, 200),
    st.booleans(),
)
@settings(max_examples=30)
def test_sorted_runs_merge_in_order(runs: list[list[str]], page_bytes: int, split: bool) -> None:
    store, schema = memory_store(), pa.schema([(KEY, pa.string()), ("n", pa.int64())])
    layout = TableLayout(schema, page_bytes=page_bytes, split_at_keys=split)
    tables, number = [], 0
    for run in runs:
        writer = PageWriter(store, lambda name: f"x/{name}", layout)
        writer.write(pa.table({KEY: sorted(run), "n": range(number, number + len(run))}, schema))
        number += len(run)
        tables.append(PagedTable(store, lambda name: f"x/{name}", writer.finish(), layout))
    merged = [row for part in merge_sorted(tables) for row in zip(*part.to_pydict().values(), strict=True)]
    everything = [
        row for table in tables for pages in table.scan(group=2) for page in pages
        for row in zip(*page.to_pydict().values(), strict=True)
    ]  # fmt: skip
    assert merged == sorted(everything)
    for table in tables:
        for low, high in [("a", "a"), ("b", "c"), ("ü", "ü")]:
            found = [key for page in table.read(table.pages_between(low, high)) for key in page[KEY].to_pylist()]
            wanted = [key for pages in table.scan(group=9) for page in pages for key in page[KEY].to_pylist()]
            assert [key for key in found if low <= key <= high] == [key for key in wanted if low <= key <= high]
        if split:
            assert all(len(set(page[KEY].to_pylist())) == 1 for pages in table.scan(group=9) for page in pages)


def test_pages_are_read_from_s3_by_ranges() -> None:
    location = new_location("s3")
    ds = penstock.create(location.uri, {"n": "int64"}, storage_options=location.options)
    ds.append({"n": np.random.default_rng(0).permutation(200_000)})
    ds.commit("rows")
    ds.create_index("n", kind="scalar")
    store = CountingStore(open_store(location.uri, options=location.options))
    opened = penstock.load(store)
    size = sum(item.size for item in store.list("index/search/"))
    for expected_requests in (5, 1):  # the first one reads the header, a directory each, a page and a manifest
        store.reset()
        answer = answer_filter(opened._reader, field("n") == 777)
        assert answer is not None
        assert len(answer.matches) == 1
        assert store.requests["get"] <= expected_requests
    assert store.bytes["get"] < size / 5


def test_a_hostile_page_with_a_valid_checksum_is_corrupt() -> None:
    store = memory_store()
    ds = penstock.create(store, {"n": "int64"})
    ds.append({"n": np.arange(1000)})
    ds.commit("rows")
    ds.create_index("n", kind="scalar")
    [entry] = IndexEntry.of_snapshot(ds._reader.snapshot.indexes)
    index = open_index(ds._reader, ds.schema["n"], "scalar")
    assert index is not None
    table = index.segments[0].tables["values"]
    [(key, part)] = table.requests([0])
    page = bytearray(store.get(key, byte_range=part))
    for offset in range(0, 240, 7):
        bad = bytes(page[:offset]) + bytes([page[offset] ^ 0xFF]) + bytes(page[offset + 1 :])
        hostile = PagedTable(store, lambda _: "hostile", table.ref, table._layout)
        hostile.directory = table.directory.set_column(5, "crc", pa.array([crc32c(bad)], pa.uint32()))
        store.put("hostile", bytes(part.start) + bad)
        try:
            found = hostile.read([0])
        except CorruptError:
            continue
        assert found[0].num_rows == 1000
    assert entry.kind == "scalar"


def test_an_index_that_lacks_no_row_is_not_extended() -> None:
    store = memory_store()
    rng = np.random.default_rng(0)
    ds = penstock.create(store, SCHEMA)
    ds.append(rows(rng, 200))
    ds.commit("rows")
    ds.create_index("n", kind="scalar")
    ds.append(rows(rng, 20))
    ds.commit("more")
    version = ds.create_index("n", kind="scalar")  # two segments
    ds.delete(positions=[0, 1])
    ds.commit("fewer")
    objects = {item.key for item in store.list("")}
    for _ in range(2):
        assert ds.create_index("n", kind="scalar") == ds.version == f"main@{int(version[5:]) + 1}"
    assert {item.key for item in store.list("")} == objects
    assert check_answers(ds)


def segment_rows(ds: penstock.Dataset, column: str, kind: str) -> list[int]:
    index = open_index(ds._reader, ds.schema[column], kind)
    assert index is not None
    return [segment.rows for segment in index.segments]


def test_compaction_does_not_read_the_rows_that_an_index_covers() -> None:
    store = CountingStore(memory_store())
    rng = np.random.default_rng(0)
    ds = penstock.create(store, {"t": "text", "v": "float32[64]"})
    for count in (4000, 40, 30):
        ds.append({"t": [f"word{n % 50} text" for n in range(count)], "v": rng.normal(size=(count, 64))})
        ds.commit("rows")
        ds.create_index("v", kind="vector")
        ds.create_index("t", kind="text")
    assert segment_rows(ds, "v", "vector") == [4000, 40, 30]
    kept = {item.key for item in store.list("index/search/")}
    ds.append({"t": ["word1 new"] * 5, "v": rng.normal(size=(5, 64))})
    ds.commit("rows")
    penstock.compact(store)
    ds = penstock.load(store)
    for column, kind in (("v", "vector"), ("t", "text")):
        assert sum(segment_rows(ds, column, kind)) == 4075
        assert segment_rows(ds, column, kind)[0] == 4000
    assert all(index.uncovered == 0 for index in ds.indexes())
    new = [item for item in store.list("index/search/") if item.key not in kept]
    old = sum(item.size for item in store.list("index/search/") if item.key in kept)
    assert sum(item.size for item in new) < old / 4


@pytest.mark.parametrize("repeated", [False, True])
def test_segments_are_few_however_often_an_index_is_extended(repeated: bool) -> None:
    rng, store = np.random.default_rng(0), memory_store()
    ds = penstock.create(store, {**SCHEMA, "words": "text", "v": "float32[8]"})

    def more(count: int) -> dict[str, Any]:
        words = [f"robot {rng.integers(0, 5)} sees {rng.choice(['cups', 'doors', 'hands'])}" for _ in range(count)]
        return {**rows(rng, count), "words": words, "v": rng.normal(size=(count, 8)).astype(np.float32)}

    ds.append(more(400))
    ds.commit("rows")
    kinds = {"n": "scalar", "t": "scalar", "words": "text", "v": "vector"}
    for column, kind in kinds.items():
        ds.create_index(column, kind=kind)
    for number in range(11):
        if number % 3 == 0:
            ds.append(more(7))
        new = more(4)
        # rows that are changed again are void in one segment and valid in another
        chosen = [0, 1, 2, 3] if repeated else rng.choice(len(ds), 4, replace=False)
        ds.update(positions=chosen, data={name: new[name] for name in kinds})
        ds.delete(positions=[int(rng.integers(10, len(ds)))])
        ds.commit("change")
        if number % 5 == 4:
            penstock.compact(store)
            ds = penstock.load(store)
        for column, kind in kinds.items():
            ds.create_index(column, kind=kind)
            assert len(segment_rows(ds, column, kind)) <= 16
    assert all(index.uncovered == 0 for index in ds.indexes())
    assert len(segment_rows(ds, "n", "scalar")) <= 6
    assert check_answers(ds)
    plain = ds.branches.create("plain")
    for index in plain.indexes():
        plain.drop_index(index.name)
    for text in ("cups", "robot 3", '"sees doors"'):
        found, wanted = (side.search(text=text, text_column="words", k=2000).to_arrow() for side in (ds, plain))
        assert found.select(["words", "score"]) == wanted.select(["words", "score"])
    nearest = ds.search(vector=np.ones(8), vector_column="v", k=2000)
    assert sorted(nearest["_row_id"][:].tolist()) == sorted(ds["_row_id"][:].tolist())
    assert not penstock.verify(store).damaged


def test_an_index_of_a_later_version_survives_compaction() -> None:
    store = memory_store()
    rng = np.random.default_rng(0)
    ds = penstock.create(store, SCHEMA)
    for _ in range(2):
        ds.append(rows(rng, 50))
        ds.commit("rows")
    ds.create_index("n", kind="scalar")
    ds.create_index("t", kind="text")
    session = ds._session
    later = tuple({**one, "kind": "graph"} if one["name"] == "t_text" else one for one in session.snapshot.indexes)
    session.snapshot = replace(session.snapshot, indexes=later)
    session.changes.record("create_index")
    ds.commit("an index of a kind that is not known yet")
    ds.append(rows(rng, 50))
    ds.commit("rows")
    penstock.compact(store)
    found = penstock.load(store)
    assert next(one for one in found._reader.snapshot.indexes if one["name"] == "t_text") == later[1]
    assert {index.kind: index.uncovered for index in found.indexes()} == {"graph": 50, "scalar": 0}
    assert check_answers(found)
    found.drop_index("t_text")
    assert [index.kind for index in found.indexes()] == ["scalar"]
