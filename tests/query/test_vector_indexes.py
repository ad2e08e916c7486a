"""Vector indexes: they find what an exact scan finds, at every version, with few requests."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Column, Dataset, Embedding, Tensor
from penstock.errors import CorruptError, InvalidInputError
from penstock.format import new_id
from penstock.query.indexes import KEY, PageRead, Run, VectorKind, open_index
from penstock.query.indexes._kmeans import assign, kmeans
from penstock.query.indexes._vector import quantise, sample_positions
from penstock.query.search import Ranked, VectorScores
from penstock.query.search._vector_index import fill_gaps, page_keys
from penstock.storage import open_store
from penstock.table import Int64Array
from penstock.testing import CountingStore
from tests.servers import new_location

METRICS = ("cosine", "l2", "dot")
LENGTH = 24


def clustered(rng: np.random.Generator, count: int, clusters: int = 150) -> npt.NDArray[np.float32]:
    """Vectors around cluster centres in a space of fewer dimensions, and noise."""
    centres = np.random.default_rng(1).normal(size=(clusters, 12))
    basis = np.random.default_rng(2).normal(size=(12, LENGTH))
    inner = centres[rng.integers(0, clusters, count)] + 0.4 * rng.normal(size=(count, 12))
    return (inner @ basis + 0.3 * rng.normal(size=(count, LENGTH))).astype(np.float32)


def scores_of(ds: Dataset, query: Any, metric: str) -> VectorScores:
    return VectorScores(ds._reader, ds.schema["v"], query, metric)


def recall(ds: Dataset, metric: str, allowed: Int64Array | None, queries: int = 6) -> float:
    """The part of the ten best rows that the index finds."""
    found = []
    for query in clustered(np.random.default_rng(3), queries):
        scores = scores_of(ds, query, metric)
        best = scores.top(10, allowed=allowed, exact=True)
        by_index = scores.top(10, allowed=allowed, exact=False)
        assert len(by_index.positions) == len(best.positions)
        assert allowed is None or np.isin(by_index.positions, allowed).all()
        found.append(len(np.intersect1d(best.positions, by_index.positions)) / max(1, len(best.positions)))
    return float(np.mean(found))


@pytest.fixture(scope="module", params=METRICS)
def indexed(request: pytest.FixtureRequest) -> tuple[Dataset, str]:
    """A table of a remote kind with an index; remote, so that scores are those of the index."""
    ds = penstock.create(CountingStore(open_store("memory://")), {"v": Embedding(LENGTH)})
    ds.append({"v": clustered(np.random.default_rng(0), 20_000)})
    ds.commit()
    ds.create_index("v", kind="vector", metric=request.param)
    return ds, request.param


@pytest.mark.parametrize("share", [1, 0.5, 0.1, 0.01, 0.001])
def test_recall_is_at_least_95_percent_also_with_filters(indexed: tuple[Dataset, str], share: float) -> None:
    ds, metric = indexed
    allowed = None if share == 1 else np.flatnonzero(np.random.default_rng(4).random(len(ds)) < share)
    assert recall(ds, metric, allowed) >= 0.95


def test_rows_that_pass_a_filter_are_found_far_from_the_query(indexed: tuple[Dataset, str]) -> None:
    ds, metric = indexed
    query = clustered(np.random.default_rng(5), 1)[0]
    scores = scores_of(ds, query, metric)
    ranked = scores.top(len(ds), allowed=None, exact=True)
    allowed = np.sort(ranked.positions[len(ds) // 2 :])
    best, found = (scores.top(10, allowed=allowed, exact=exact) for exact in (True, False))
    assert len(found.positions) == 10
    assert np.isin(found.positions, allowed).all()
    np.testing.assert_allclose(found.scores, best.scores, atol=0.02 * float(np.ptp(ranked.scores)))


def test_an_index_reads_few_lists_and_its_scores_are_close(indexed: tuple[Dataset, str]) -> None:
    ds, metric = indexed
    store = ds._reader.store
    assert isinstance(store, CountingStore)
    query = clustered(np.random.default_rng(6), 1)[0]
    scores = scores_of(ds, query, metric)
    scores.top(10, allowed=None, exact=False)
    store.reset()
    found = scores.top(10, allowed=None, exact=False)
    assert 1 <= store.requests.total() <= 33
    assert store.bytes.total() < 20_000 * (LENGTH + 16) / 2
    exact = scores.at(np.sort(found.positions))[np.argsort(np.argsort(found.positions))]
    np.testing.assert_allclose(found.scores, exact, rtol=0.02, atol=0.01)
    other = "l2" if metric == "dot" else "dot"
    store.reset()
    scores_of(ds, query, other).top(10, allowed=None, exact=False)  # an index of another metric is of no use
    assert store.bytes.total() > 20_000 * LENGTH * 4


def test_a_local_index_has_exact_scores_and_equal_ones_are_ordered() -> None:
    rows = np.repeat(clustered(np.random.default_rng(0), 300), 3, axis=0)
    ds = penstock.create("memory://", {"v": Embedding(LENGTH)})
    ds.append({"v": rows})
    ds.commit()
    ds.create_index("v", kind="vector", metric="cosine")
    scores = scores_of(ds, rows[30], "cosine")
    best, found = (scores.top(6, allowed=None, exact=exact) for exact in (True, False))
    assert found.positions[:3].tolist() == best.positions[:3].tolist() == [30, 31, 32]
    assert found.scores[:3] == pytest.approx(1)
    np.testing.assert_allclose(
        found.scores, scores.at(np.sort(found.positions))[np.argsort(np.argsort(found.positions))]
    )


OPERATIONS = ("append", "delete", "update", "compact", "extend", "branch")


@settings(max_examples=25)
@given(data=st.data())
def test_an_index_never_hides_a_row_and_never_shows_a_deleted_one(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    metric = data.draw(st.sampled_from(METRICS))
    uri = f"memory://{new_id()}"
    ds = penstock.create(uri, {"v": Column(Tensor("float32", (LENGTH,)), nullable=True, page_bytes=512)})

    def rows(count: int) -> list[Any]:
        found: list[Any] = list(clustered(rng, count))
        for at in np.flatnonzero(rng.random(count) < 0.1):
            found[at] = None if rng.random() < 0.5 else np.zeros(LENGTH, np.float32)
        if rng.random() < 0.5:
            found[0] = np.full(LENGTH, 1e20, np.float32)
        return found

    ds.append({"v": rows(40)})
    ds.commit()
    ds.create_index("v", kind="vector", metric=metric, lists=4)
    readers = [ds]
    for number, operation in enumerate(data.draw(st.lists(st.sampled_from(OPERATIONS), max_size=5))):
        if operation == "append":
            ds.append({"v": rows(int(rng.integers(1, 30)))})
        elif operation == "delete":
            ds.delete(positions=np.flatnonzero(rng.random(len(ds)) < 0.2))
        elif operation == "update":
            chosen = np.flatnonzero(rng.random(len(ds)) < 0.2)
            if len(chosen):
                ds.update(positions=chosen, data={"v": rows(len(chosen))})
        elif operation == "branch":
            ds = ds.branches.create(f"b{number}")
            readers.append(ds)
        elif operation == "compact":
            branch = ds.version.partition("@")[0]
            penstock.compact(uri, branch=branch)
            ds = penstock.load(uri, branch=branch)
            readers.append(ds)
        else:
            ds.create_index("v", kind="vector", metric=metric, lists=4)
        ds.commit()
    for reader in readers:
        allowed = np.flatnonzero(rng.random(len(reader)) < 0.5)
        for selection in (None, allowed):
            scores = scores_of(reader, clustered(rng, 1)[0], metric)
            expected = scores.top(1000, allowed=selection, exact=True)
            found = scores._search(scores.search(selection), 1000)  # type: ignore[arg-type]
            assert found.positions.tolist() == expected.positions.tolist()
            np.testing.assert_array_equal(found.scores, expected.scores)


def test_deltas_share_the_centroids_and_are_read_in_the_same_round_trip() -> None:
    store = CountingStore(open_store("memory://"))
    ds = penstock.create(store, {"v": Embedding(LENGTH)})
    rng = np.random.default_rng(0)
    ds.append({"v": clustered(rng, 6000)})
    ds.commit()
    ds.create_index("v", kind="vector")
    for _ in range(2):
        ds.append({"v": clustered(rng, 1000)})
        ds.commit()
        ds.create_index("v", kind="vector")
    index = open_index(ds._reader, ds.schema["v"], "vector")
    assert index is not None
    assert len(index.segments) == 3
    assert len(index.uncovered) == 0
    assert recall(ds, "cosine", None) >= 0.95
    store.reset()
    scores_of(ds, clustered(rng, 1)[0], "cosine").top(10, allowed=None, exact=False)
    assert 1 <= store.requests.total() <= 40


def test_lists_are_read_from_s3_by_ranges_with_at_most_40_requests() -> None:
    location = new_location("s3")
    ds = penstock.create(location.uri, {"v": Embedding(LENGTH)}, storage_options=location.options)
    ds.append({"v": clustered(np.random.default_rng(0), 12_000)})
    ds.commit()
    ds.create_index("v", kind="vector", metric="l2")
    store = CountingStore(open_store(location.uri, options=location.options))
    opened = penstock.load(store)
    queries = clustered(np.random.default_rng(1), 3)
    best = [scores_of(ds, query, "l2").top(10, allowed=None, exact=True).positions for query in queries]
    for at, query in enumerate(queries):
        store.reset()
        found = scores_of(opened, query, "l2").top(10, allowed=None, exact=False)
        assert len(np.intersect1d(found.positions, best[at])) >= 9
        # the first one also reads the header, the centroids, the directory, and a manifest for the positions of rows
        assert store.requests.total() <= (44 if at == 0 else 33)
    allowed = np.flatnonzero(np.random.default_rng(2).random(12_000) < 0.5)
    store.reset()
    scores_of(opened, queries[0], "l2").top(10, allowed=allowed, exact=False)
    assert store.requests.total() <= 40


@settings(max_examples=30)
@given(pages=st.lists(st.sets(st.integers(0, 59)), min_size=1, max_size=3), runs=st.integers(3, 9))
def test_gaps_are_filled_until_there_are_few_runs(pages: list[set[int]], runs: int) -> None:
    class Table:
        def bytes_of(self, pages: Any) -> int:
            return len(pages)

    reads = [PageRead(Table(), sorted(chosen)) for chosen in pages]  # type: ignore[arg-type]
    filled = fill_gaps(reads, runs)
    assert all(set(read.pages) <= set(more.pages) for read, more in zip(reads, filled, strict=True))
    assert sum(bool(read.pages) + sum(b > a + 1 for a, b in pairwise(read.pages)) for read in filled) <= runs


Tables = Mapping[str, pa.Table]


def forged(monkeypatch: pytest.MonkeyPatch, column: str, values: Any) -> Ranked:
    """Search an index whose writer put other values into a column, with valid checksums."""
    build = VectorKind.run

    def run(kind: VectorKind, row_ids: Int64Array, rows: pa.Array, objects: Tables) -> Run:
        table = build(kind, row_ids, rows, objects).tables["lists"]
        at = table.schema.get_field_index(column)
        return Run({"lists": table.set_column(at, table.schema.field(at), values(table[column].combine_chunks()))})

    ds = penstock.create("memory://", {"v": Embedding(4)})
    ds.append({"v": np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)})
    ds.commit()
    with monkeypatch.context() as patch:
        patch.setattr(VectorKind, "run", run)
        ds.create_index("v", kind="vector", metric="l2", lists=3)
    return scores_of(ds, [1, 2, 3, 4], "l2").top(5, allowed=None, exact=False)


def nulls(array: pa.Array) -> pa.Array:
    return pa.nulls(len(array), array.type)


def null_elements(array: pa.Array) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.nulls(len(array) * 4, pa.int8()), 4)


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("row_id", nulls, "no list, or nulls"),
        ("code", nulls, "no list, or nulls"),
        ("code", null_elements, "no list, or nulls"),
        (KEY, lambda keys: pa.array(np.full(len(keys), 7, np.int32)), "no list, or nulls"),
        ("scale", lambda scales: pa.array(np.full(len(scales), np.nan, np.float32)), "no number"),
        ("norm", lambda norms: pa.array(np.full(len(norms), np.inf, np.float32)), "no number"),
    ],
)
def test_hostile_pages_with_valid_checksums_are_corrupt(
    monkeypatch: pytest.MonkeyPatch, column: str, values: Any, message: str
) -> None:
    if column == KEY:  # no search would ask for a list that does not exist: it is met when gaps are filled
        monkeypatch.setattr("penstock.query.search._vector_index.page_keys", lambda table: page_keys(table) * 0)
    with pytest.raises(CorruptError, match=message):
        forged(monkeypatch, column, values)


def test_row_ids_of_an_index_that_no_row_has_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    assert forged(monkeypatch, "row_id", lambda ids: pa.array(np.full(len(ids), 1 << 40))).positions.tolist() == []
    assert len(forged(monkeypatch, "row_id", lambda ids: pa.array(np.full(len(ids), 3))).positions) == 1


@pytest.mark.parametrize(
    "centroids",
    [
        pa.table({"other": [1]}),
        pa.table({"centroid": pa.array([[1.0] * 3], pa.list_(pa.float32(), 3))}),
        pa.table({"centroid": pa.array([], pa.list_(pa.float32(), 4))}),
        pa.table({"centroid": pa.array([None], pa.list_(pa.float32(), 4))}),
        pa.table({"centroid": pa.array([[1, 2, 3, float("nan")]], pa.list_(pa.float32(), 4))}),
    ],
)
def test_hostile_centroids_are_corrupt(centroids: pa.Table) -> None:
    kind = VectorKind.make(penstock.create("memory://", {"v": Embedding(4)}).schema["v"], {})
    with pytest.raises(CorruptError, match="centroid"):
        kind.centroids(centroids)


@settings(max_examples=20)
@given(st.integers(1, 60), st.integers(1, 12), st.booleans(), st.integers(0, 1 << 30))
def test_kmeans_gives_the_same_centroids_again_and_none_without_a_point(
    count: int, clusters: int, spherical: bool, seed: int
) -> None:
    points = np.random.default_rng(seed).integers(-2, 3, (count, 3)).astype(np.float32)  # with equal points
    found = kmeans(points, clusters, seed=0, spherical=spherical)
    np.testing.assert_array_equal(found, kmeans(points, clusters, seed=0, spherical=spherical))
    assert 1 <= len(found) <= min(clusters, count)
    assert np.isfinite(found).all()
    nearest = assign(points, found)
    distances = ((points[:, None] - found) ** 2).sum(axis=2)
    np.testing.assert_allclose(distances[np.arange(count), nearest], distances.min(axis=1), atol=1e-4)
    if not spherical:
        assert len(np.unique(nearest)) == len(found)


def test_kmeans_finds_clusters() -> None:
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(10, 8)).astype(np.float32) * 10
    points = np.repeat(centres, 50, axis=0) + rng.normal(size=(500, 8)).astype(np.float32) * 0.1
    found = kmeans(points, 20, seed=0, spherical=False)
    assert np.abs(points - found[assign(points, found)]).max() < 1


@settings(max_examples=20)
@given(st.integers(0, 1 << 30), st.sampled_from((1e-44, 1e-20, 1.0, 1e14)))
def test_codes_are_off_by_at_most_half_a_scale(seed: int, size: float) -> None:
    rng = np.random.default_rng(seed)
    with np.errstate(under="ignore"):
        vectors = (rng.normal(size=(30, 5)) * size).astype(np.float32)
        centroids = (rng.normal(size=(3, 5)) * size).astype(np.float32)
    vectors[0] = centroids[0]
    lists = rng.integers(0, 3, 30).astype(np.int32)
    lists[0] = 0
    found = quantise(vectors, lists, centroids)
    restored = centroids[lists] + found.scales[:, None].astype(np.float64) * found.codes
    bound = 0.51 * found.scales[:, None] + 1e-6 * np.abs(vectors).max() + 1e-35
    assert (np.abs(restored - vectors) <= bound).all()
    assert (found.codes[0] == 0).all()


def test_samples_are_spread_over_all_rows() -> None:
    positions = np.arange(0, 300_000, 3)
    sample = sample_positions(positions, 10_000)
    assert len(sample) <= 10_000
    assert len(np.unique(sample)) == len(sample) > 8_000
    assert np.isin(sample, positions).all()
    assert np.histogram(sample, 10, (0, 300_000))[0].min() > 700
    assert sample_positions(positions[:5], 10).tolist() == positions[:5].tolist()


@pytest.mark.parametrize("rows", [[], [None, None], [[np.nan] * 3, [np.inf] * 3, [0, 0, 0]]])
@pytest.mark.parametrize("metric", METRICS)
def test_a_column_without_a_usable_vector_can_be_indexed(rows: list[Any], metric: str) -> None:
    ds = penstock.create("memory://", {"v": Column(Embedding(3), nullable=True)})
    if rows:
        ds.append({"v": rows})
        ds.commit()
    ds.create_index("v", kind="vector", metric=metric)
    scores = scores_of(ds, [1, 2, 3], metric)
    best, found = (scores.top(5, allowed=None, exact=exact) for exact in (True, False))
    assert found.positions.tolist() == best.positions.tolist()
    assert scores_of(ds, [0, 0, 0], "cosine").top(5, allowed=None, exact=False).positions.tolist() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "manhattan"}, "'manhattan' is not a metric"),
        ({"lists": 0}, "a number from 1 to 65536, not 0"),
        ({"lists": "many"}, "a number from 1 to 65536, not 'many'"),
        ({"probes": 3}, "no option 'probes'"),
    ],
)
def test_options_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    ds = penstock.create("memory://", {"v": Embedding(3), "n": int})
    with pytest.raises(InvalidInputError, match=message):
        ds.create_index("v", kind="vector", **options)
    with pytest.raises(InvalidInputError, match="column 'n' holds int64 and not vectors"):
        ds.create_index("n", kind="vector")
