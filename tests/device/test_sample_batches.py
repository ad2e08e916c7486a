"""Windows, packed sequences and mixtures on a device equal those on the host, sample for sample."""

from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock import Column, Image, Shuffle, Tensor, Workers

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
SHUFFLE = Shuffle(block_bytes=200_000, lanes=4, spread=2.0)
JPEG_TOLERANCE = 4
"""The largest difference of a pixel between two decoders."""


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    schema = {
        "episode": "int64",
        "step": "int64",
        "state": Column(Tensor("float32", (2048,)), page_bytes=64 << 10),
        "image": Image("jpeg:90", (32, 48, 3)),
        "tokens": Tensor("int32", (None,)),
    }
    made = penstock.create(tmp_path_factory.mktemp("device") / "samples", schema)
    rng = np.random.default_rng(0)
    shades = np.linspace(0, 255, 48).astype(np.uint8)
    images = (
        np.broadcast_to(shades[:, None], (600, 32, 48, 3)) // 2
        + (np.arange(600) % 100).astype(np.uint8)[:, None, None, None]
    )
    made.append(
        {
            "episode": np.arange(600) // 30,
            "step": np.arange(600) % 30,
            "state": np.repeat(np.arange(600, dtype=np.float32)[:, None], 2048, axis=1),
            "image": images.astype(np.uint8),
            "tokens": [np.full(rng.integers(1, 200), n, np.int32) for n in range(600)],
        }
    )
    made.commit()
    offsets = {"state": [-1, 0], "image": [0, 2]}
    windows = made.select(["episode", "step", "state", "image"]).windows(
        within="episode", order_by="step", offsets=offsets, ends="pad"
    )
    packed = made.pack("tokens", 256, "fit", eos=-1)
    mixture = penstock.mix({"a": windows[:300], "b": windows[300:]}, weights={"a": 2, "b": 1})
    return {"windows": windows, "packed": packed, "mixture": mixture}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("workers", [2, Workers(4, "process")], ids=["threads", "processes"])
@pytest.mark.parametrize("kind", ["windows", "packed", "mixture"])
def test_batches_on_a_device_equal_those_on_the_host(
    views: dict[str, Any], kind: str, workers: Any, device: str
) -> None:
    options: dict[str, Any] = {"batch_size": 32, "shuffle": SHUFFLE}
    with (
        views[kind].pytorch(**options, num_workers=2) as host,
        views[kind].pytorch(**options, num_workers=workers, device=device) as there,
    ):
        for expected, found in zip(host, there, strict=True):
            assert expected.keys() == found.keys()
            for name, values in expected.items():
                assert found[name].device.type == device
                difference = (found[name].cpu().float() - values.float()).abs().max()
                assert difference <= (JPEG_TOLERANCE if name == "image" else 0), name
