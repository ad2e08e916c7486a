"""Computed columns: by any number of processes, and continued where a call was interrupted."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import Dataset, Image
from penstock.errors import InvalidInputError, PenstockError
from penstock.table import ComputeOptions, add_column

ROWS = 9_000


def new_table(place: Path) -> Dataset:
    ds = penstock.create(place, {"n": int, "t": str})
    for start in (0, 5_000):
        numbers = np.arange(start, start + 5_000)
        ds.append({"n": numbers, "t": [f"t{n}" for n in numbers]})
    ds.delete("n % 10 = 3")
    ds.commit()
    return ds


def record(folder: Path, batch: dict[str, Any], fail_at: str = "fail at") -> Any:
    """Doubles numbers, and notes the batches that it saw; fails where a file says."""
    at = folder / fail_at
    first = int(batch["n"][0])
    if at.exists() and first >= int(at.read_text().split()[0]):
        if at.read_text().endswith("exit"):
            os._exit(7)
        raise RuntimeError("stopped") if at.read_text().endswith("error") else KeyboardInterrupt
    (folder / f"{first}").write_text(str(os.getpid()))
    return batch["n"] * 2


def seen(folder: Path) -> list[int]:
    """The batches since the last call, by their first number."""
    found = sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    for path in folder.iterdir():
        if path.name.isdigit():
            path.unlink()
    return found


@pytest.mark.parametrize(("num_workers", "how"), [(1, "interrupt"), (2, "error")])
def test_a_column_is_computed_on_after_an_interruption(num_workers: int, how: str, tmp_path: Path) -> None:
    ds, log = new_table(tmp_path / "t"), tmp_path / "log"
    log.mkdir()
    compute = partial(record, log)
    (log / "fail at").write_text(f"6000 {how}")
    steps: list[tuple[int, int]] = []
    with pytest.raises((RuntimeError, KeyboardInterrupt)):
        ds.add_column("twice", compute=compute, inputs=["n"], num_workers=num_workers)
    first = seen(log)
    assert len(first) >= 4
    assert "twice" not in ds.schema
    ds.append({"n": [10_000], "t": ["later"]})  # other rows do not matter
    ds.commit()
    (log / "fail at").unlink()
    ds = penstock.load(tmp_path / "t")
    ds.add_column("twice", compute=compute, inputs=["n"], num_workers=num_workers, progress=lambda *s: steps.append(s))
    rest = seen(log)
    assert len(set(rest) - set(first)) >= 4
    assert len(set(rest) & set(first)) <= num_workers  # in flight at the interruption
    assert steps[0] == (0, ROWS + 1)
    assert steps[-1] == (ROWS + 1, ROWS + 1)
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    ds.commit()
    assert np.array_equal(ds["twice"][:], 2 * np.asarray(ds["n"][:]))
    assert not list(ds._session.store.list("ingest/waiting/"))
    assert not penstock.verify(tmp_path / "t").damaged


def test_a_killed_program_loses_what_was_in_flight(tmp_path: Path) -> None:
    new_table(tmp_path / "t")
    log = tmp_path / "log"
    log.mkdir()
    (log / "fail at").write_text("6000 exit")
    program = (
        "import sys, penstock; from functools import partial; from pathlib import Path;"
        "from tests.table.test_compute_column import record, options; from penstock.table import add_column;"
        "ds = penstock.load(sys.argv[1]);"
        "add_column(ds._session, 'twice', None, fill=None, values=None, compute=partial(record, Path(sys.argv[2])),"
        " options=options())"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "t"), str(log)]
    assert subprocess.run(command, timeout=240, check=False).returncode == 7
    assert len(seen(log)) == 6
    (log / "fail at").unlink()
    ds = penstock.load(tmp_path / "t")
    staged = sorted(ds._session.store.list("ingest/waiting/"), key=lambda item: item.key)
    assert len(staged) == 6
    ds._session.store.put(staged[0].key, b"damaged")
    compute = partial(record, log)
    add_column(ds._session, "twice", None, fill=None, values=None, compute=compute, options=options())
    assert len(seen(log)) == 4 + 1
    assert np.array_equal(ds["twice"][:], 2 * np.asarray(ds["n"][:]))
    ds.rollback()


def options() -> ComputeOptions:
    return ComputeOptions(["n"], 1, 1, lambda _done, _rows: None, stage_every_s=0)


def test_another_function_or_kind_starts_anew(tmp_path: Path) -> None:
    ds, log = new_table(tmp_path / "t"), tmp_path / "log"
    log.mkdir()
    (log / "fail at").write_text("6000 error")
    with pytest.raises(RuntimeError, match="stopped"):
        ds.add_column("x", compute=partial(record, log), inputs=["n"])
    seen(log)
    (log / "fail at").unlink()
    changes: list[dict[str, Any]] = [
        {"compute": partial(record, log, fail_at="other")}, {"column": "float32"}, {"inputs": ["n", "t"]},
        {"name": "y"},
    ]  # fmt: skip
    for change in changes:
        ds.add_column(**{"name": "x", "compute": partial(record, log), "inputs": ["n"], **change})
        assert len(seen(log)) == 10
        ds.rollback()
    ds.add_column("x", compute=partial(record, log), inputs=["n"])
    assert len(seen(log)) == 4
    ds.rollback()


def test_processes_compute_what_one_does(tmp_path: Path) -> None:
    ds = new_table(tmp_path / "t")
    ds.add_column("pid", compute=lambda batch: [os.getpid()] * len(batch["n"]), num_workers=2)
    pids = set(np.asarray(ds["pid"][:]).tolist())
    assert len(pids) >= 2
    ds.rollback()  # uncommitted changes are computed by this process, since no other one sees them
    for num_workers in (1, 2):
        ds.add_column(
            f"image {num_workers}", Image("png"), num_workers=num_workers, inputs=["n"],
            compute=lambda batch: [np.full((2, 2 + int(n) % 2, 3), int(n) % 256, np.uint8) for n in batch["n"]],
        )  # fmt: skip
        ds.add_column(f"maybe {num_workers}", penstock.Column("text", nullable=True), num_workers=num_workers,
                      compute=lambda batch: [t if int(t[1:]) % 2 else None for t in batch["t"]])  # fmt: skip
        ds.commit()
    table = ds.to_arrow()
    for name in ("image", "maybe"):
        assert table[f"{name} 1"].equals(table[f"{name} 2"])
    ds.delete(positions=slice(0, 10))
    ds.add_column("staged", compute=lambda batch: [os.getpid()] * len(batch["n"]), num_workers=2)
    assert set(np.asarray(ds["staged"][:]).tolist()) == {os.getpid()}
    ds.rollback()


def test_errors_of_processes_are_errors_of_the_call(tmp_path: Path) -> None:
    ds = new_table(tmp_path / "t")

    def raises(error: Any) -> Any:
        def compute(batch: dict[str, Any]) -> Any:
            if batch["n"][0] > 4000:
                raise error
            return batch["n"]

        return compute

    def ends(batch: dict[str, Any]) -> Any:
        if batch["n"][0] > 4000:
            os._exit(5)
        return batch["n"]

    def part(batch: dict[str, Any]) -> Any:
        return batch["n"][: 1024 if batch["n"][0] < 4000 else 3]

    for function, error, sentence in (
        (raises(LookupError("here")), LookupError, "here"),
        (part, InvalidInputError, "column 'x': .* but 3 values"),
        (ends, PenstockError, "a worker process ended with exit code 5"),
    ):  # fmt: skip
        with pytest.raises(error, match=sentence):
            ds.add_column("x", int, compute=function, inputs=["n"], num_workers=2)
        assert not ds.summary().has_changes
