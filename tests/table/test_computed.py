"""Computed columns, and tables in memory: read, streamed and resumed like stored ones."""

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Image, Tensor, Text, Workers
from penstock.dataset import View
from penstock.errors import InvalidInputError
from penstock.storage import open_store
from penstock.table import Int64Array, Reader, memory_table, with_computed
from penstock.testing import CountingStore
from tests.servers import new_location

COLUMNS: dict[str, Any] = {"n": int, "episode": int, "name": Text(), "image": Tensor("uint8", (300,))}
ROWS = 200


def fill(ds: penstock.Dataset) -> penstock.Dataset:
    """Four fragments, the last without live rows in front; `n` is what the position was at first."""
    for start in range(0, ROWS, 50):
        n = np.arange(start, start + 50)
        images = np.repeat(n[:, None], 300, 1).astype(np.uint8)
        ds.append({"n": n, "episode": n // 10, "name": [f"name {i}" for i in n], "image": images})
        ds.commit()
    ds.delete(positions=[3, 70, 150, 151])
    ds.commit()
    return ds


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("computed") / "table"
    fill(penstock.create(path, COLUMNS))
    return path


def values(n: Int64Array) -> pa.Table:
    """Computed columns of many types, each a function of `n`."""
    return pa.table(
        {
            "score": pa.array(n / 4, pa.float32()),
            "text": [f"text {i}" for i in n],
            "maybe": pa.array([None if i % 3 else int(i) for i in n], pa.int16()),
            "even": pa.array(n % 2 == 0),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(n, 2)), 2),
            "tokens": pa.array([[int(i)] * (i % 4 + 1) for i in n], pa.list_(pa.int32())),
            "pair": [{"x": int(i), "y": str(i)} for i in n],
            "at": pa.array([datetime(2026, 1, 1 + i % 28) for i in n], pa.timestamp("us")),
            "group": n // 20,
        }
    )


def computed_view(reader: Reader, positions: Int64Array) -> View:
    n = reader.arrow(["n"], positions)["n"].to_numpy()
    table = values(n)
    return View(with_computed(reader, positions, table), ["n", "image", *table.column_names], positions)


def check(batch: dict[str, Any]) -> Iterator[int]:
    """Each row of a batch has its own computed values."""
    for row, n in enumerate(np.asarray(batch["n"]).tolist()):
        expected = values(np.array([n])).to_pylist()[0]
        assert batch["score"][row] == expected["score"]
        assert batch["text"][row] == expected["text"]
        valid = "maybe_mask" not in batch or bool(batch["maybe_mask"][row])
        assert (batch["maybe"][row] if valid else None) == expected["maybe"]
        assert batch["vector"][row].tolist() == [n, n]
        assert batch["image"][row][0] == n % 256
        assert np.asarray(batch["tokens"][row]).tolist() == expected["tokens"]
        assert batch["group"][row] == n // 20
        yield n


@settings(max_examples=8)
@given(
    chosen=st.lists(st.integers(0, ROWS - 5), min_size=1, max_size=60, unique=True),
    ranks=st.integers(1, 2),
    size=st.integers(1, 16),
    shuffle=st.booleans(),
    share=st.floats(0, 0.99),
)
def test_every_row_comes_once_with_its_own_values(
    uri: Path, chosen: list[int], ranks: int, size: int, shuffle: bool, share: float
) -> None:
    positions = np.array(chosen)
    view, again = (computed_view(penstock.load(uri)._reader, positions) for _ in range(2))
    expected = view["n"][:].tolist()
    names = values(np.arange(1)).column_names
    assert view.to_arrow().select(names).to_pylist() == values(np.array(expected)).to_pylist()
    seen: list[int] = []
    for rank in range(ranks):
        loader, resumed = (
            each.numpy(batch_size=size, shuffle=shuffle, distributed=(rank, ranks)) for each in (view, again)
        )
        running = iter(loader)
        for _ in range(int(share * len(loader))):
            seen += check(next(running))
        resumed.load_state_dict(loader.state_dict())
        seen += [n for batch in resumed for n in check(batch)]
    assert set(seen) == set(expected)
    if ranks == 1:  # several ranks have equally many batches, so that rows repeat at the end
        assert (sorted(seen), len(seen)) == (sorted(expected), len(expected))
        assert shuffle or seen == expected


@pytest.mark.parametrize("workers", [Workers(2, "thread"), Workers(2, "process")], ids=str)
def test_threads_and_processes_read_them(uri: Path, workers: Workers) -> None:
    view = computed_view(penstock.load(uri)._reader, np.arange(150, 10, -3))
    for epoch in range(2):
        loader = view.pytorch(batch_size=7, shuffle=True, num_workers=workers)
        loader.set_epoch(epoch)
        found = [
            (int(n), float(score)) for batch in loader for n, score in zip(batch["n"], batch["score"], strict=True)
        ]
        assert sorted(found) == sorted((n, n / 4) for n in view["n"][:].tolist())


def test_torch_workers_read_rows(uri: Path) -> None:
    torch = pytest.importorskip("torch")
    view = computed_view(penstock.load(uri)._reader, np.arange(20, 60)).select(["n", "score", "text"])
    loader = torch.utils.data.DataLoader(view.pytorch(), batch_size=8, num_workers=2, multiprocessing_context="fork")
    assert [float(score) for batch in loader for score in batch["score"]] == (view["n"][:] / 4).tolist()


def test_another_process_has_the_same_digest_and_resumes(uri: Path) -> None:
    view = computed_view(penstock.load(uri)._reader, np.arange(100, 20, -1)).select(["n", "score", "pair"])
    loader = view.numpy(batch_size=8, shuffle=True)
    running = iter(loader)
    seen = [n for _ in range(4) for n in next(running)["n"].tolist()]
    code = (
        "import json, sys, numpy as np, penstock\n"
        "from tests.table.test_computed import computed_view\n"
        "view = computed_view(penstock.load(sys.argv[1])._reader, np.arange(100, 20, -1))\n"
        "view = view.select(['n', 'score', 'pair'])\n"
        "loader = view.numpy(batch_size=8, shuffle=True)\n"
        "loader.load_state_dict(json.load(sys.stdin))\n"
        "print(json.dumps([int(n) for batch in loader for n in batch['n']]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(uri)], input=json.dumps(loader.state_dict()), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert seen + json.loads(done.stdout) == [n for batch in view.numpy(batch_size=8, shuffle=True) for n in batch["n"]]


def test_other_values_have_another_digest(uri: Path) -> None:
    reader, rows = penstock.load(uri)._reader, np.array([1, 2])
    one, other = (View(with_computed(reader, rows, pa.table({"x": x})), ["x"], rows) for x in ([1, 2], [1, 3]))
    loader = other.numpy(batch_size=1)
    with pytest.raises(InvalidInputError, match="the snapshot"):
        loader.load_state_dict(one.numpy(batch_size=1).state_dict())


def test_windows_packing_splits_weights_and_mixtures_use_them(uri: Path) -> None:
    ds = penstock.load(uri)
    view = computed_view(ds._reader, np.arange(10, 110))
    windows = view.windows(3, within="group", order_by="score")
    for batch in windows.numpy(batch_size=8):
        assert (batch["score"] == batch["n"] / 4).all()
        assert (np.diff(batch["group"], axis=1) == 0).all()
    tokens = np.concatenate([batch["tokens"].reshape(-1) for batch in view.pack("tokens", 16).numpy(batch_size=4)])
    assert set(view["n"][:].tolist()) <= set(tokens.tolist())
    parts = view.split({"a": 0.5, "b": 0.5}, by="group")
    assert not set(parts["a"]["group"][:].tolist()) & set(parts["b"]["group"][:].tolist())
    weighted = view.weighted("score", rows=2000).numpy(batch_size=100)
    drawn = np.concatenate([batch["n"] for batch in weighted])
    assert drawn.mean() > view["n"][:].mean() + 5
    mixture = penstock.mix({"computed": view.select(["n"]), "stored": ds.select(["n"])})
    assert sum(len(batch["n"]) for batch in mixture.numpy(batch_size=8)) > 100
    assert view[pc.field("score") > 20]["n"][:].tolist() == [n for n in view["n"][:].tolist() if n > 80]


def test_more_columns_on_top_and_other_names(uri: Path) -> None:
    reader, rows = penstock.load(uri)._reader, np.array([5, 120, 40])
    first = with_computed(reader, rows, pa.table({"x": rows}), renamed={"title": "name"})
    second = with_computed(
        first,
        rows[::-1],
        pa.table({"y": rows[::-1] * 2, "n": rows[::-1]}),
        renamed={"x": "episode", "picture": "image"},
    )
    view = View(second, ["n", "y", "x", "title", "name", "picture", "image"], rows)
    stored: dict[str, Any] = View(reader, ["episode", "name", "image"], rows).to_numpy()
    found: dict[str, Any] = view.to_numpy()
    assert found["n"].tolist() == rows.tolist()
    assert found["y"].tolist() == (rows * 2).tolist()
    assert found["x"].tolist() == stored["episode"].tolist()
    assert list(found["title"]) == list(found["name"]) == list(stored["name"])
    assert (found["picture"] == stored["image"]).all()
    assert (found["image"] == stored["image"]).all()
    [batch] = view.numpy(batch_size=3)
    assert batch["n"].tolist() == rows.tolist()
    assert (batch["picture"] == stored["image"]).all()
    with pytest.raises(InvalidInputError, match="two columns are called 'x'"):
        with_computed(reader, rows, pa.table({"x": rows}), renamed={"x": "name"})
    with pytest.raises(InvalidInputError, match="begin with _"):
        with_computed(reader, rows, pa.table({"_x": rows}))
    with pytest.raises(InvalidInputError, match="too large"):
        with_computed(reader, rows[:1], pa.table({"x": [b"0" * ((16 << 20) + 1)]}))


def test_uncommitted_changes_are_below(tmp_path: Path) -> None:
    ds = fill(penstock.create(tmp_path / "t", COLUMNS))
    ds.update(positions=[0], data={"n": 1000})
    ds.append({"n": [2000], "episode": [0], "name": ["new"], "image": np.zeros((1, 300), np.uint8)})
    rows = np.array([len(ds) - 1, 0])
    view = View(with_computed(ds._reader, rows, pa.table({"x": ["last", "first"]})), ["n", "x"], rows)
    ds.rollback()
    expected = [{"n": 2000, "x": "last"}, {"n": 1000, "x": "first"}]
    assert view.to_arrow().to_pylist() == expected
    copied = pickle.loads(pickle.dumps(view._reader))
    assert View(copied, ["n", "x"], rows).to_arrow().to_pylist() == expected


def test_memory_follows_the_rows_with_values_and_nothing_is_written(tmp_path: Path) -> None:
    store = CountingStore(open_store(tmp_path))
    ds = penstock.create(store, {"n": int})
    ds.append({"n": np.arange(300_000)})
    ds.commit()
    store.reset()
    rows = np.array([7, 150_000, 299_999])
    reader = with_computed(ds._reader, rows, pa.table({"x": rows * 1.5, "v": [[0.5] * 64] * 3}))
    assert reader.store.held_bytes < 100_000  # type: ignore[attr-defined]  # 300,000 rows would have 80 MB
    assert View(reader, ["x"], rows)["x"][:].tolist() == (rows * 1.5).tolist()
    assert not store.requests["put"]
    assert not store.requests["create"]


def test_on_object_storage() -> None:
    location = new_location("s3")
    ds = fill(penstock.create(location.uri, COLUMNS, storage_options=location.options))
    view = computed_view(ds._reader, np.arange(0, 190, 2))
    loader = view.numpy(batch_size=16, shuffle=True, num_workers=Workers(2, "process"))
    assert sorted(n for batch in loader for n in check(batch)) == sorted(view["n"][:].tolist())


def test_types_that_only_sql_has() -> None:
    table = pa.table(
        {
            "whole": pa.array([Decimal(2), None], pa.decimal128(38, 0)),
            "huge": pa.array([Decimal(2**70), Decimal(1)], pa.decimal128(38, 0)),
            "price": pa.array([Decimal("1.50"), Decimal("2.25")], pa.decimal128(10, 2)),
            "day": pa.array([date(2026, 1, 2), None]),
            "hour": pa.array([time(1, 2, 3), time(4)], pa.time64("us")),
            "nothing": pa.nulls(2),
            "label": pa.array(["a", "b"]).dictionary_encode(),
        }
    )
    reader = memory_table(table, "result")
    assert View(reader, table.column_names, range(2)).to_arrow().to_pylist() == [
        {"whole": 2, "huge": 2.0**70, "price": 1.5, "day": datetime(2026, 1, 2), "hour": "01:02:03.000000",
         "nothing": None, "label": "a"},
        {"whole": None, "huge": 1.0, "price": 2.25, "day": None, "hour": "04:00:00.000000",
         "nothing": None, "label": "b"},
    ]  # fmt: skip


def test_a_table_in_memory_streams_resumes_and_is_equal_everywhere(tmp_path: Path) -> None:
    n = np.arange(100)
    reader, again = (memory_table(values(n).append_column("n", pa.array(n)), "result") for _ in range(2))
    names = ["n", "score", "text", "maybe", "tokens", "pair"]
    view = View(reader, names, range(100))
    assert view["_row_id"][:].tolist() == n.tolist()
    loader = view.numpy(batch_size=8, shuffle=True, num_workers=Workers(2, "process"))
    running = iter(loader)
    seen = [i for _ in range(3) for i in next(running)["n"].tolist()]
    resumed = View(again, names, range(100)).numpy(batch_size=8, shuffle=True)
    resumed.load_state_dict(loader.state_dict())
    assert sorted(seen + [i for batch in resumed for i in batch["n"].tolist()]) == n.tolist()
    rows = np.array([4, 2])
    assert View(with_computed(reader, rows, pa.table({"x": [1, 2]})), ["n", "x"], rows).to_arrow().to_pylist() == [
        {"n": 4, "x": 1},
        {"n": 2, "x": 2},
    ]


def test_a_table_in_memory_has_the_kinds_that_are_given() -> None:
    images = penstock.create(open_store("memory://"), {"image": Image("png")})
    images.append({"image": [np.full((4, 4, 3), n, np.uint8) for n in range(3)]})
    encoded = images.to_arrow()
    view = View(memory_table(encoded, "result", kinds={"image": Image("png")}), ["image"], range(3))
    assert [image[0, 0, 0] for image in view.to_numpy()["image"]] == [0, 1, 2]
    assert len(View(memory_table(pa.table({"x": pa.array([], pa.int64())}), "result"), ["x"], range(0))) == 0
    with pytest.raises(InvalidInputError, match="select _row_id instead"):
        memory_table(pa.table({"x": [b"0" * ((16 << 20) + 1)]}), "result")
    with pytest.raises(InvalidInputError, match="two columns are called 'x'"):
        memory_table(pa.table([pa.array([1]), pa.array([2])], ["x", "x"]), "result")
