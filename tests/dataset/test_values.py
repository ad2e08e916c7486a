"""Values and positions as users pass them: tensors of torch, numpy scalars, wrong names."""

import subprocess
import sys
from importlib.metadata import version
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pytest
import torch

import penstock
from penstock.errors import InvalidInputError

SCHEMA = {
    "x": "float32[3]",
    "y": "int64",
    "kind": "label=a,b",
    "image": "image",
    "ragged": "float32[?]",
    "b": "bfloat16[2]",
}


def tensors(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "x": torch.rand(3, generator=generator, requires_grad=True),
        "y": torch.tensor(seed),
        "kind": torch.tensor(seed % 2),
        "image": torch.randint(0, 255, (4, 5, 3), dtype=torch.uint8, generator=generator),
        "ragged": torch.rand(seed, generator=generator),
        "b": torch.rand(2, generator=generator).to(torch.bfloat16),
    }


def check(ds: penstock.Dataset, rows: list[dict[str, torch.Tensor]]) -> None:
    for found, given in zip(ds, rows, strict=True):
        for name, value in given.items():
            assert np.array_equal(np.asarray(found[name], np.float64), value.detach().to(torch.float64).numpy()), name


def test_tensors_are_values_of_rows() -> None:
    rows = [tensors(seed) for seed in range(3)]
    ds = penstock.create("memory://", SCHEMA)
    ds.append(rows)
    check(ds, rows)
    ds.update(positions=0, data={"image": rows[1]["image"], "x": rows[1]["x"]})
    check(ds, [rows[0] | {"image": rows[1]["image"], "x": rows[1]["x"]}, *rows[1:]])


def test_tensors_are_columns() -> None:
    rows = [tensors(seed) for seed in range(3)]
    ds = penstock.create("memory://", SCHEMA)
    stacked = {name: torch.stack([row[name] for row in rows]) for name in SCHEMA if name != "ragged"}
    ds.append({**stacked, "ragged": [row["ragged"] for row in rows]})
    check(ds, rows)


def test_kinds_are_inferred_from_tensors() -> None:
    ds = penstock.create("memory://")
    ds.append([tensors(seed) for seed in (1, 2)])
    kinds = "x: float32[3]\ny: int64\nkind: int64\nimage: uint8[4, 5, 3]\nragged: float32[?]\nb: bfloat16[2]"
    assert str(ds.schema) == kinds


def test_channels_that_come_first_are_named_in_the_error() -> None:
    ds = penstock.create("memory://", {"image": "image"})
    with pytest.raises(InvalidInputError, match=r"channels come last: transpose it by \(1, 2, 0\)"):
        ds.append([{"image": torch.zeros(3, 8, 9, dtype=torch.uint8)}])


@pytest.mark.parametrize("key", [1, np.int32(1), np.array(1), torch.tensor(1), torch.tensor(1, dtype=torch.uint8)])
def test_one_integer_of_any_library_is_a_row(key: Any) -> None:
    ds = penstock.create("memory://", {"x": "int64"})
    ds.append({"x": [10, 11, 12]})
    assert ds[key] == {"x": 11}
    assert ds["x"][key] == 11
    assert np.ndim(ds["x"][key]) == 0
    assert len(ds[torch.tensor([1])]) == len(ds[np.array([1])]) == 1


def test_an_unknown_column_in_an_expression_lists_the_columns() -> None:
    ds = penstock.create("memory://", {"reward": "float32", "step": "int64"})
    ds.append({"reward": [1.0], "step": [1]})
    ds.commit()
    for use in (lambda: ds[pc.field("rewrad") > 1], lambda: ds.delete(pc.field("rewrad") > 1)):
        with pytest.raises(InvalidInputError, match=r"there is no column 'rewrad'; the table has reward, step"):
            use()


def test_the_version_is_that_of_the_package() -> None:
    assert penstock.__version__ == version("penstock")


_WITHOUT_EXTRAS = """
import sys, tempfile
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in ("torch", "tensorflow", "jax", "av", "soundfile", "boto3"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
import penstock
from penstock.codecs import decode_audio, decode_video
folder = tempfile.mkdtemp()
open(f"{folder}/a.pt", "wb").write(b"PK")
ds = penstock.create("memory://", {"x": "int64"})
for extra, use in {
    "torch": ds.pytorch, "tensorflow": ds.tensorflow, "jax": ds.jax,
    "audio": lambda: decode_audio(b"RIFF0000WAVE"), "video": lambda: list(decode_video(b"0000ftypmp42")),
    "torch]": lambda: penstock.ingest(folder, "memory://t"),
    "aws": lambda: penstock.load("s3://b/t", storage_options={"profile": "p"}),
}.items():
    try:
        use()
    except penstock.errors.InvalidInputError as error:
        assert f"penstock[{extra}" in str(error), error
    else:
        raise AssertionError(extra)
"""


def test_a_missing_extra_is_named() -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT_EXTRAS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
