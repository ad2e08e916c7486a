"""torch files: tensors are read, and pickled code never runs."""

import builtins
import io
import os
import pickle
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import penstock
from penstock.engine import BadSamples
from penstock.errors import InvalidInputError
from penstock.format.kinds import Tensor
from penstock.ingest import IngestOptions, RowBatch, prepare, run
from penstock.ingest.sources._torch_files import TORCH_FILES
from penstock.storage import open_store
from penstock.testing import SourceTests
from tests.ingest.arrays import kinds, open_scan, read_columns, same

MARK = Path(tempfile.gettempdir(), f"penstock-torch-unpickled-{os.getpid()}")


class TestColumns(SourceTests):
    source = TORCH_FILES
    expected = 9

    def make(self, folder: Path) -> None:
        for shard, rows in enumerate((4, 5)):
            torch.save({"x": torch.rand(rows, 3), "y": torch.arange(rows)}, folder / f"{shard}.pt")


class TestLists(SourceTests):
    source = TORCH_FILES
    expected = 6

    def make(self, folder: Path) -> None:
        rows = [{"x": torch.rand(1 + number, 3), "name": f"row {number}", "label": number} for number in range(3)]
        torch.save(rows, folder / "a.pth")
        torch.save(rows, folder / "b.pth")


def columns_of(folder: Path) -> dict[str, list[Any]]:
    columns, rejects = read_columns(TORCH_FILES, folder)
    assert not rejects
    return columns


def test_single_tensor_is_the_column_data(tmp_path: Path) -> None:
    tensor = torch.rand(5, 2, 3)
    torch.save(tensor, tmp_path / "a.pt")
    assert same(columns_of(tmp_path)["data"], tensor.numpy())


def test_a_list_of_tensors_is_rows(tmp_path: Path) -> None:
    torch.save((torch.zeros(2), torch.ones(3)), tmp_path / "a.pt")
    assert [row.tolist() for row in columns_of(tmp_path)["data"]] == [[0, 0], [1, 1, 1]]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.rand(4, 3).to(torch.bfloat16),
        torch.rand(4, 3).to(torch.float8_e4m3fn),
        torch.rand(4, 3).to(torch.float8_e5m2),
        torch.rand(4, 3) > 0.5,
        torch.rand(4, 3, dtype=torch.complex64).conj(),
        torch.rand(3, 4).T,
        torch.rand(8, 3)[::2],
        torch.nn.Parameter(torch.rand(4, 3)),
        torch.rand(3).expand(4, 3),
    ],
    ids=["bfloat16", "e4m3", "e5m2", "bool", "conj", "transposed", "strided", "parameter", "expanded"],
)
def test_tensor_roundtrip(tmp_path: Path, tensor: torch.Tensor) -> None:
    torch.save(tensor, tmp_path / "a.pt")
    plain = tensor.detach().resolve_conj().contiguous()
    found = np.stack(columns_of(tmp_path)["data"])
    assert found.shape == (4, 3)
    assert found.tobytes() == bytes(plain.flatten().view(torch.uint8).tolist())


def test_bfloat16_roundtrip(tmp_path: Path) -> None:
    torch.save({"x": torch.ones(4, 3, dtype=torch.bfloat16)}, tmp_path / "a.pt")
    _, scan = open_scan(TORCH_FILES, tmp_path)
    assert kinds(scan) == {"x": Tensor("bfloat16", (3,))}
    assert columns_of(tmp_path)["x"][0].dtype == ml_dtypes.bfloat16


def test_large_tensors_are_read_in_slices(tmp_path: Path) -> None:
    torch.save(torch.zeros(6000, 1000), tmp_path / "a.pt")
    reader, scan = open_scan(TORCH_FILES, tmp_path)
    sizes = [len(item.batch) for item in scan.rows(reader, scan.files) if isinstance(item, RowBatch)]
    assert len(sizes) == 3
    assert sum(sizes) == 6000


class _Harm:
    def __reduce__(self) -> tuple[Any, ...]:
        return MARK.touch, ()


def _compressed(path: Path) -> None:
    file = io.BytesIO()
    torch.save(torch.zeros(1000), file)
    with zipfile.ZipFile(file) as given, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in given.namelist():
            archive.writestr(name, given.read(name))


def _script(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/constants.pkl", b"")
        archive.writestr("a/code/run.py", b"")


def _old(path: Path) -> None:
    torch.save(torch.zeros(3), path, _use_new_zipfile_serialization=False)


BAD: dict[str, tuple[Any, str]] = {
    "code": ({"x": _Harm()}, "refuses it: Unsupported global: GLOBAL .* was not an allowed global"),
    "old": (_old, "since torch 1.6"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps(_Harm())), "since torch 1.6"),
    "compressed": (_compressed, "compressed"),
    "script": (_script, "TorchScript"),
    "cut": (lambda path: path.write_bytes(b"PK\3\4" + bytes(100)), "truncated"),
    "checkpoint": ({"model": {"w": torch.zeros(3)}, "epoch": 1}, "entry 'model' is a dict"),
    "number": (7, "it holds a int"),
    "nothing": ({}, "it holds a dict"),
    "lengths": ({"x": torch.zeros(3), "y": torch.zeros(4)}, "different row counts: x 3, y 4"),
    "scalar": (torch.tensor(1.0), "no axis of rows"),
    "sparse": (torch.eye(3).to_sparse(), "not a dense CPU tensor"),
    "meta": (torch.zeros(3, device="meta"), "not a dense CPU tensor"),
    "half": (lambda path: torch.save(torch.zeros(3, dtype=torch.complex32), path), "which numpy does not support"),
    "endless": (torch.zeros(1).expand(1 << 34), "the limit is"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_unsupported_files_are_rejected(tmp_path: Path, name: str) -> None:
    value, reason = BAD[name]
    if callable(value):
        value(tmp_path / "a.pt")
    else:
        torch.save(value, tmp_path / "a.pt")
    with pytest.raises(InvalidInputError, match=reason) as caught:
        open_scan(TORCH_FILES, tmp_path)
    assert "\n" not in str(caught.value)
    torch.save(torch.zeros(2), tmp_path / "b.pt")
    columns, [reject] = read_columns(TORCH_FILES, tmp_path)
    assert len(columns["data"]) == 2
    assert reject.name == "a.pt"
    assert not MARK.exists()


def test_invalid_row_rejects_only_itself(tmp_path: Path) -> None:
    torch.save([{"x": torch.zeros(2)}, 7, {"x": {1: 2}}, {"x": torch.ones(2)}], tmp_path / "a.pt")
    columns, rejects = read_columns(TORCH_FILES, tmp_path)
    assert [row.tolist() for row in columns["x"]] == [[0, 0], [1, 1]]
    assert [reject.name for reject in rejects] == ["a.pt[1]", "a.pt[2]"]
    assert rejects[1].reason == "'x' is a dict; supported are tensors, strings and numbers"


def test_error_without_torch_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save(torch.zeros(2), tmp_path / "a.pt")
    imported = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "torch":
            raise ImportError(name)
        return imported(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(InvalidInputError, match=r'pip install "penstock\[torch\]"'):
        open_scan(TORCH_FILES, tmp_path)


def test_ingest_into_a_table(tmp_path: Path) -> None:
    numbers = torch.arange(20, dtype=torch.float32).reshape(10, 2)
    torch.save({"x": numbers.to(torch.bfloat16), "y": torch.arange(10)}, tmp_path / "a.pt")
    ds = penstock.create("memory://")
    prepared = prepare(ds._session, open_store(tmp_path), {"torch": TORCH_FILES}, None, IngestOptions())
    assert (
        run(ds._session, prepared, bad_samples=BadSamples(action="raise", limit=0), message="", num_workers=1).rows
        == 10
    )
    assert np.array_equal(ds["x"][:].astype(np.float32), numbers.numpy())
    assert ds["y"][:].tolist() == list(range(10))


def test_ingest_of_lists(tmp_path: Path) -> None:
    rows = [{"x": torch.full((1 + number, 2), float(number)), "name": f"{number}"} for number in range(4)]
    torch.save(rows, tmp_path / "a.pt")
    ds = penstock.create("memory://")
    prepared = prepare(ds._session, open_store(tmp_path), {"torch": TORCH_FILES}, None, IngestOptions())
    assert (
        run(ds._session, prepared, bad_samples=BadSamples(action="raise", limit=0), message="", num_workers=1).rows == 4
    )
    assert ds["name"][:] == ["0", "1", "2", "3"]
    assert [row.shape for row in ds["x"][:]] == [(1, 2), (2, 2), (3, 2), (4, 2)]
