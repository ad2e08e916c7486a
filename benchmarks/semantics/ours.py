"""Measurements of our loader, always through `pytorch`; each runs in a process of its own."""

import statistics
import time
from itertools import islice
from typing import Any

from benchmarks.loader.job import answer
from benchmarks.semantics.data import SEQUENCE
from benchmarks.semantics.views import Spec, open_loader, open_view


def throughput(spec: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Samples a second of the first epoch, without its first quarter, and of whole later epochs for so many seconds.

    When the first batch arrives others are ready, which would count as if they had taken no time; they are gone after
    a quarter.
    """
    wanted = Spec(**spec)
    with open_loader(wanted, open_view(wanted)) as loader:
        start = time.perf_counter()
        batches = iter(loader)
        skipped = count_samples(next(batches))
        first_batch_s = time.perf_counter() - start
        skipped += sum(map(count_samples, islice(batches, len(loader) // 4)))
        began = time.perf_counter()
        counted = sum(map(count_samples, batches))
        end = time.perf_counter()
        later = 0
        while time.perf_counter() - end < seconds:
            later += sum(map(count_samples, loader))
        return {
            "samples": skipped + counted,
            "first_batch_s": first_batch_s,
            "first_epoch": counted / (end - began),
            "later_epochs": later / (time.perf_counter() - end),
            "stats": str(loader.stats()).splitlines(),
        }


def fill(spec: dict[str, Any]) -> dict[str, Any]:
    """Packed sequences, and the share of their places that hold tokens."""
    wanted = Spec(**spec)
    view = open_view(wanted)
    with open_loader(wanted, view) as loader:
        tokens = sum(int((batch["segment_ids"] > 0).sum()) for batch in loader)
    return {"sequences": len(view), "tokens": tokens, "fill": tokens / (len(view) * SEQUENCE)}


def half(spec: dict[str, Any]) -> dict[str, Any]:
    """The state in the middle of an epoch."""
    wanted = Spec(**spec)
    with open_loader(wanted, open_view(wanted)) as loader:
        for _ in islice(loader, len(loader) // 2):
            pass
        return {"state": loader.state_dict()}


def first_batches(spec: dict[str, Any], state: dict[str, Any], rounds: int) -> dict[str, Any]:
    """Seconds from a new loader to its first batch, fresh and resumed in turns; the view is open already."""
    wanted = Spec(**spec)
    view = open_view(wanted)
    _first_batch_s(wanted, view, None)  # imports, connections and manifests, which all further loaders share
    turns = [(_first_batch_s(wanted, view, None), _first_batch_s(wanted, view, state)) for _ in range(rounds)]
    return {
        "fresh_s": statistics.median(fresh for fresh, _ in turns),
        "resumed_s": statistics.median(resumed for _, resumed in turns),
        "ratio": statistics.median(resumed / fresh for fresh, resumed in turns),
        "turns": turns,
    }


def _first_batch_s(spec: Spec, view: Any, state: dict[str, Any] | None) -> float:
    start = time.perf_counter()
    with open_loader(spec, view) as loader:
        if state is not None:
            loader.load_state_dict(state)
        next(iter(loader))
        return time.perf_counter() - start


def count_samples(batch: dict[str, Any]) -> int:
    return len(next(iter(batch.values())))


if __name__ == "__main__":
    answer(throughput, fill, half, first_batches)
