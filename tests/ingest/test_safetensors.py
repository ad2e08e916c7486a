"""safetensors files: tensors are columns, and headers are validated."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

import penstock
from penstock.engine import BadSamples
from penstock.errors import InvalidInputError
from penstock.format.kinds import Tensor
from penstock.ingest import IngestOptions, RowBatch, prepare, run
from penstock.ingest.sources._safetensors import SAFETENSORS
from penstock.storage import open_store
from penstock.testing import SourceTests
from tests.ingest.arrays import kinds, open_scan, read_columns, same

RNG = np.random.default_rng(0)


class TestSafetensors(SourceTests):
    source = SAFETENSORS
    expected = 9

    def make(self, folder: Path) -> None:
        for shard, rows in enumerate((4, 5)):
            tensors: dict[str, npt.NDArray[Any]] = {"x": RNG.random((rows, 3), np.float32), "y": np.arange(rows)}
            save_file(tensors, folder / f"part-{shard}.safetensors", metadata={"by": "us"})


TYPES = {
    torch.float64: "float64", torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16",
    torch.int64: "int64", torch.int32: "int32", torch.int16: "int16", torch.int8: "int8", torch.uint8: "uint8",
    torch.uint16: "uint16", torch.uint32: "uint32", torch.uint64: "uint64", torch.bool: "bool",
    torch.float8_e4m3fn: "float8_e4m3fn", torch.float8_e5m2: "float8_e5m2",
    torch.float8_e4m3fnuz: "float8_e4m3fnuz", torch.float8_e5m2fnuz: "float8_e5m2fnuz",
    torch.complex64: "complex64",
}  # fmt: skip


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_roundtrip_of_every_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.tensor([[0, 1, 1], [1, 0, 1]], dtype=torch.float32).to(dtype)
    save_torch({"x": tensor}, tmp_path / "a.safetensors")
    _, scan = open_scan(SAFETENSORS, tmp_path)
    assert kinds(scan) == {"x": Tensor(TYPES[dtype], (3,))}
    columns, rejects = read_columns(SAFETENSORS, tmp_path)
    assert not rejects
    size = tensor.element_size()
    numbers = np.frombuffer(bytes(tensor.contiguous().flatten().view(torch.uint8).tolist()), f"V{size}").reshape(2, 3)
    assert np.stack(columns["x"]).tobytes() == numbers.tobytes()


@settings(deadline=None)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.lists(st.integers(1, 4), max_size=3))
def test_shards_are_read_in_order(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], shape: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    whole = RNG.random((sum(lengths), *shape)).astype(ml_dtypes.bfloat16)
    ends = np.cumsum(lengths)
    for number, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        part = whole[end - length : end]
        save_torch(
            {"x": torch.from_numpy(part.view(np.int16).copy()).view(torch.bfloat16)},
            folder / f"{number}.safetensors",
        )
    columns, rejects = read_columns(SAFETENSORS, folder)
    assert not rejects
    assert same(columns["x"], whole)


def test_large_tensors_are_read_in_slices(tmp_path: Path) -> None:
    array = np.arange(6_000_000, dtype=np.float32).reshape(-1, 1000)
    save_file({"x": array, "y": np.arange(6000)}, tmp_path / "a.safetensors")
    reader, scan = open_scan(SAFETENSORS, tmp_path)
    sizes = [len(item.batch) for item in scan.rows(reader, scan.files) if isinstance(item, RowBatch)]
    assert len(sizes) == 3
    columns, _ = read_columns(SAFETENSORS, tmp_path)
    assert same(columns["x"], array)
    assert same(columns["y"], np.arange(6000))


def test_tensors_of_different_length_are_skipped(tmp_path: Path) -> None:
    save_file(
        {"x": np.zeros((5, 2)), "y": np.zeros(5), "mean": np.zeros(3), "step": np.array(1)}, tmp_path / "a.safetensors"
    )
    columns, rejects = read_columns(SAFETENSORS, tmp_path)
    assert {name: len(rows) for name, rows in columns.items()} == {"x": 5, "y": 5}
    assert {reject.name: reject.reason for reject in rejects} == {
        "a.safetensors/mean": "this tensor is skipped: it has 3 rows, and the columns have 5",
        "a.safetensors/step": "this tensor is skipped: it is a scalar and has no axis of rows",
    }


def test_longest_length_wins_a_tie(tmp_path: Path) -> None:
    save_file({"x": np.zeros((5, 2)), "mean": np.zeros(2)}, tmp_path / "a.safetensors")
    columns, [reject] = read_columns(SAFETENSORS, tmp_path)
    assert set(columns) == {"x"}
    assert reject.name == "a.safetensors/mean"


def test_missing_column_rejects_the_shard_and_extra_columns_are_skipped(tmp_path: Path) -> None:
    for number in range(3):
        save_file({"x": np.zeros(2), "y": np.zeros(2)}, tmp_path / f"{number}.safetensors")
    save_file({"x": np.zeros(2)}, tmp_path / "3.safetensors")
    save_file({"x": np.zeros(2), "y": np.zeros(2), "z": np.zeros(2)}, tmp_path / "4.safetensors")
    columns, rejects = read_columns(SAFETENSORS, tmp_path)
    assert len(columns["x"]) == len(columns["y"]) == 8
    assert {reject.name: reject.reason for reject in rejects} == {
        "3.safetensors": "its arrays are x, and the columns are x, y",
        "4.safetensors/z": "this tensor is skipped: the other files have no tensor of this name",
    }


def crafted(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def tensor(begin: Any, end: Any, shape: Any = (2,), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"abc", "too short"),
        (crafted({}, length=1 << 60), "truncated"),
        (crafted({}, length=3), "truncated|not JSON"),
        (crafted(b"{"), "not JSON"),
        (crafted(b"[" * 20_000), "not JSON"),
        (crafted(b'{"x": 1, "x": 2}'), "a duplicate name"),
        (crafted([1]), "not a JSON object"),
        (crafted({}), "no tensor"),
        (crafted({"x": 1}), "outside the file"),
        (crafted({"x": tensor(0, 8)}, b"\0" * 4), "outside the file"),
        (crafted({"x": tensor(-8, 0)}, b"\0" * 8), "outside the file"),
        (crafted({"x": tensor(8, 0)}, b"\0" * 8), "outside the file"),
        (crafted({"x": tensor(0, True)}, b"\0" * 8), "outside the file"),
        (crafted({"x": tensor(0, 8, (3,))}, b"\0" * 8), "its shape needs"),
        (crafted({"x": tensor(0, 8, (-2,))}, b"\0" * 8), "not a valid shape"),
        (crafted({"x": tensor(0, 8, "2")}, b"\0" * 8), "not a valid shape"),
        (crafted({"x": tensor(0, 8, (1,) * 99)}, b"\0" * 8), "not a valid shape"),
        (crafted({"x": tensor(0, 8, (2,), "F4")}, b"\0" * 8), "is not supported"),
        (crafted({"x": tensor(0, 8, (2,), ["F4"])}, b"\0" * 8), "is not supported"),
        (crafted({"x": tensor(0, 0, (10**12, 0))}), "empty rows"),
        (crafted({"x": tensor(0, 8), "y": tensor(4, 12)}, b"\0" * 12), "overlaps"),
        (crafted({"_x": tensor(0, 8)}, b"\0" * 8), "reserved"),
    ],
    ids=range(22),
)
def test_invalid_header_is_rejected(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "a.safetensors").write_bytes(content)
    with pytest.raises(InvalidInputError, match=reason):
        open_scan(SAFETENSORS, tmp_path)
    save_file({"x": np.zeros(2)}, tmp_path / "b.safetensors")
    save_file({"x": np.zeros(2)}, tmp_path / "c.safetensors")
    columns, rejects = read_columns(SAFETENSORS, tmp_path)
    assert len(columns["x"]) == 4
    assert rejects[0].name.startswith("a.safetensors")


def test_ingest_into_a_table(tmp_path: Path) -> None:
    numbers = torch.arange(20, dtype=torch.float32).reshape(10, 2)
    save_torch({"x": numbers.to(torch.bfloat16), "on": numbers[:, 0] > 5}, tmp_path / "a.safetensors")
    ds = penstock.create("memory://")
    prepared = prepare(ds._session, open_store(tmp_path), {"safetensors": SAFETENSORS}, None, IngestOptions())
    assert (
        run(ds._session, prepared, bad_samples=BadSamples(action="raise", limit=0), message="", num_workers=1).rows
        == 10
    )
    assert ds["x"][:].dtype == ml_dtypes.bfloat16
    assert np.array_equal(ds["x"][:].astype(np.float32), numbers.numpy())
    assert ds["on"][:].tolist() == (numbers[:, 0] > 5).tolist()
