"""Filters read only what may match: subtrees, fragments and pages are left out by bounds, and no match is ever lost."""

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import penstock
from penstock import Column, Dataset, Label, Tensor, Text
from penstock.errors import CorruptError, InvalidInputError
from penstock.format import (
    DataFile,
    FilePageBounds,
    Fragment,
    Manifest,
    Node,
    NodeStatistics,
    Statistics,
    decode_snapshot,
    encode_manifest,
    encode_snapshot,
    new_id,
    new_int_id,
)
from penstock.format._statistics import PAGE_BOUNDS
from penstock.storage import Store, open_store
from penstock.table import PruneCounts, Reader, candidate_rows, find_positions
from penstock.testing import CountingStore
from penstock.types import RowRange
from tests.table import hostile

field = pc.field
SMALL: dict[str, Any] = {"page_bytes": 64, "file_bytes": 512, "nullable": True}
SCHEMA = {
    "i": Column(Tensor("int64"), **SMALL),
    "u": Column(Tensor("uint8"), **(SMALL | {"codec": "lz4", "page_bytes": 8})),
    "f": Column(Tensor("float32"), **SMALL),
    "d": Column(Tensor("float64"), **(SMALL | {"page_bytes": 128})),
    "b": Column(Tensor("bool"), **(SMALL | {"page_bytes": 8})),
    "t": Column(Tensor("datetime64[ms]"), **SMALL),
    "s": Column(Text(), **SMALL),
    "l": Column(Label(("x", "y", "z")), **SMALL),
}
NUMBERS = {
    "i": [*range(-5, 40), 2**62],
    "u": list(range(40)),
    "f": [0.1, 0.5, -0.0, 1.5, 2.5, float("nan"), float("inf"), *map(float, range(30))],
    "d": [0.1, 0.3, -1e300, float("nan"), float("-inf"), *map(float, range(30))],
    "b": [False, True],
    "t": [np.datetime64(n * 500, "ms") for n in range(40)],
    "s": ["", "a", "ab", "b", "é", "日本", "\U0010ffff" * 70, "a" * 100, *(f"k{n:02}" for n in range(30))],
    "l": [0, 1, 2],
}
LITERALS: dict[str, list[Any]] = {
    "i": [-5, 0, 3, 7.5, 39, 2**40, True],
    "u": [0, 5, 39, 300, -1, 2.5],
    "f": [0.1, 0.5, 1.5, 29, float("nan"), float("inf"), pa.scalar(0.1, pa.float32())],
    "d": [0.1, -1e300, 3, float("nan"), float("-inf")],
    "b": [True, False],
    "t": [pa.scalar(n, pa.timestamp(unit)) for n, unit in ((0, "s"), (3, "s"), (4500, "ms"), (9_000_001, "us"))],
    "s": ["", "a", "b", "k05", "k29", "zz", "日", "\U0010ffff" * 65],
    "l": [0, 1, 2, 3],
}
OPERATORS: list[Callable[[Any, Any], pc.Expression]] = [
    lambda a, b: a == b,
    lambda a, b: a != b,
    lambda a, b: a < b,
    lambda a, b: a <= b,
    lambda a, b: a > b,
    lambda a, b: a >= b,
]


def type_of(value: Any) -> pa.DataType:
    return value.type if isinstance(value, pa.Scalar) else pa.scalar(value).type


@st.composite
def comparisons(draw: st.DrawFn) -> pc.Expression:
    name = draw(st.sampled_from(list(SCHEMA)))
    column, literals = field(name), st.sampled_from(LITERALS[name])
    kind = draw(st.integers(0, 8))
    if kind <= 4:
        return draw(st.sampled_from(OPERATORS))(column, draw(literals))
    if kind == 5:
        values = draw(st.lists(literals, max_size=4))
        alike = [each for each in values if type_of(each) == type_of(values[0])]
        return column.isin(
            pa.array([*alike, None] if draw(st.booleans()) else alike, type_of(alike[0])) if alike else []
        )
    if kind == 6:
        return column.is_null(nan_is_null=draw(st.booleans())) if draw(st.booleans()) else column.is_valid()
    if kind == 7:
        return draw(st.sampled_from([field("b"), field("i") < field("u"), pc.starts_with(field("s"), "k1")]))
    return draw(st.sampled_from(OPERATORS))(field("i") + 1, 10)


filters = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
    ),
    max_leaves=5,
)


def random_rows(rng: np.random.Generator, count: int) -> dict[str, Any]:
    """Rows whose values are clustered in some columns, so that there is something to prune."""
    rows: dict[str, Any] = {}
    for name, values in NUMBERS.items():
        indices = rng.integers(0, len(values), count)
        if rng.random() < 0.7:
            indices.sort()
        nulls = rng.random() * (rng.random(count) < 0.2) > 0
        rows[name] = [None if null else values[index] for index, null in zip(indices, nulls, strict=True)]
    return rows


@cache
def random_table(seed: int) -> Dataset:
    rng = np.random.default_rng(seed)
    ds = penstock.create("memory://", SCHEMA)
    for _ in range(rng.integers(1, 4)):
        ds.append(random_rows(rng, int(rng.integers(1, 80))))
    ds.commit()
    for change in rng.permutation(6)[: rng.integers(0, 4)]:
        count = len(ds)
        where = np.sort(rng.choice(count, int(rng.integers(0, count // 2 + 1)), replace=False))
        if change == 0:
            ds.delete(positions=where)
        elif change == 1 and len(where):
            new = random_rows(rng, len(where))
            ds.update(positions=where, data={name: new[name] for name in ("i", "f", "s")})
        elif change == 2:
            _without_bounds(ds._session.reader.store, rng)
            ds = penstock.load(ds._session.reader.store)
        elif change == 3:
            ds.drop_column("u")
            ds.add_column("u", Column(Tensor("uint8"), nullable=True), fill=5 if rng.random() < 0.5 else None)
        elif change == 4:
            ds.rename_column("d", "e")
            ds.rename_column("f", "d")
            ds.rename_column("e", "f")
        else:
            penstock.compact(ds._session.reader.store)
            ds = penstock.load(ds._session.reader.store)
        ds.commit()
    return ds


def _without_bounds(store: Store, rng: np.random.Generator) -> None:
    """As if an older writer had written some of the files and fragments."""

    def older(fragment: Fragment) -> Fragment:
        files = tuple(replace(file, bounds=None) if rng.random() < 0.5 else file for file in fragment.files)
        return replace(fragment, files=files, statistics=fragment.statistics if rng.random() < 0.5 else ())

    hostile.forge_fragments(store, older)


def all_rows(reader: Reader) -> pa.Table:
    """The columns as a filter sees them, and the positions."""
    names = list(SCHEMA)
    table = reader.arrow(names, np.arange(reader.snapshot.live))
    return table.append_column("_", pa.array(np.arange(len(table))))


def matches(table: pa.Table, expression: pc.Expression) -> list[int]:
    found: list[int] = table.filter(expression)["_"].to_pylist()
    return found


@settings(max_examples=30, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(seed=st.integers(0, 15), questions=st.lists(filters, min_size=1, max_size=6), step=st.integers(1, 5))
def test_every_match_is_among_the_candidates(seed: int, questions: list[pc.Expression], step: int) -> None:
    ds = random_table(seed)
    reader = ds._session.reader
    table = all_rows(reader)
    for question in questions:
        try:
            expected = matches(table, question)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
            continue
        for positions in (range(len(table)), range(1, len(table), step), np.arange(0, len(table), step)):
            counts = PruneCounts()
            found = list(candidate_rows(reader, question, positions, counts))
            candidates = np.concatenate([np.zeros(0, np.int64), *(each.positions for each in found)])
            wanted = set(np.asarray(positions).tolist())
            assert (np.diff(candidates) > 0).all()
            assert wanted >= set(candidates.tolist())
            assert wanted & set(expected) == set(matches(table.take(pa.array(candidates)), question))
            for each in found:
                rows = each.selected.fragment.row_ids_at(each.selected.rows)
                assert rows.tolist() == reader.row_ids(each.positions).tolist()
            assert counts.fragments_kept == len(found)
            assert counts.pages_kept <= counts.pages
        assert find_positions(reader, question).tolist() == expected


def numbered(store: Store | str, rows: int = 100_000, **columns: Any) -> Dataset:
    ds = penstock.create(store, {"n": Tensor("int64"), "label": Tensor("int64"), "text": Text(), **columns})
    label = np.random.default_rng(0).integers(0, 1000, rows)
    ds.append({"n": np.arange(rows), "label": label, "text": [f"a caption of row {n}" for n in range(rows)]})
    ds.commit()
    return ds


def test_a_filter_on_a_sorted_column_reads_few_of_its_bytes_and_one_on_a_label_little_else() -> None:
    store = CountingStore(open_store("memory://"))
    numbered(store)
    column = 8 * 100_000
    ds = penstock.load(store)
    len(ds[field("n") < 0])
    store.reset()
    assert len(ds[(field("n") >= 40_000) & (field("n") < 41_000)]) == 1000
    assert store.bytes["get"] < 0.2 * column, "two pages of 64 KiB"
    assert store.requests["get"] <= 2
    store.reset()
    assert len(ds[field("label") == 5])
    assert store.bytes["get"] < 1.05 * column
    store.reset()
    assert len(ds[(field("text") == "nothing") & (field("n") == 5)]) == 0
    assert store.bytes["get"] == 0, "the bounds of the text exclude it"


def test_pages_of_a_column_of_numbers_are_a_small_part_of_a_million_rows() -> None:
    ds = penstock.create("memory://", {"n": Tensor("int64")})
    ds.append({"n": np.arange(1 << 20)})
    [fragment] = ds._session.tree.fragments(ds._session.snapshot.nodes)
    [file] = fragment.files
    widest = np.diff(file.page_offsets).max()
    assert 2 * widest < 0.05 * file.length, "a hundredth of the rows is in two pages at most"
    assert len(file.page_rows) < 150


def test_columns_share_files_only_while_they_are_small() -> None:
    def files(rows: int) -> list[set[str]]:
        ds = numbered("memory://", rows, flag=Column(Tensor("bool"), nullable=True))
        names = {known.id: known.name for known in ds.schema.fields}
        [fragment] = ds._session.tree.fragments(ds._session.snapshot.nodes)
        return sorted(({names[id] for id in file.fields} for file in fragment.files), key=sorted)

    assert files(1000) == [{"n", "label", "text", "flag"}]
    assert files(20_000) == [{"flag", "label", "n"}, {"text"}]
    assert files(100_000) == [{"flag"}, {"label"}, {"n"}, {"text"}]


def test_bounds_hold_after_a_merge_and_for_a_computed_column() -> None:
    ds = penstock.create("memory://", {"i": SCHEMA["i"], "s": SCHEMA["s"]})
    ds.append({"i": np.arange(200), "s": [f"{n:03}" for n in range(200)]})
    ds.commit()
    other = ds.branches.create("other")
    other.update(positions=[3, 150], data={"i": [1000, -7]})
    other.add_column("twice", compute=lambda batch: batch["i"] * 2)
    other.append({"i": [5000], "s": ["new"], "twice": [1]})
    other.commit()
    ds.update(positions=[3, 50], data={"s": ["zzz", "+"]})
    ds.delete(positions=[10])
    ds.commit()
    ds.merge("other")
    rows = ds.to_arrow()
    for question in (
        *(field("i") == n for n in (1000, -7, 3, 10, 5000)),
        *(field("s") == text for text in ("zzz", "+", "003", "new")),
        *(field("twice") == n for n in (2000, -14, 1, 300)),
        field("i") > 900,
        field("twice").is_null(),
    ):
        assert len(ds[question]) == len(rows.filter(question))


def test_row_ids_leave_out_fragments() -> None:
    ds = penstock.create("memory://", {"n": int})
    for start in range(0, 50, 10):
        ds.append({"n": np.arange(start, start + 10)})
    counts = PruneCounts()
    found = list(candidate_rows(ds._session.reader, field("_row_id") == 33, range(50), counts))
    assert [each.positions.tolist() for each in found] == [list(range(30, 40))]
    assert (counts.fragments, counts.fragments_kept) == (5, 1)


def test_a_filter_that_no_bound_can_answer_keeps_everything() -> None:
    reader = numbered("memory://", 10)._session.reader
    for question in (None, field(0) < 0, pc.is_nan(field("n")), (field("n") + 1) < 0, field("missing") < 0):
        [found] = candidate_rows(reader, question, range(10), PruneCounts())
        assert found.positions.tolist() == list(range(10))


BOUNDS = [None, "", "NaN", "Infinity", "[1]", "{}", "null", '"x"', "true", "1e400", "9" * 30, "1.5", "[" * 100_000]


@pytest.mark.parametrize("bound", BOUNDS, ids=lambda bound: str(bound)[:10])
def test_a_bound_that_is_none_bounds_nothing(bound: str | None) -> None:
    ds = penstock.create("memory://", SCHEMA)
    ds.append(random_rows(np.random.default_rng(1), 60))
    ds.commit()
    store, schema = ds._session.reader.store, ds.schema
    ordered = [known for known in schema.fields if bound != '"x"' or known.name != "s"]

    def damage(fragment: Fragment) -> Fragment:
        wrong = tuple(Statistics(known.id, 60, bound, bound) for known in ordered)
        return replace(fragment, files=tuple(map(damaged, fragment.files)), statistics=wrong)

    def damaged(file: DataFile) -> DataFile:
        pages = len(file.page_rows)
        wrong = [bound] * pages
        rows = [{"field": id, "nulls": [0] * pages, "low": wrong, "high": wrong} for id in file.fields]
        return replace(file, bounds=FilePageBounds(pa.array(rows, PAGE_BOUNDS), pages))

    hostile.forge_fragments(store, damage)
    changed = penstock.load(store)
    for name, value in (("i", 3), ("u", 3), ("d", 3.0), ("t", pa.scalar(1500, pa.timestamp("ms")))):
        if bound == "1.5" and name == "d":
            continue  # a bound, if not of these values
        assert len(changed[field(name) == value]) == len(ds[field(name) == value])
        assert len(changed[field(name) != value]) == len(ds[field(name) != value])


@pytest.mark.parametrize(
    "entry",
    [
        {"nulls": [0], "low": ["100"], "high": ["200"]},
        {"nulls": None, "low": None, "high": None},
        {"nulls": [0] * 500, "low": ["100"] * 500, "high": ["200"] * 500},
        None,
    ],
)
def test_page_bounds_of_another_length_bound_nothing(entry: dict[str, Any] | None) -> None:
    ds = penstock.create("memory://", {"i": SCHEMA["i"]})
    ds.append({"i": np.arange(60)})
    ds.commit()
    store = ds._session.reader.store

    def damaged(row: dict[str, Any]) -> dict[str, Any]:
        files = [file | {"bounds": [entry and {"field": file["fields"][0], **entry}]} for file in row["files"]]
        return row | {"files": files, "statistics": []}

    hostile.forge_leaf(store, lambda rows: list(map(damaged, rows)))
    try:
        assert len(penstock.load(store)[field("i") == 7]) == 1
    except CorruptError:
        assert entry is None or entry["nulls"] is None, "a null where the format has none"


def test_page_bounds_of_another_type_are_damage() -> None:
    ds = penstock.create("memory://", {"i": int})
    ds.append({"i": np.arange(60)})
    ds.commit()
    store = ds._session.reader.store
    commit, snapshot = hostile.newest(store)
    [node] = snapshot.nodes
    batch = pa.ipc.open_file(pa.py_buffer(store.get(node.key))).get_batch(0)
    rows = [row | {"files": [file | {"bounds": "x"} for file in row["files"]]} for row in batch.to_pylist()]
    hostile.forge_manifest(store, commit, snapshot, node, pa.RecordBatch.from_pylist(rows))
    with pytest.raises(CorruptError, match="manifests/"):
        len(penstock.load(store)[field("i") == 7])


@pytest.mark.parametrize(
    "statistics",
    ["x", [1], [[1]], [[["zz", 0, "1", "2"]]], [[["1", "x", "1", "2"]]], [[["1", 0, 1, 2]]], [[], []], None],
    ids=str,
)
def test_statistics_of_a_root_node_are_valid_or_ignored(statistics: Any) -> None:
    ds = penstock.create("memory://", {"i": int})
    ds.append({"i": np.arange(60)})
    ds.commit()
    store = ds._session.reader.store
    commit, _ = hostile.newest(store)
    document = json.loads(bytes(store.get(commit.snapshot.key)))
    assert document["manifests"]["statistics"] == [[[f"{ds.schema['i'].id:016x}", 0, "0", "59"]]]
    document["manifests"]["statistics"] = statistics
    hostile.forge_snapshot_bytes(store, json.dumps(document).encode())
    if isinstance(statistics, list) and len(statistics) == 1 and isinstance(statistics[0], list):
        assert len(penstock.load(store)[field("i") == 7]) == 1
    else:
        with pytest.raises(CorruptError, match="snapshots/"):
            penstock.load(store)


def forest(store: Store, ds: Dataset, leaves: int, per_leaf: int) -> tuple[Node, ...]:
    """Root nodes of a tree of two levels above the leaves: fragments of ten rows of one column, in ascending order."""
    column = ds.schema["i"].id
    nodes: list[Node] = []

    def fragment(number: int) -> Fragment:
        file = DataFile(
            id=new_id(),
            length=1000,
            frame_crc=0,
            fields=(column,),
            row_start=0,
            rows=10,
            page_rows=np.array([10], np.int32),
            page_offsets=np.array([100, 200], np.int64),
            page_crcs=np.zeros(1, np.uint32),
            value_starts=np.full((1, 1), 16, np.int32),
        )
        ids = (RowRange(10 * number, 10 * number + 10),)
        bounds = Statistics(column, 0, str(10 * number), str(10 * number + 9))
        return Fragment(new_int_id(), 10, ids, (file,), live=10, statistics=(bounds,))

    def stored(manifest: Manifest) -> Node:
        node, data = encode_manifest(new_id(), manifest)
        store.put(node.key, data)
        return node

    for leaf in range(leaves):
        numbers = range(leaf * per_leaf, (leaf + 1) * per_leaf)
        nodes.append(stored(Manifest(0, fragments=tuple(map(fragment, numbers)))))
    for level in (1, 2):
        nodes = [stored(Manifest(level, nodes=tuple(nodes[n : n + 16]))) for n in range(0, len(nodes), 16)]
    return tuple(nodes)


def test_subtrees_that_cannot_match_are_not_read() -> None:
    store = CountingStore(open_store("memory://"))
    ds = penstock.create(store, {"i": int})
    nodes = forest(store, ds, leaves=512, per_leaf=2)
    commit, snapshot = hostile.newest(store)
    hostile.forge_snapshot(store, commit, replace(snapshot, nodes=nodes))
    ds = penstock.load(store)
    wanted = list(range(5, 10_240, 1024))
    store.reset()
    counts = PruneCounts()
    found = list(candidate_rows(ds._session.reader, field("i").isin(wanted), range(len(ds)), counts))
    assert [each.positions.tolist() for each in found] == [list(range(n - n % 10, n - n % 10 + 10)) for n in wanted]
    assert store.requests["get"] == 2 + 10 + 10, "root nodes, inner nodes, leaves"
    assert (counts.fragments, counts.fragments_kept) == (1024, 10)
    store.reset()
    assert not list(candidate_rows(ds._session.reader, field("i") < 0, range(len(ds)), PruneCounts()))
    assert not store.requests


def test_statistics_of_root_nodes_are_dropped_where_they_would_make_the_snapshot_large() -> None:
    ds = penstock.create("memory://", {f"c{n}": int for n in range(100)})
    for _ in range(3):
        ds.append({f"c{n}": np.arange(3) for n in range(100)})
        ds.commit()
    reader = ds._session.reader
    statistics = reader.snapshot.nodes[0].statistics
    assert statistics is not None
    assert len(statistics.by_field) == 64
    many = tuple(
        replace(reader.snapshot.nodes[0], statistics=NodeStatistics.of(statistics.by_field.values())) for _ in range(64)
    )
    ref, data = encode_snapshot("a" * 32, replace(reader.snapshot, nodes=many))
    assert len(data) < (100 << 10)
    read = decode_snapshot(ref, data, "")
    assert [node.statistics is not None for node in read.nodes] == sorted(
        (node.statistics is not None for node in read.nodes), reverse=True
    )
    assert read.nodes[0].statistics is not None
    assert read.nodes[-1].statistics is None


def test_a_wrong_filter_is_an_error_even_if_no_row_is_read() -> None:
    ds = numbered("memory://", 10)
    with pytest.raises(InvalidInputError, match="missing"):
        ds[(field("n") < 0) & (field("missing") == 1)]
