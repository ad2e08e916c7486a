"""How fast batches arrive, measured in the same way for every loader."""

import itertools
import math
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.loader.workloads import Workload


@dataclass(frozen=True)
class Rate:
    """What a loader delivered after the warm-up."""

    rows_per_s: float
    first_batch_s: float
    """From the call of `iter` to the first batch."""
    epochs: float
    cpu_us_per_row: float
    """Processor time of the process that iterates, all its threads but no other process."""


def measure(
    batches: Iterable[Any],
    workload: Workload,
    *,
    seconds: float,
    warmup_s: float,
    burst: int,
    skip_epochs: int = 0,
    values: Callable[[Any], Any],
) -> Rate:
    """Iterate, epoch after epoch, for `seconds` after the first batch, the warm-up and the first `skip_epochs`.

    The time starts and ends with the arrival of a batch; pauses between epochs count. Workers that begin together
    finish together, so a multiple of `burst` batches is counted, one for each worker.
    """
    start = time.perf_counter()
    first = began = math.inf
    rows = counted = batches_counted = 0
    cpu = 0.0
    for epoch in itertools.count():
        for batch in batches:
            now = time.perf_counter()
            rows += _checked(values(batch), workload)
            first = min(first, now)
            if began == math.inf:
                if epoch >= skip_epochs and now - first >= warmup_s:
                    began, counted, cpu = now, rows, _cpu_s()
                continue
            batches_counted += 1
            if now - began >= seconds and batches_counted % burst == 0:
                used = _cpu_s() - cpu
                taken = rows - counted
                return Rate(taken / (now - began), first - start, rows / workload.rows, 1e6 * used / taken)
    raise AssertionError("a loader can be iterated again and again")


def _checked(values: Any, workload: Workload) -> int:
    if tuple(values.shape[1:]) != workload.shape or str(values.dtype).removeprefix("torch.") != workload.dtype:
        raise RuntimeError(f"a batch of {workload.name} has shape {tuple(values.shape)} and type {values.dtype}")
    return len(values)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
