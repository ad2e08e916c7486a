"""`to_arrow_dataset()` has every method of a `pyarrow.dataset.Dataset`; none ends the process."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pads
import pytest

from penstock.errors import InvalidInputError, NotFoundError
from tests.query.tables import make_table

COLUMNS = ["id", "label", "camera", "reward"]


@pytest.fixture(scope="module")
def given() -> Any:
    return make_table().select(COLUMNS).to_arrow_dataset()


@pytest.fixture(scope="module")
def plain(given: Any) -> Any:
    return pads.dataset(given.to_table())


OTHER = pads.dataset(pa.table({"label": [0, 1, 2, 3], "name": ["a", "b", "c", "d"]}))
NEAR = pads.dataset(pa.table({"id": [10, 20], "label": [1, 1], "near": [1.0, 2.0]}))
SAME: dict[str, Callable[[Any], Any]] = {
    "count_rows": lambda ds: (ds.count_rows(), ds.count_rows(filter=pc.field("label") == 1)),
    "filter": lambda ds: ds.filter(pc.field("label") == 1).filter(pc.field("id") > 50).to_table().to_pylist(),
    "filter counts": lambda ds: ds.filter(pc.field("label") == 1).count_rows(),
    "filter of a filter": lambda ds: ds.filter(pc.field("label") == 1).to_table(filter=pc.field("id") < 9).to_pylist(),
    "head": lambda ds: ds.filter(pc.field("label") == 1).head(3, columns=["id"]).to_pylist(),
    "join": lambda ds: sorted(
        map(str, ds.join(OTHER, "label", join_type="inner").to_table().select(["id", "name"]).to_pylist())
    ),
    "join of two": lambda ds: ds.join(ds, "id", right_suffix="_r").count_rows(),
    "join_asof": lambda ds: ds.sort_by("id").join_asof(NEAR, on="id", by="label", tolerance=5).count_rows(),
    "partition_expression": lambda ds: str(ds.partition_expression),
    "scanner": lambda ds: ds.filter(pc.field("label") == 1).scanner(columns=["id"]).to_table().to_pylist(),
    "schema": lambda ds: ds.schema.names,
    "sort_by": lambda ds: ds.sort_by([("reward", "descending"), ("id", "ascending")]).to_table(["id"]).to_pylist(),
    "take": lambda ds: ds.take([7, 2, 2, 90], columns=["id", "camera"]).to_pylist(),
    "take of a filter": lambda ds: ds.take(pa.array([1, 0]), filter=pc.field("label") == 1).to_pylist(),
    "to_batches": lambda ds: [row for batch in ds.to_batches(columns=["id"]) for row in batch.to_pylist()],
    "to_table": lambda ds: ds.to_table(columns=["camera", "id"], filter=pc.field("camera").is_null()).to_pylist(),
}


@pytest.mark.parametrize("method", SAME)
def test_a_method_gives_what_arrows_own_gives(given: Any, plain: Any, method: str) -> None:
    assert SAME[method](given) == SAME[method](plain)


def test_every_method_of_a_dataset_is_our_own(given: Any) -> None:
    """A method that a later pyarrow adds fails here: it would read what is not there."""
    own = {name for cls in type(given).__mro__ if cls.__module__.startswith("penstock.") for name in vars(cls)}
    bases = {name for cls in type(given).__mro__ if cls.__module__.startswith("pyarrow") for name in vars(cls)}
    public = {name for name in bases if not name.startswith("_")}
    assert public >= {"filter", "get_fragments", "join", "sort_by", "take", "to_table"}
    assert public <= own
    assert public - {"children", "get_fragments", "join_asof", "replace_schema"} <= {name.split()[0] for name in SAME}


def test_it_can_be_pickled(given: Any) -> None:
    part = given.filter(pc.field("label") == 1)
    assert pickle.loads(pickle.dumps(part)).to_table().equals(part.to_table())


def test_fragments_are_all_rows(given: Any) -> None:
    part = given.filter(pc.field("label") == 1)
    found = [row for each in part.get_fragments() for row in each.scanner(columns=["id"]).to_table().to_pylist()]
    assert found == part.to_table(["id"]).to_pylist()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda ds: ds.replace_schema(ds.schema), InvalidInputError, "cannot be replaced"),
        (lambda ds: pads.dataset([ds, ds]), InvalidInputError, "part of a union"),
        (lambda ds: ds.children, AttributeError, "no children"),
        (lambda ds: ds.filter("id = 1"), InvalidInputError, "an expression"),
        (lambda ds: ds.take([10_000]), InvalidInputError, "by index"),
        (lambda ds: ds.take([-1]), InvalidInputError, "by index"),
        (lambda ds: ds.to_table(columns={"x": pc.field("id")}), InvalidInputError, "list of column names"),
        (lambda ds: ds.to_table(columns="id"), InvalidInputError, "list of column names"),
        (lambda ds: ds.scanner(columns=["idd"]), NotFoundError, "no column 'idd'"),
    ],
)
def test_what_cannot_be_done_is_refused(given: Any, call: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        call(given)


ATTACKS = [
    "ds.replace_schema(ds.schema)",
    "ds.sort_by('id')",
    "ds.join(plain, 'id')",
    "ds.join_asof(plain, on='id', by='id', tolerance=1)",
    "plain.join(ds, 'id')",
    "plain.join_asof(ds, on='id', by='id', tolerance=1)",
    "pads.dataset([ds, plain])",
    "pads.UnionDataset(ds.schema, [ds]).to_table()",
    "pads.Scanner.from_dataset(ds).to_table()",
    "pads.write_dataset(ds, '/nowhere/at/all', format='ipc')",
    "list(ds._get_fragments(None))",
    "ds._scanner_options({})",
    "ds._scan_options",
    "repr(ds), ds == plain, hash(ds)",
    "copy.copy(ds).count_rows()",
]


def test_nothing_ends_the_process() -> None:
    """Arrow's own code that takes a dataset meets one that says what to do instead."""
    source = (
        "import copy, penstock, pyarrow.dataset as pads\n"
        "made = penstock.create('memory://', {'id': 'int64'})\n"
        "made.append({'id': range(9)})\n"
        "made.commit('rows')\n"
        "ds = made.to_arrow_dataset()\n"
        "plain = pads.dataset(ds.to_table())\n"
        f"for attack in {ATTACKS!r}:\n"
        "    try:\n"
        "        eval(attack)\n"
        "        print(attack, '->', 'done', flush=True)\n"
        "    except Exception as error:\n"
        "        print(attack, '->', type(error).__name__, error, flush=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, timeout=240, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, (lines[-1:], done.stderr)
    assert len(lines) == len(ATTACKS), lines
    found = dict(line.split(" -> ") for line in lines)
    for attack in ("plain.join(ds, 'id')", "pads.Scanner.from_dataset(ds).to_table()"):
        assert "use its to_table" in found[attack]
