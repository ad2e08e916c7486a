"""Saved views: the same rows on any machine, kept by vacuum, verified, and refused when they are forged."""

import json
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import penstock
from penstock.errors import AlreadyExistsError, CorruptError, InvalidInputError, NotFoundError
from penstock.format import crc32c, seal, unseal
from penstock.history import _vacuum, store_time
from penstock.storage import Store, open_store
from tests.servers import StoreLocation

SQL = "SELECT n AS number, image, n * 1.5 AS score, [n, n] AS pair, _row_id FROM ds WHERE n % 3 = 0 ORDER BY n DESC"


def new_table(location: Any, **options: Any) -> penstock.Dataset:
    ds = penstock.create(location, {"n": int, "image": "uint8[300]"}, **options)
    for start in range(0, 60, 20):
        n = np.arange(start, start + 20)
        ds.append({"n": n, "image": np.repeat(n[:, None], 300, 1).astype(np.uint8)})
        ds.commit()
    return ds


@pytest.fixture
def store() -> Store:
    store = open_store("memory://")
    new_table(store).query(SQL).save_view("hard/cases")
    return store


def test_is_the_same_view_on_every_store(store_uri: StoreLocation) -> None:
    ds = new_table(store_uri.uri, storage_options=store_uri.options)
    view = ds.query(SQL)
    view.save_view("hard/cases")
    ds.delete(positions=slice(0, 30))
    ds.commit()
    loaded = penstock.load(store_uri.uri, view="hard/cases", storage_options=store_uri.options)
    assert loaded.to_arrow().equals(view.to_arrow())
    assert str(loaded.schema) == str(view.schema)
    assert loaded.numpy(batch_size=4).state_dict() == view.numpy(batch_size=4).state_dict()
    saved = ds.views()["hard/cases"]
    assert (saved.version, saved.rows, saved.description) == ("main@3", 20, SQL)
    assert "hard/cases: 20 rows of main@3" in repr(ds.views())
    assert not penstock.verify(store_uri.uri, storage_options=store_uri.options).damaged


def test_resumes_in_another_process(tmp_path: Path) -> None:
    new_table(tmp_path).query(SQL).save_view("v")
    loader = penstock.load(tmp_path, view="v").numpy(batch_size=3, shuffle=True)
    running = iter(loader)
    seen = [n for _ in range(3) for n in next(running)["number"].tolist()]
    code = (
        "import json, sys, penstock\n"
        "loader = penstock.load(sys.argv[1], view='v').numpy(batch_size=3, shuffle=True)\n"
        "loader.load_state_dict(json.load(sys.stdin))\n"
        "print(json.dumps([int(n) for batch in loader for n in batch['number']]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        input=json.dumps(loader.state_dict()),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(seen + json.loads(done.stdout)) == list(range(0, 60, 3))


def test_vacuum_keeps_its_version_until_it_is_deleted(store: Store) -> None:
    ds = penstock.load(store)
    expected = penstock.load(store, view="hard/cases").to_arrow()
    ds.update(positions=slice(None), data={"n": 0})
    ds.commit()
    penstock.compact(store)
    assert penstock.vacuum(store, older_than=timedelta(0)).versions
    assert penstock.load(store, view="hard/cases").to_arrow().equals(expected)
    ds.views().rename("hard/cases", "kept")
    assert list(ds.views()) == ["kept"]
    assert penstock.load(store, view="kept").to_arrow().equals(expected)
    with pytest.raises(NotFoundError, match="no view 'hard/cases'; it has kept"):
        penstock.load(store, view="hard/cases")
    ds.views().delete("kept")
    assert len(ds.views()) == 0
    assert [version.version for version in penstock.vacuum(store, older_than=timedelta(0)).versions] == [3]
    with pytest.raises(NotFoundError):
        ds.views().delete("kept")
    ds.checkout().limit(2).save_view("kept")
    assert len(penstock.load(store, view="kept")) == 2


def test_vacuum_deletes_the_object_of_a_deleted_view_when_no_writer_can_need_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    penstock.load(store).limit(3).save_view("other")
    penstock.load(store).views().delete("other")
    assert _objects(store) == 2
    penstock.vacuum(store)
    assert _objects(store) == 2
    monkeypatch.setattr(_vacuum, "store_time", lambda store: store_time(store) + 8 * 86_400)
    penstock.vacuum(store)
    assert _objects(store) == 1
    assert len(penstock.load(store, view="hard/cases")) == 20


def _objects(store: Store) -> int:
    return sum(item.key.endswith(".arrow") for item in store.list("views/"))


def test_what_cannot_be_saved(store: Store) -> None:
    ds = penstock.load(store)
    with pytest.raises(AlreadyExistsError, match="a view 'hard/cases' already"):
        ds.limit(1).save_view("hard/cases")
    for name in ("", "7", "a b", "../x", "x" * 200):
        with pytest.raises(InvalidInputError, match="cannot be the name"):
            ds.save_view(name)
    with pytest.raises(InvalidInputError, match="has rows of its own"):
        ds.query("SELECT count(*) AS c FROM ds").save_view("x")
    ds.append({"n": [1], "image": np.zeros((1, 300), np.uint8)})
    for view in (ds, ds.query("SELECT *, 1 AS one FROM ds")):
        with pytest.raises(InvalidInputError, match="uncommitted changes"):
            view.save_view("x")
    ds.rollback()
    with pytest.raises(InvalidInputError, match="version of its own"):
        penstock.load(store, view="hard/cases", version=1)  # type: ignore[call-overload]


def test_any_view_can_be_saved(store: Store) -> None:
    ds = penstock.load(store)
    views = {
        "whole": ds[:],
        "repeats": ds[[5, 5, 1]].select(["n", "_row_id"]),
        "empty": ds.where("n < 0"),
        "nested": ds.query("SELECT n, n + 1 AS a FROM ds")
        .query("SELECT a, a * 2 AS b, n AS c FROM ds WHERE a > 5")
        .sample(7),
        "swapped": ds.query("SELECT image AS n, n AS image FROM ds").limit(3),
        "old": penstock.load(store, version=1).sample(5),
    }
    for name, view in views.items():
        view.save_view(name, f"this is {name}")
        loaded = penstock.load(store, view=name)
        assert loaded.to_arrow().equals(view.to_arrow())
        assert len(loaded) == len(view)
        assert sum(len(batch) > 0 for batch in loaded.numpy(batch_size=64)) == (len(view) > 0)
    assert all(ds.views()[name].description == f"this is {name}" for name in views)
    assert ds.views()["old"].version == "main@1"
    branch = ds.branches.create("side")
    branch.limit(1).save_view("on-a-branch")
    assert ds.views()["on-a-branch"].version == "side@0"
    assert not penstock.verify(store).damaged


def forge(store: Store, change: Callable[[pa.Table, dict[str, Any]], pa.Table], **members: Any) -> None:
    """Change the object of the view, and make its checksums right again."""
    [name] = [item.key for item in store.list("views/") if item.key.endswith(".json")]
    ref = unseal(store.get(name), name)
    ref.pop("crc32c", None)
    key = f"views/{ref['object']}.arrow"
    table = pa.ipc.open_file(pa.py_buffer(store.get(key))).read_all()
    about = json.loads(table.schema.metadata[b"view"])
    changed = change(table, about)
    changed = changed.replace_schema_metadata({b"view": json.dumps(about).encode()})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, changed.schema) as writer:
        writer.write_table(changed)
    data = sink.getvalue().to_pybytes()
    store.put(key, data)
    store.put(name, seal({**ref, "length": len(data), "crc": crc32c(data), "rows": len(changed), **members}))


def _set(about: dict[str, Any], table: pa.Table, **changes: Any) -> pa.Table:
    about.update(changes)
    return table


HOSTILE: dict[str, Callable[[pa.Table, dict[str, Any]], pa.Table]] = {
    "unknown row": lambda t, _: t.set_column(0, "_row_id", pa.array(np.arange(len(t)) + 10**9)),
    "negative row": lambda t, _: t.set_column(0, "_row_id", pa.array(-np.arange(len(t)))),
    "null row": lambda t, _: t.set_column(0, "_row_id", pa.nulls(len(t), pa.int64())),
    "text row": lambda t, _: t.set_column(0, "_row_id", pa.array(["x"] * len(t))),
    "no rows": lambda t, _: t.drop_columns(["_row_id"]),
    "no column": lambda t, about: _set(about, t, columns=["number", "none", "score", "pair"]),
    "column twice": lambda t, about: _set(about, t, columns=["number", "number", "score", "pair"]),
    "columns": lambda t, about: _set(about, t, columns=7),
    "renamed": lambda t, about: _set(about, t, renamed={"number": "zz"}),
    "no field": lambda t, about: _set(about, t, renamed={"number": "123"}),
    "reserved": lambda t, about: _set(about, t, columns=[*about["columns"], "_x"]),
    "type": lambda t, _: t.set_column(1, "score", pa.array([{}] * len(t), pa.struct([]))),
    "map": lambda t, _: t.set_column(1, "score", pa.array([[]] * len(t), pa.map_(pa.int8(), pa.int8()))),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_forged_views_are_refused(store: Store, change: Callable[[pa.Table, dict[str, Any]], pa.Table]) -> None:
    forge(store, change)
    with pytest.raises(CorruptError):
        penstock.load(store, view="hard/cases")


@pytest.mark.parametrize(
    "members",
    [{"object": "../x"}, {"rows": 3}, {"rows": -1}, {"version": 99}, {"branch": "0" * 32}, {"crc": 1}, {"length": 2}],
)
def test_forged_names_are_refused_and_reported(store: Store, members: dict[str, Any]) -> None:
    forge(store, lambda table, _: table, **members)
    with pytest.raises((CorruptError, NotFoundError)):
        penstock.load(store, view="hard/cases")
    assert penstock.verify(store).damaged


def test_damage_is_reported(store: Store) -> None:
    [key] = [item.key for item in store.list("views/") if item.key.endswith(".arrow")]
    store.delete([key])
    with pytest.raises(CorruptError, match="the saved view 'hard/cases' is incomplete"):
        penstock.load(store, view="hard/cases")
    assert any(key in damage for damage in penstock.verify(store).damaged)
    penstock.delete(store)
    assert not list(store.list())
