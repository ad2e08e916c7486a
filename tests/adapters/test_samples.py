"""Windows, packed sequences and mixtures of them in every framework."""

from typing import Any

import numpy as np
import pytest

import penstock
from penstock import Image, Shuffle, Tensor

SHUFFLE = Shuffle(block_bytes=20_000, lanes=2)


@pytest.fixture(scope="module")
def views() -> dict[str, Any]:
    made = penstock.create(
        "memory://",
        {
            "episode": "int64",
            "state": "float32[3]",
            "image": Image("png", (8, 8, 3)),
            "tokens": Tensor("int32", (None,)),
        },
    )
    images = np.broadcast_to(np.arange(90, dtype=np.uint8)[:, None, None, None], (90, 8, 8, 3))
    made.append(
        {
            "episode": np.arange(90) // 15,
            "state": np.repeat(np.arange(90, dtype=np.float32)[:, None], 3, axis=1),
            "image": images,
            "tokens": [np.full(1 + n % 7, n, np.int32) for n in range(90)],
        }
    )
    made.commit()
    columns = made.select(["episode", "state", "image"])
    windows = columns.windows(within="episode", offsets={"state": range(4), "image": [-1, 0]}, ends="pad")
    packed = made.pack("tokens", 16, "fit", eos=-1)
    mixed = penstock.mix({"a": windows[:40], "b": windows[40:]}, weights={"a": 1, "b": 2})
    return {"windows": windows, "packed": packed, "mixed": mixed}


@pytest.mark.parametrize("kind", ["windows", "packed", "mixed"])
@pytest.mark.parametrize("framework", ["pytorch", "jax", "tensorflow"])
def test_every_framework_gets_the_same_samples(views: dict[str, Any], kind: str, framework: str) -> None:
    pytest.importorskip({"pytorch": "torch"}.get(framework, framework))
    view = views[kind]
    with view.numpy(batch_size=8, shuffle=SHUFFLE, num_workers=1) as loader:
        expected = list(loader)
    found = getattr(view, framework)(batch_size=8, shuffle=SHUFFLE, num_workers=1)
    count = 0
    for batch, other in zip(expected, found, strict=True):
        assert batch.keys() == other.keys()
        for name, values in batch.items():
            assert np.array_equal(np.asarray(other[name]), values), name
        count += 1
    assert count == -(-len(view) // 8)
