"""Small runs that are interrupted at half an epoch and go on with another number of ranks: every sample once."""

import tempfile
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import penstock
from benchmarks.loader.job import answer

RANKS = (1, 2, 3, 4, 8)
_ROWS, _BATCH_SIZE, _STEPS, _SEQUENCE = 960, 8, 24, 64
_WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}
Seen = Counter[tuple[int, ...]]


def check() -> dict[str, Any]:
    """For each kind of view, samples that came twice or not at all over every pair of numbers of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        views = _views(Path(folder))
        return {"ranks": ", ".join(map(str, RANKS)), "wrong": {kind: _wrong(kind, views[kind]) for kind in views}}


def _views(folder: Path) -> dict[str, Any]:
    rows = np.arange(_ROWS)
    ds = penstock.create(folder / "rows", {"n": "int64", "episode": "int64"})
    ds.append({"n": rows, "episode": rows // _STEPS})
    ds.commit()
    lengths = np.random.default_rng(0).integers(1, 60, _ROWS)
    bounds = np.cumsum(lengths)
    corpus = penstock.create(folder / "documents", {"tokens": penstock.Tensor("int32", (None,))})
    corpus.append({"tokens": np.split(np.arange(bounds[-1], dtype=np.int32), bounds[:-1])})
    corpus.commit()
    thirds = {"a": ds[: _ROWS // 2], "b": ds[_ROWS // 2 : _ROWS * 4 // 5], "c": ds[_ROWS * 4 // 5 :]}
    return {
        "mixture": penstock.mix(thirds, weights=_WEIGHTS),
        "windows": ds.windows(within="episode", offsets={"episode": range(-1, 3)}, ends="pad"),
        "packed concat": corpus.pack("tokens", _SEQUENCE),
        "packed fit": corpus.pack("tokens", _SEQUENCE, "fit"),
        "weighted": ds,
    }


def _wrong(kind: str, view: Any) -> int:
    """Differences from an epoch that one rank reads without a pause, over all pairs of numbers of ranks."""
    whole, _ = _run(kind, view, 1, None, None)
    if whole.total() != len(view) or (kind != "weighted" and max(whole.values()) > 1):
        raise RuntimeError(f"an epoch of {kind} that is read without a pause is not every sample once")
    wrong = 0
    for before in RANKS:
        steps = len(_loader(kind, view, 0, before)) // 2
        seen, state = _run(kind, view, before, steps, None)
        for after in RANKS:
            rest, _ = _run(kind, view, after, None, state)
            both = seen + rest
            wrong += (both - whole).total() + (whole - both).total()
    return wrong


def _run(kind: str, view: Any, ranks: int, steps: int | None, state: Any) -> tuple[Seen, Any]:
    """What all ranks read in so many steps from a state, and the state behind it."""
    seen: Seen = Counter()
    found = None
    for rank in range(ranks):
        with _loader(kind, view, rank, ranks) as loader:
            if state is not None:
                loader.load_state_dict(state)
            for batch in islice(loader, steps):
                seen.update(_samples(batch))
            found = loader.state_dict()
    return seen, found


def _loader(kind: str, view: Any, rank: int, ranks: int) -> Any:
    view = view.weighted(np.arange(1.0, _ROWS + 1)) if kind == "weighted" else view
    return view.numpy(
        batch_size=_BATCH_SIZE, shuffle=penstock.Shuffle(seed=1), num_workers=1, distributed=(rank, ranks)
    )


def _samples(batch: dict[str, Any]) -> Iterator[tuple[int, ...]]:
    """What identifies each sample that is no padding: its row, or all its tokens."""
    values = batch["tokens"] if "tokens" in batch else batch["n"]
    real = ~np.asarray(batch.get("_pad", np.zeros(len(values), bool)))
    for index in np.flatnonzero(real):
        yield tuple(np.atleast_1d(values[index]).tolist())


if __name__ == "__main__":
    answer(check)
