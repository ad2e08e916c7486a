"""Every kind of question, at every state of a table, against plain DuckDB and numpy over the same rows in memory."""

import json
import math
import re
from collections import Counter
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock.format import new_id
from penstock.storage import open_store

NAMES = ("grasp", "push", "place")
WORDS = ["red", "robot", "arm", "left", "cup", "blue"]
LENGTH = 6
SCHEMA: dict[str, Any] = {
    "n": penstock.Column("int64", nullable=True),
    "reward": penstock.Column("float32", nullable=True),
    "label": penstock.Label(NAMES),
    "caption": penstock.Column("text", nullable=True),
    "emb": penstock.Embedding(LENGTH),
    "meta": "json",
    "frame": "uint8[16, 16, 3]",
}


def rows(rng: np.random.Generator, count: int) -> dict[str, Any]:
    frames = np.zeros((count, 16, 16, 3), np.uint8)
    frames[:, 0, 0, 0] = rng.integers(0, 256, count)
    return {
        "n": [None if rng.random() < 0.1 else int(rng.integers(-5, 6)) for _ in range(count)],
        "reward": [None if rng.random() < 0.1 else float(np.float32(rng.normal())) for _ in range(count)],
        "label": rng.integers(0, len(NAMES), count),
        "caption": [
            None if rng.random() < 0.1 else " ".join(rng.choice(WORDS, rng.integers(0, 6))) for _ in range(count)
        ],
        "emb": rng.normal(size=(count, LENGTH)).astype(np.float32),
        "meta": [{"camera": str(rng.choice(["left", "right"])), "take": int(rng.integers(0, 3))} for _ in range(count)],
        "frame": frames,
    }


QUESTIONS = [
    # SQL of Penstock, and the same for DuckDB over plain columns
    ("SELECT n, reward FROM ds WHERE n = 2 ORDER BY _row_id", "SELECT n, reward FROM ds WHERE n = 2 ORDER BY _row_id"),
    ("SELECT _row_id FROM ds WHERE label = 'grasp' AND meta.camera = 'left' ORDER BY _row_id",
     "SELECT _row_id FROM ds WHERE label = 0 AND meta->>'camera' = 'left' ORDER BY _row_id"),
    ("SELECT _row_id FROM ds WHERE label IN ('push', 'place') AND n IS NOT NULL ORDER BY reward, _row_id LIMIT 7",
     "SELECT _row_id FROM ds WHERE label IN (1, 2) AND n IS NOT NULL ORDER BY reward, _row_id LIMIT 7"),
    ("SELECT n, count(*) AS c, avg(reward) AS r FROM ds GROUP BY n ORDER BY n",
     "SELECT n, count(*) AS c, avg(reward) AS r FROM ds GROUP BY n ORDER BY n"),
    ("SELECT _row_id, emb[2] + 1 AS e, n * 2 AS twice FROM ds WHERE reward > 0 ORDER BY e, _row_id",
     "SELECT _row_id, emb[2] + 1 AS e, n * 2 AS twice FROM ds WHERE reward > 0 ORDER BY e, _row_id"),
    ("SELECT _row_id FROM ds WHERE caption LIKE '%robot%' OR n > 3 ORDER BY _row_id",
     "SELECT _row_id FROM ds WHERE caption LIKE '%robot%' OR n > 3 ORDER BY _row_id"),
    ("WITH best AS (SELECT *, row_number() OVER (PARTITION BY label ORDER BY reward DESC, _row_id) AS k FROM ds) "
     "SELECT label_name(label) AS name, n FROM best WHERE k <= 2 ORDER BY name, k",
     "WITH best AS (SELECT *, row_number() OVER (PARTITION BY label ORDER BY reward DESC, _row_id) AS k FROM ds) "
     "SELECT ['grasp', 'push', 'place'][label + 1] AS name, n FROM best WHERE k <= 2 ORDER BY name, k"),
    ("SELECT a._row_id AS x, b._row_id AS y FROM ds a JOIN ds b ON a.n = b.n AND a._row_id < b._row_id "
     "WHERE a.label = 'push' ORDER BY x, y LIMIT 20",
     "SELECT a._row_id AS x, b._row_id AS y FROM ds a JOIN ds b ON a.n = b.n AND a._row_id < b._row_id "
     "WHERE a.label = 1 ORDER BY x, y LIMIT 20"),
]  # fmt: skip


def plain(ds: penstock.View) -> pa.Table:
    """All rows in memory, as plain Arrow types."""
    table = ds.select([*ds.schema.names, "_row_id"]).to_arrow()
    columns = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        columns[name] = column.storage if isinstance(column, pa.ExtensionArray) else column
    return pa.table(columns)


def check_sql(ds: penstock.Dataset, memory: pa.Table) -> None:
    connection = duckdb.connect()
    connection.register("ds", memory)
    for ours, theirs in QUESTIONS:
        expected = connection.sql(theirs).to_arrow_table().to_pylist()
        found = ds.query(ours).to_arrow().to_pylist()
        assert [_rounded(row) for row in found] == [_rounded(row) for row in expected], ours
    connection.close()


def _rounded(row: dict[str, Any]) -> list[Any]:
    return [round(value, 4) if isinstance(value, float) else value for value in row.values()]


def bm25(texts: list[str | None], query: str) -> np.ndarray:
    words = [None if text is None else re.findall(r"\w+", text.lower()) for text in texts]
    known = [each for each in words if each is not None]
    mean = sum(map(len, known)) / max(1, len(known))
    scores = np.zeros(len(texts))
    for word in set(query.lower().split()):
        df = sum(word in each for each in known)
        idf = math.log(1 + (len(known) - df + 0.5) / (df + 0.5))
        for row, each in enumerate(words):
            tf = Counter(each or [])[word]
            if tf:
                scores[row] += idf * 2.2 * tf / (tf + 1.2 * (0.25 + 0.75 * len(each or []) / mean))
    return scores


def check_search(ds: penstock.Dataset, memory: pa.Table, rng: np.random.Generator) -> None:
    vector = rng.normal(size=LENGTH).astype(np.float32)
    embeddings = np.stack(memory["emb"].to_numpy(zero_copy_only=False)) if len(memory) else np.zeros((0, LENGTH))
    cosine = embeddings @ vector / (np.linalg.norm(embeddings, axis=1) * np.linalg.norm(vector))
    relevance = bm25(memory["caption"].to_pylist(), "red robot")
    left = np.array([row["camera"] == "left" for row in map(json.loads, memory["meta"].to_pylist())], bool)
    hybrid = 0.7 * cosine + 0.3 * relevance
    hybrid[[text is None for text in memory["caption"].to_pylist()]] = -np.inf  # a sum with a null is null
    cases: list[tuple[Any, Any, bool, dict[str, Any]]] = [
        (cosine, None, True, {"vector": vector}),
        (relevance, None, False, {"text": "red robot"}),
        (hybrid, left, True, {"vector": vector, "text": "red robot"}),
    ]
    for scores, condition, exact, asked in cases:
        allowed = np.ones(len(memory), bool) if condition is None else condition
        wanted = np.where(allowed, scores, -np.inf)
        if list(asked) == ["text"]:
            wanted = np.where(scores > 0, wanted, -np.inf)
        best = np.sort(wanted[np.isfinite(wanted)])[::-1][:10]
        where = None if condition is None else "meta.camera = 'left'"
        options: dict[str, Any] = {"fuse": {"vector": 0.7, "text": 0.3}} if len(asked) == 2 else {}
        for is_exact in {exact, True}:
            found = ds.search(**asked, where=where, k=10, exact=is_exact, **options)
            got = found.to_numpy()["score"] if len(found) else np.zeros(0)
            np.testing.assert_allclose(got, best, rtol=1e-3, atol=1e-4)
    found = ds.search(vector=vector, k=5)  # by the index: no deleted or stale row, and true scores
    ids = dict(zip(memory["_row_id"].to_pylist(), cosine, strict=True))
    rows = found.select(["_row_id", "score"]).to_numpy()
    for id, score in zip(rows["_row_id"], rows["score"], strict=True):
        assert abs(ids[int(id)] - score) < 1e-3
    sql = (
        "SELECT _row_id, 0.7*cosine_similarity(emb, ?) + 0.3*bm25(caption, 'red robot') AS score FROM ds "
        "WHERE meta.camera = 'left' ORDER BY score DESC LIMIT 10"
    )
    hybrid = np.where(left, hybrid, -np.inf)
    answer = ds.query(sql, [vector], exact=True).to_numpy()
    best = np.sort(hybrid[np.isfinite(hybrid)])[::-1][:10]
    np.testing.assert_allclose(answer["score"][: len(best)], best, rtol=1e-3, atol=1e-4)


OPERATIONS = ["append", "delete", "update", "add column", "compact", "extend", "branch", "merge"]


@given(st.lists(st.sampled_from(OPERATIONS), min_size=1, max_size=4), st.integers(0, 1 << 20))
@settings(max_examples=6)
def test_questions_are_answered_as_over_the_rows_in_memory(operations: list[str], seed: int) -> None:
    rng, store = np.random.default_rng(seed), open_store(f"memory://{new_id()}")
    ds = penstock.create(store, SCHEMA)
    ds.append(rows(rng, 60))
    ds.commit("rows")
    ds.create_index("emb", kind="vector")
    ds.create_index("caption", kind="text")
    ds.create_index("n", kind="scalar")
    for number, operation in enumerate(["none", *operations]):
        chosen = rng.choice(len(ds), min(len(ds) // 4, 15), replace=False)
        if operation == "append":
            extra = [name for name in ds.schema.names if name.startswith("extra")]
            ds.append(rows(rng, 20) | {name: [number] * 20 for name in extra})
        elif operation == "delete":
            ds.delete(positions=chosen)
        elif operation == "update":
            new = rows(rng, len(chosen))
            ds.update(positions=chosen, data={name: new[name] for name in ("n", "caption", "emb", "meta")})
        elif operation == "add column":
            ds.add_column(f"extra{number}", fill=number)
        ds.commit()
        if operation == "compact":
            penstock.compact(store)
            ds = penstock.load(store)
        elif operation == "extend":
            ds.create_index("emb", kind="vector")
            ds.create_index("caption", kind="text")
        elif operation in ("branch", "merge"):
            other = ds.branches.create(f"b{number}")
            other.update(positions=chosen, data={"caption": "red robot red robot"})
            other.delete(positions=[0])
            other.commit()
            if operation == "branch":
                ds = other
            else:
                ds.merge(f"b{number}")
        memory = plain(ds)
        check_sql(ds, memory)
        check_search(ds, memory, rng)
