"""How fast batches arrive, measured in the same way for every loader."""

import itertools
import math
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from benchmarks.cores.data import LISTED, Data
from benchmarks.cores.functions import CROP_SIDE, TOKENS

_SHAPES = {"crop": ((3, CROP_SIDE, CROP_SIDE), "float32"), "tokenize": ((TOKENS,), "int32")}
"""The rows that functions make."""


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
    data: Data,
    apply: str | None,
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
            rows += _checked(values(batch), data, apply)
            first = min(first, now)
            if began == math.inf:
                if epoch >= skip_epochs and now - first >= warmup_s:
                    began, counted, cpu = now, rows, _cpu_s()
                continue
            batches_counted += 1
            if now - began >= seconds and batches_counted % burst == 0:
                used = _cpu_s() - cpu
                taken = rows - counted
                return Rate(taken / (now - began), first - start, rows / data.rows, 1e6 * used / taken)
    raise AssertionError("a loader can be iterated again and again")


def _checked(values: Any, data: Data, apply: str | None) -> int:
    """The rows of a batch that is what it should be."""
    if apply is None and data.kind in LISTED:
        good = isinstance(values, list) and type(values[0]).__name__ in ("Tensor", "ndarray", "str")
    else:
        shape, dtype = _SHAPES[apply] if apply else (data.workload.shape, data.workload.dtype)
        good = tuple(values.shape[1:]) == shape and str(values.dtype).removeprefix("torch.") == dtype
    if not good:
        raise RuntimeError(f"a batch of {data.kind} has {getattr(values, 'shape', type(values[0]))}: {type(values)}")
    return len(values)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
