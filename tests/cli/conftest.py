"""A table with a column of every kind, and a fixture that runs a command in this process."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

import penstock
from penstock.cli import main


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


RunCommand = Callable[..., Result]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> RunCommand:
    def run_command(*words: object) -> Result:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return Result(code, out, err)

    return run_command


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Three versions, three rows; the last commit deleted the fourth."""
    image = tmp_path / "source" / "image.png"
    image.parent.mkdir()
    PIL.Image.fromarray(np.full((4, 6, 3), 9, np.uint8)).save(image)
    columns = {
        "image": penstock.Image("jpeg:90"),
        "frame": penstock.Column(penstock.Tensor("uint8", (8, 8, 3)), codec="zstd"),
        "label": penstock.Label(("cat", "dog")),
        "caption": penstock.Column(penstock.Text(), nullable=True),
        "meta": penstock.Json(),
        "vector": penstock.Embedding(512),
        "boxes": penstock.Boxes(),
        "score": penstock.Tensor("float32"),
        "raw": penstock.Bytes(),
        "when": penstock.Tensor("datetime64[us]"),
        "photo": penstock.Linked(penstock.Image()),
        "tags": penstock.List(penstock.Text()),
        "pose": penstock.Struct({"xyz": penstock.Tensor("float32", (3,)), "ok": penstock.Tensor("bool")}),
        "small": penstock.Tensor("bfloat16", (9,)),
        "wave": penstock.Tensor("complex64", (2,)),
    }
    dataset = penstock.create(tmp_path / "table", columns, links=True, message="created")
    dataset.append([_row(index, image) for index in range(4)])
    dataset.commit("four \x1b[31m rows")
    dataset.delete(positions=[3])
    dataset.commit()
    return tmp_path / "table"


def _row(index: int, image: Path) -> dict[str, Any]:
    return {
        "image": np.full((10 + index, 20, 3), 7, np.uint8),
        "frame": np.arange(192, dtype=np.uint8).reshape(8, 8, 3),
        "label": index % 2,
        "caption": None if index == 1 else "a long\x1b[31m text\n" * 1000,
        "meta": {"number": index, "deep": [1, {"x": None}]},
        "vector": np.linspace(-1, 2, 512, dtype=np.float32),
        "boxes": np.ones((index, 4), np.float32),
        "score": float("nan") if index == 0 else index / 3,
        "raw": bytes(2_000_000),
        "when": np.datetime64("2024-05-06T07:08:09", "us"),
        "photo": penstock.Link(str(image)),
        "tags": ["x"] * index,
        "pose": {"xyz": [1, 2, 3], "ok": True},
        "small": np.arange(9, dtype=np.float32),
        "wave": np.array([1 + 2j, 0], np.complex64),
    }
