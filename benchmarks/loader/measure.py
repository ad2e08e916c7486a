"""How fast any loader is and how well it shuffles, measured in the same way for all."""

import itertools
import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.loader.workloads import CLASSES, Workload

JUDGED_BATCHES = 64
WARM_S = 2.0


@dataclass(frozen=True)
class Rate:
    """What a loader delivered."""

    rows_per_s: float
    """After the first batches; pauses between epochs count."""
    first_batch_s: float
    epochs: float


def rate(loader: Iterable[Mapping[str, Any]], workload: Workload, *, seconds: float, skip: int = 1) -> Rate:
    """Take batches, epoch after epoch, for so many seconds after those of the first `WARM_S` and the first `skip` ones.

    At first windows and buffers fill up: a loader that delivers early would be charged for it, and others not.
    """
    start = time.perf_counter()
    first = began = math.inf
    rows = skipped = 0
    for number, batch in enumerate(itertools.chain.from_iterable(itertools.repeat(loader))):
        now = time.perf_counter()
        rows += _check(batch, workload)
        if number == 0:
            first = now
        if began == math.inf and number >= skip - 1 and now - first >= WARM_S:
            began, skipped = now, rows
        if now - began >= seconds:
            break
    return Rate((rows - skipped) / (now - began), first - start, rows / workload.rows)


def _check(batch: Mapping[str, Any], workload: Workload) -> int:
    """The rows of a batch that is what it should be."""
    values = batch[workload.column]
    if tuple(values.shape[1:]) != workload.shape or str(values.dtype).removeprefix("torch.") != workload.dtype:
        raise RuntimeError(f"a batch of {workload.name} has shape {tuple(values.shape)} and type {values.dtype}")
    if workload.has_label and len(batch["label"]) != len(values):
        raise RuntimeError("a batch has fewer labels than images")
    return len(values)


def entropy_share(
    loader: Iterable[Mapping[str, Any]], workload: Workload, *, batches: int | None = JUDGED_BATCHES
) -> float:
    """Label entropy of batches, on a table sorted by label, as a share of a true shuffle's.

    Where only some batches are taken, the first quarter is left out: shuffle buffers fill up there.
    """
    found = [_classes(batch, workload) for batch in itertools.islice(loader, batches)]
    skipped = len(found) // 4 if batches is not None else 0
    full = [classes for classes in found[skipped:] if len(classes) == workload.batch_size]
    everything = workload.labels(np.random.default_rng(0).permutation(workload.rows))
    shuffled = everything[: workload.rows // workload.batch_size * workload.batch_size]
    return _entropy(np.stack(full)) / _entropy(shuffled.reshape(-1, workload.batch_size))


def _classes(batch: Mapping[str, Any], workload: Workload) -> npt.NDArray[np.int64]:
    if workload.has_label:
        return np.asarray(batch["label"]).reshape(-1)
    return workload.labels(workload.row_numbers(np.asarray(batch[workload.column])))


def _entropy(batches: npt.NDArray[np.int64]) -> float:
    """The mean entropy of the rows of a matrix of labels, in bits."""
    shares = np.stack([np.bincount(batch, minlength=CLASSES) for batch in batches]) / batches.shape[1]
    return float(-(shares * np.log2(np.where(shares, shares, 1))).sum(1).mean())
