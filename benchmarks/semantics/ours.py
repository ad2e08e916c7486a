"""Measurements of our loader, always through `pytorch`; each runs in a process of its own."""

import statistics
import time
from itertools import islice
from typing import Any

import numpy as np

import penstock
from benchmarks.loader.job import answer
from benchmarks.loader.workloads import Workload
from benchmarks.semantics.data import SEQUENCE
from benchmarks.semantics.views import ONE, Spec, open_loader, open_view
from penstock.codecs import decode_images
from penstock.engine.assembly import _decode

_QUIET_S = 0.5
"""Nothing is prefetched any more if the number of bytes has not changed for so long."""


def throughput(spec: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Samples a second of the first epoch, after its first batch, and of whole later epochs for so many seconds."""
    wanted = Spec(**spec)
    view = open_view(wanted)
    with open_loader(wanted, view) as loader:
        first, start = None, time.perf_counter()
        samples = skipped = 0
        for batch in loader:
            samples += _samples(batch)
            if first is None:
                first, skipped = time.perf_counter(), samples
        assert first is not None and samples > skipped, "an epoch has at least two batches"
        end = time.perf_counter()
        later = 0
        while time.perf_counter() - end < seconds:
            later += sum(map(_samples, loader))
        return {
            "samples": samples,
            "first_batch_s": first - start,
            "first_epoch": (samples - skipped) / (end - first),
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


def window_cost(spec: dict[str, Any], epochs: int) -> dict[str, Any]:
    """Images decoded and bytes fetched by whole epochs, relative to the images and the bytes of the table.

    The loader prefetches some of the epoch that follows, which is counted too.
    """
    decoded: list[int] = []

    def counted(encoded: Any, *rest: Any, **options: Any) -> Any:
        decoded.append(len(encoded))
        return decode_images(encoded, *rest, **options)

    _decode.decode_images = counted  # type: ignore[attr-defined]
    wanted = Spec(**spec)
    table = wanted.tables()[ONE]
    images, table_bytes = len(table), table.summary().bytes
    with open_loader(wanted, open_view(wanted)) as loader:
        for _ in range(epochs):
            samples = sum(map(_samples, loader))
        fetched = _settled_bytes(loader)
    return {
        "samples": samples,
        "decoded_per_image": sum(decoded) / (epochs * images),
        "bytes_per_byte": fetched / (epochs * table_bytes),
    }


def weight_cost(spec: dict[str, Any]) -> dict[str, Any]:
    """Bytes that one weighted epoch fetches, relative to those of all draws and of the different rows among them."""
    wanted = Spec(**spec)
    row_bytes = Workload("images", 1).row_bytes
    with open_loader(wanted, open_view(wanted)) as loader:
        drawn = np.concatenate([batch["_row_id"].numpy() for batch in loader])
        fetched = _settled_bytes(loader)
    return {
        "draws": len(drawn),
        "bytes_per_drawn": fetched / (len(drawn) * row_bytes),
        "bytes_per_different": fetched / (len(np.unique(drawn)) * row_bytes),
    }


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


def _samples(batch: dict[str, Any]) -> int:
    return len(next(iter(batch.values())))


def _settled_bytes(loader: penstock.Loader) -> int:
    """Bytes fetched, once nothing more is prefetched."""
    before, found = -1, loader.stats().bytes
    while before != found:
        time.sleep(_QUIET_S)
        before, found = found, loader.stats().bytes
    return found


if __name__ == "__main__":
    answer(throughput, fill, window_cost, weight_cost, half, first_batches)
