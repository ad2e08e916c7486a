"""Flip one bit in each of 1,000 places, over all kinds of objects: how many are noticed and named?"""

import random
from collections import Counter
from pathlib import Path

import numpy as np

import penstock
from benchmarks.report import publish, scratch

FLIPS = 1_000


def make(place: Path) -> None:
    """A table with every kind of object in it."""
    ds = penstock.create(
        place,
        {
            "image": penstock.Tensor("uint8", (32, 32, 3)),
            "text": penstock.Column(penstock.Text(), codec="zstd"),
            "clip": penstock.Column(penstock.Video(), nullable=True),
        },
    )
    rng = np.random.default_rng(0)
    for step in range(40):
        ds.append(
            {
                "image": rng.integers(0, 256, (20, 32, 32, 3), dtype=np.uint8),
                "text": [f"row {n} of {step}" for n in range(20)],
                "clip": [rng.bytes(17 << 20) if step == 0 and n == 0 else None for n in range(20)],
            }
        )
        if step % 4 == 0:
            ds.commit(f"step {step}")
    ds.update(positions=[3], data={"text": "other"})
    ds.delete(positions=[5])
    ds.commit("changed")


def main() -> None:
    chance = random.Random(0)
    named: Counter[str] = Counter()
    tried: Counter[str] = Counter()
    with scratch() as folder:
        place = folder / "table"
        make(place)
        assert not penstock.verify(place).damaged
        kinds: dict[str, list[Path]] = {}
        for path in sorted(path for path in place.rglob("*") if path.is_file()):
            kind = "HINT" if path.name == "HINT" else path.relative_to(place).parts[0]
            kinds.setdefault(kind, []).append(path)
        for number in range(FLIPS):
            kind = sorted(kinds)[number % len(kinds)]
            path = chance.choice(kinds[kind])
            before = path.read_bytes()
            place_in_file, bit = chance.randrange(len(before)), chance.randrange(8)
            with open(path, "r+b") as file:
                file.seek(place_in_file)
                file.write(bytes([before[place_in_file] ^ (1 << bit)]))
            tried[kind] += 1
            named[kind] += any(str(path) in sentence for sentence in penstock.verify(place).damaged)
            with open(path, "r+b") as file:
                file.seek(place_in_file)
                file.write(before[place_in_file : place_in_file + 1])
        assert not penstock.verify(place).damaged
    figures = [{"objects": kind, "flipped": tried[kind], "noticed and named": named[kind]} for kind in sorted(tried)]
    publish("bitflips", figures, note=f"{sum(named.values())} of {sum(tried.values())} flipped bits noticed and named")
