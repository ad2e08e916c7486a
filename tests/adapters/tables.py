"""A table with columns of many kinds, small enough to be read by every framework; nothing here imports one."""

from collections.abc import Iterable
from typing import Any

import numpy as np

import penstock
from penstock import Column, Dataset, Shuffle, Tensor

ROWS = 150
MIXED: dict[str, Any] = {"shuffle": Shuffle(block_bytes=512)}


def mixed_table(place: str = "memory://") -> Dataset:
    """Every column is a function of the row's number, `n`."""
    ds = penstock.create(
        place,
        {
            "n": Column(Tensor("int64"), page_bytes=128),
            "x": Tensor("float32", (3,)),
            "half": Tensor("bfloat16", (2,)),
            "flag": Tensor("bool"),
            "when": Tensor("datetime64[s]"),
            "tokens": Tensor("int32", (None,)),
            "path": Tensor("float32", (None, 2)),
            "grid": Tensor("uint8", (None, None)),
            "text": "text",
            "extra": "json",
            "maybe": Column(Tensor("int64"), nullable=True),
        },
    )
    ds.append({name: [row(n)[name] for n in range(ROWS)] for name in row(0)})
    ds.commit()
    return ds


def row(n: int) -> dict[str, Any]:
    """What is in a row."""
    return {
        "n": n,
        "x": np.full(3, n, np.float32),
        "half": np.full(2, n % 8, np.float32),
        "flag": n % 2 == 0,
        "when": np.datetime64(n, "s"),
        "tokens": np.arange(n % 5, dtype=np.int32),
        "path": np.full((n % 4, 2), n, np.float32),
        "grid": np.full((n % 3, 1 + n % 2), n % 256, np.uint8),
        "text": f"row {n}",
        "extra": {"n": n},
        "maybe": None if n % 3 == 0 else n,
    }


def numbers(batches: Iterable[Any]) -> list[int]:
    """The rows of some batches, in their order."""
    return [n for batch in batches for n in np.asarray(batch["n"]).tolist()]


def drawn(sample: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """A transform of numpy samples, for this process and others."""
    assert isinstance(sample["x"], np.ndarray)
    return {"n": sample["n"], "draw": generator.random(3), "tokens": sample["tokens"], "name": sample["text"]}
