"""Text relevance: equal to a plain BM25 at every version, with and without an index."""

from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.errors import CorruptError, InvalidInputError
from penstock.format import crc32c, new_id
from penstock.query import TextScores
from penstock.query.indexes import PagedTable, open_index
from penstock.query.indexes._kinds import KINDS
from penstock.query.indexes.text import Postings, TextKind, Tokenizer
from penstock.query.search._bm25 import Part
from penstock.query.search._text_cache import SegmentCache
from penstock.storage import Store, open_store
from penstock.testing import CountingStore
from tests.query.text_reference import bm25
from tests.servers import new_location

VOCABULARY = ["red", "robot", "robots", "arm", "the", "grasp", "机器人", "手", "café", "a"]
QUERIES = [
    "red robot arm",
    "the",
    "the the a",
    '"red robot" arm',
    '"机器人" 手',
    '"a a" missing',
    "",
    '"robot red the"',
]


def memory_store() -> Store:
    return open_store(f"memory://{new_id()}")


def new_texts(rng: np.random.Generator, count: int) -> list[str | None]:
    def text() -> str | None:
        if rng.random() < 0.15:
            return None
        return " ".join(rng.choice(VOCABULARY, int(rng.integers(0, 9)), p=np.arange(10, 0, -1) / 55))

    return [text() for _ in range(count)]


def new_rows(rng: np.random.Generator, count: int) -> dict[str, Any]:
    return {"caption": new_texts(rng, count), "n": rng.integers(0, 9, count)}


def new_table(store: Store, rows: dict[str, Any]) -> penstock.Dataset:
    ds = penstock.create(store, {"caption": penstock.Column("text", nullable=True), "n": "int64"})
    ds.append(rows)
    ds.commit("rows")
    return ds


def scores(ds: penstock.Dataset, text: str, tokenizer: Tokenizer | None = None) -> TextScores:
    return TextScores(ds._reader, ds.schema["caption"], text, tokenizer=tokenizer)


def check(ds: penstock.Dataset, queries: list[str], language: str | None = None) -> None:
    """Compare with the reference: scores of all rows, the best of all and of some rows."""
    texts = ds.select("caption").to_arrow()["caption"].to_pylist()
    everything = np.arange(len(texts))
    some = everything[::3]
    for query in queries:
        wanted = np.array(bm25(texts, query, language))
        matching = everything[wanted > 0]
        for tokenizer in (None, Tokenizer(language)):
            found = scores(ds, query, tokenizer)
            for allowed in (None, some):
                rows = matching if allowed is None else np.intersect1d(matching, allowed)
                for count in (1, 5, len(texts) + 1):
                    best = found.top(count, allowed=allowed, exact=False)
                    np.testing.assert_allclose(best.scores, np.sort(wanted[rows])[::-1][:count], rtol=1e-5)
                    np.testing.assert_allclose(best.scores, wanted[best.positions], rtol=1e-5)
                    assert np.isin(best.positions, rows).all()
                    assert len(np.unique(best.positions)) == len(best.positions)
                    ties = np.diff(best.scores) == 0
                    assert (np.diff(best.positions)[ties] > 0).all()
            np.testing.assert_allclose(found.at(everything), wanted, rtol=1e-5)
            np.testing.assert_allclose(found.at(some), wanted[some], rtol=1e-5)
        exact = scores(ds, query, Tokenizer(language)).at(everything)
        np.testing.assert_array_equal(scores(ds, query).at(everything), exact)


OPERATIONS = ["append", "delete", "update", "update other column", "compact", "extend", "branch", "merge"]


@given(st.lists(st.sampled_from(OPERATIONS), max_size=5), st.integers(0, 1 << 20), st.sampled_from([None, "english"]))
@settings(max_examples=20)
def test_scores_are_those_of_plain_bm25_whatever_happens_to_the_table(
    operations: list[str], seed: int, language: str | None
) -> None:
    rng, store = np.random.default_rng(seed), memory_store()
    ds = new_table(store, new_rows(rng, 50))
    options: dict[str, Any] = {} if language is None else {"stem": language}
    ds.create_index("caption", kind="text", **options)
    other = ds.branches.create("other")
    for operation in operations:
        chosen = rng.choice(len(ds), 8, replace=False)
        if operation == "append":
            ds.append(new_rows(rng, 10))
        elif operation == "delete":
            ds.delete(positions=chosen)
        elif operation == "update":
            ds.update(positions=chosen, data={"caption": new_texts(rng, 8)})
        elif operation == "update other column":
            ds.update(positions=chosen, data={"n": np.zeros(8, np.int64)})
        elif operation == "compact":
            ds.commit()
            penstock.compact(store)
            ds = penstock.load(store)
        elif operation == "extend":
            ds.commit()
            ds.create_index("caption", kind="text", **options)
        elif operation == "branch":
            other.update(positions=[int(rng.integers(len(other)))], data={"caption": "the red robot"})
            other.commit("other")
        elif operation == "merge":
            ds.commit()
            ds.merge("other", on_conflict="theirs")
    check(ds, [str(query) for query in rng.choice(QUERIES, 3, replace=False)], language)
    check(other, ["red robot arm"], language)


def test_every_query_of_a_table_without_changes() -> None:
    ds = new_table(memory_store(), new_rows(np.random.default_rng(0), 60))
    check(ds, QUERIES)
    ds.create_index("caption", kind="text")
    check(ds, QUERIES)


def test_no_rows_and_no_values() -> None:
    ds = new_table(memory_store(), {"caption": [], "n": np.zeros(0, np.int64)})
    ds.create_index("caption", kind="text")
    check(ds, QUERIES)
    ds.append({"caption": [None, "", "?!"], "n": np.arange(3)})
    ds.commit()
    check(ds, QUERIES)
    ds.create_index("caption", kind="text")
    check(ds, QUERIES)


class SmallRuns(TextKind):
    """An index that is built in many runs."""

    run_bytes: ClassVar[int] = 200


def test_an_index_of_many_runs_is_that_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "text", SmallRuns.make)
    rng = np.random.default_rng(1)
    ds = new_table(memory_store(), new_rows(rng, 150))
    ds.delete(positions=np.arange(0, 150, 7))
    ds.commit()
    ds.create_index("caption", kind="text")
    index = open_index(ds._reader, ds.schema["caption"], "text")
    assert index is not None
    keys = [key for page in index.segments[0].tables["postings"].read([0]) for key in page["key"].to_pylist()]
    assert keys == sorted(set(keys))  # the blocks of all runs are joined
    check(ds, QUERIES)


def test_more_rows_than_a_block_has() -> None:
    rng = np.random.default_rng(2)
    captions = pa.array(["common", "common word", "common common", "rare"]).take(pa.array(rng.integers(0, 4, 150_000)))
    store = memory_store()
    ds = penstock.create(store, {"caption": "text"})
    ds.append({"caption": captions})
    ds.commit()
    ds.create_index("caption", kind="text")
    for query in ("common", "common rare", '"common common"', '"common word" rare'):
        exact, indexed = scores(ds, query, Tokenizer()), scores(ds, query)
        wanted, found = (each.top(70_000, allowed=None, exact=True) for each in (exact, indexed))
        np.testing.assert_array_equal(found.positions, wanted.positions)
        np.testing.assert_array_equal(found.scores, wanted.scores)
        some = np.arange(3, 150_000, 1000)
        np.testing.assert_array_equal(indexed.at(some), exact.at(some))


def test_a_query_reads_the_pages_of_its_words_from_s3() -> None:
    location = new_location("s3")
    ds = penstock.create(location.uri, {"caption": "text"}, storage_options=location.options)
    rng = np.random.default_rng(3)
    ds.append({"caption": [" ".join(f"w{word}" for word in rng.zipf(1.2, 8) % 5000) for _ in range(20_000)]})
    ds.commit()
    ds.create_index("caption", kind="text")
    store = CountingStore(open_store(location.uri, options=location.options))
    opened = penstock.load(store)
    size = sum(item.size for item in store.list("index/search/"))
    assert len(opened)
    # the first query reads the header and the directory of postings; the first phrase reads that of positions
    for query, requests in (("w77 w1234 w4321", 5), ("w78 w1235 w4322", 3), ('"w1 w2" w5', 6), ('"w3 w5" w77', 3)):
        store.reset()
        planned = scores(opened, query).plan(10)
        assert len(scores(opened, query).top(10, allowed=None, exact=False).positions)
        assert 0 < store.requests["get"] <= requests
        assert store.bytes["get"] < size / 2
        assert planned.index == "caption_text"
        assert 0 < planned.bytes <= store.bytes["get"]
        store.reset()
        found = scores(opened, query)
        found.at(np.sort(found.top(100, allowed=None, exact=False).positions))
        assert not store.requests["get"]  # what was read is remembered
        assert found.plan(10).bytes == 0


def test_the_words_not_used_for_longest_are_forgotten() -> None:
    cache = SegmentCache(max_bytes=20_000)
    numbers = np.arange(1, 301)
    postings = Postings(numbers, np.ones(300, np.uint8), np.ones(300, np.uint8))
    for word in ("a", "b", "c", "d"):
        cache.add(word, postings)
    for word in ("a", "b", "c", "d"):
        assert cache.postings(word, with_positions=False) is postings
        assert cache.postings(word, with_positions=True) is None
    cache.postings("a", with_positions=False)
    for word in ("e", "f", "g"):
        cache.add(word, postings)
    known = [word for word in "abcdefg" if cache.postings(word, with_positions=False) is not None]
    assert known == ["a", "d", "e", "f", "g"]
    cache.add("a", Part(postings, 2.0, 3.0))
    assert cache.part("a", 2.0, 3.0) is not None
    assert cache.part("a", 2.0, 3.5) is None
    assert cache.part("d", 2.0, 3.0) is None
    cache.add("a", Part(postings._replace(rows=np.arange(9_000)), 2.0, 3.0))
    assert cache.postings("a", with_positions=False) is None


def test_a_scan_is_not_repeated() -> None:
    base = memory_store()
    new_table(base, new_rows(np.random.default_rng(4), 100))
    store = CountingStore(base)
    ds = penstock.load(store)
    best = scores(ds, "red").top(5, allowed=None, exact=False)
    store.reset()
    scores(ds, "red").at(np.sort(best.positions))
    assert not store.bytes["get"]
    assert scores(ds, "robot").top(5, allowed=None, exact=False).scores.tolist() != best.scores.tolist()
    assert store.bytes["get"]


def test_errors_say_what_to_do() -> None:
    ds = new_table(memory_store(), new_rows(np.random.default_rng(0), 5))
    with pytest.raises(InvalidInputError, match=r"column 'n' holds .* words are searched in text"):
        ds.create_index("n", kind="text")
    with pytest.raises(InvalidInputError, match=r"column 'n' holds .* words are searched in text"):
        TextScores(ds._reader, ds.schema["n"], "words")
    with pytest.raises(InvalidInputError, match="1,025 words and phrases; 1,024 are the most"):
        scores(ds, " ".join(f"w{number}" for number in range(1025)))
    with pytest.raises(InvalidInputError, match="no option 'metric'; it has: stem"):
        ds.create_index("caption", kind="text", metric="cosine")
    with pytest.raises(InvalidInputError, match="name of a language"):
        ds.create_index("caption", kind="text", stem=3)
    with pytest.raises(InvalidInputError, match="no stemmer for 'klingon'"):
        ds.create_index("caption", kind="text", stem="klingon")


def hostile_pages(table: PagedTable, name: str) -> list[pa.RecordBatch]:
    """Pages that decode, with values that no index has."""
    [page] = table.read([0])
    other = page.to_pydict()

    def changed(column: str, values: list[Any]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pydict({**other, column: values}, schema=page.schema)

    count = len(page)
    found = [changed("count", [value] * count) for value in (0, -1, 3, 1 << 16, 1 << 30, None)]
    numbers = [column for column in ("rows", "counts", "lengths", "positions") if column in other]
    for column in numbers:
        sizes = [max(8 * each, 1) for each in other["count"]]
        for byte in (0, 0xFF):
            found.append(changed(column, [bytes([byte]) * size for size in sizes]))
        found.append(changed(column, [b"\x05\x05\x05"] * count))
    if name != "positions":
        found.append(changed("first", [-5] * count))
        found.append(changed("first", [(1 << 63) - 2] * count))
    return found


def test_a_page_that_ends_before_its_rows_is_corrupt() -> None:
    store = memory_store()
    ds = new_table(store, new_rows(np.random.default_rng(5), 40))
    ds.create_index("caption", kind="text")
    index = open_index(ds._reader, ds.schema["caption"], "text")
    assert index is not None
    table = index.segments[0].tables["postings"]
    data = b"\xff\xff\xff\xff\0\0\0\0"  # the end of an Arrow stream
    hostile = PagedTable(store, lambda _: "hostile", table.ref, table._layout)
    places = {"offset": [0], "length": [len(data)], "crc": [crc32c(data)]}
    hostile.directory = pa.table(table.directory.to_pydict() | places, schema=table.directory.schema)
    store.put("hostile", data)
    with pytest.raises(CorruptError, match="has no rows"):
        hostile.read([0])


@pytest.mark.parametrize("name", ["postings", "positions", "lengths"])
def test_hostile_pages_with_valid_checksums_are_corrupt(name: str) -> None:
    store = memory_store()
    ds = new_table(store, new_rows(np.random.default_rng(5), 40))
    ds.create_index("caption", kind="text")
    ds.delete(positions=[3])
    index = open_index(ds._reader, ds.schema["caption"], "text")
    assert index is not None
    tables = index.segments[0].tables
    [good] = tables[name].read([0])
    for page in hostile_pages(tables[name], name):
        data = page.serialize()
        hostile = PagedTable(store, lambda _: "hostile", tables[name].ref, tables[name]._layout)
        directory = tables[name].directory.to_pydict() | {
            "offset": [0], "length": [data.size], "crc": [crc32c(data)], "rows": [len(good)],
        }  # fmt: skip
        hostile.directory = pa.table(directory, schema=tables[name].directory.schema)
        store.put("hostile", data.to_pybytes())
        index.segments[0].tables = {**tables, name: hostile}
        with pytest.raises(CorruptError, match="text"):
            scores(ds, '"red robot" arm the').at(np.arange(len(ds)))
