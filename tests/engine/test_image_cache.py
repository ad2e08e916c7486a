"""Decoded images that worker processes share: whole, decoded once, and not lost with a process."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from penstock import Column, Image, Mask, Shuffle, Tensor, Workers
from penstock.codecs import decode_images
from penstock.device import SharedImageCache, SharedMemory
from penstock.engine.assembly import _decode

SHAPE = (16, 16, 3)
SHAPES = {"a": SHAPE, "b": (8, 4, 3)}


def new_cache(size: int) -> Callable[[], SharedImageCache]:
    memory = SharedMemory.create(SharedImageCache.bytes_for(size, SHAPES))
    return lambda: SharedImageCache(memory, 0, size, SHAPES)


def forked(work: Callable[[], None]) -> int:
    """The process of a fork that does some work."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
        os._exit(0)
    finally:
        os._exit(1)


def image(position: int, column: str = "a") -> Any:
    return np.full(SHAPES[column], position % 251, np.uint8)


def test_images_are_whole_whoever_writes_them() -> None:
    """Three processes use more images than there is room for, and one is killed in the middle."""
    new = new_cache(40 * 16 * 16 * 3)

    def work() -> None:
        cache, random = new(), np.random.default_rng(os.getpid())
        for _ in range(1500):
            for column in SHAPES:
                positions = np.unique(random.integers(0, 60, 20)).tolist()
                places = {position: [index, index + 20] for index, position in enumerate(positions)}
                out = np.zeros((40, *SHAPES[column]), np.uint8)
                missing = cache.copy(column, places, out)
                for position in positions:
                    there = position not in missing
                    assert all((out[place] == (position % 251 if there else 0)).all() for place in places[position])
                claimed = cache.claim(column, missing)
                cache.add(column, {position: image(position, column) for position in claimed if position % 7})

    workers = [forked(work) for _ in range(3)]
    os.kill(workers[0], signal.SIGKILL)
    assert [os.waitpid(pid, 0)[1] for pid in workers[1:]] == [0, 0]
    os.waitpid(workers[0], 0)


def test_a_claim_ends_with_its_process() -> None:
    new = new_cache(1 << 20)
    cache, out = new(), np.zeros((1, *SHAPE), np.uint8)
    reading, writing = os.pipe()

    def work() -> None:
        claimed = new().claim("a", [5])
        os.write(writing, bytes(claimed))
        signal.pause()

    other = forked(work)
    assert os.read(reading, 1) == b"\x05"
    assert cache.claim("a", [4, 5]) == [4]
    cache.add("a", {4: image(4)})
    os.kill(other, signal.SIGKILL)
    os.waitpid(other, 0)
    assert cache.copy("a", {5: [0]}, out) == [5], "it was not decoded"
    assert cache.claim("a", [5]) == [5]
    cache.add("a", {5: image(5)})
    assert cache.claim("a", [4, 5]) == []
    assert cache.copy("a", {5: [0]}, out) == []
    assert (out == 5).all()
    for end in (reading, writing):
        os.close(end)


class CountsDecoded:
    """A transform that counts the images that its process decodes, in a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return _counting, (self.path,)

    def __call__(self, sample: Any) -> Any:
        return sample


def _counting(path: Path) -> CountsDecoded:
    def counted(encoded: Any, *rest: Any, **options: Any) -> Any:
        with path.open("ab") as file:
            file.write(b"." * len(encoded))
        return decode_images(encoded, *rest, **options)

    _decode.decode_images = counted  # type: ignore[attr-defined,assignment]
    return CountsDecoded(path)


def test_windows_in_processes_share_what_is_decoded(tmp_path: Path) -> None:
    """Also the image that several builders need at once; 16-bit images are not among them."""
    rows = 1200
    made = penstock.create(
        tmp_path / "t",
        {
            "episode": Tensor("int64"),
            "n": Tensor("int64"),
            "image": Column(Image("jpeg:80", (32, 32, 3)), page_bytes=16 << 10),
            "depth": Mask("png", (4, 4)),
        },
    )
    noise = np.random.default_rng(0).integers(0, 256, (rows, 32, 32, 3), np.uint8)
    depth = [np.full((4, 4), 50 * k, np.uint16) for k in range(rows)]
    made.append({"episode": np.arange(rows) // 100, "n": np.arange(rows), "image": noise, "depth": depth})
    made.commit()
    times = [-3, -2, -1, 0]
    view = made.windows(within="episode", offsets={"image": times, "depth": times, "n": times})
    order: dict[str, Any] = {"batch_size": 16, "shuffle": Shuffle(block_bytes=64 << 10, lanes=4, spread=4)}
    with view.numpy(num_workers=0, **order) as loader:
        expected = [(batch["n"], batch["image"]) for batch in loader]
    decoded = tmp_path / "decoded"
    with view.numpy(num_workers=Workers(4, "process"), transform=CountsDecoded(decoded), **order) as loader:
        for batch, (n, images) in zip(loader, expected, strict=True):
            assert np.array_equal(batch["n"], n)
            assert np.array_equal(batch["image"], images)
            assert np.array_equal(batch["depth"][..., 0, 0], 50 * n)
    masks = 4 * len(view)
    assert len(decoded.read_bytes()) - masks <= 1.6 * rows, "each is in four windows"
