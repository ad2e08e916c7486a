"""What one epoch of our loader fetches and decodes; each measurement runs in a process of its own.

At the end of an epoch the loader begins to fetch and decode the next one, also if that is never read. Here it plans no
epoch ahead, so that all that is counted belongs to one epoch.
"""

from typing import Any

import numpy as np

from benchmarks.loader.job import answer
from benchmarks.loader.workloads import Workload
from benchmarks.semantics.ours import count_samples
from benchmarks.semantics.views import ONE, Spec, open_loader, open_view
from penstock.codecs import decode_images
from penstock.engine.assembly import _decode
from penstock.engine.workers import _reading

_can_plan = _reading.SpanReader._can_plan


def windows(spec: dict[str, Any]) -> dict[str, Any]:
    """Images decoded and bytes fetched, relative to the images and the bytes of the table."""
    decoded: list[int] = []

    def counted(encoded: Any, *rest: Any, **options: Any) -> Any:
        decoded.append(len(encoded))
        return decode_images(encoded, *rest, **options)

    setattr(_decode, "decode_images", counted)  # noqa: B010
    wanted = Spec(**spec)
    table = wanted.tables()[ONE]
    with open_loader(wanted, open_view(wanted)) as loader:
        samples = sum(map(count_samples, loader))
        fetched = loader.stats().bytes
    return {
        "samples": samples,
        "images": len(table),
        "decoded_per_image": sum(decoded) / len(table),
        "bytes_per_byte": fetched / table.summary().bytes,
    }


def weighted(spec: dict[str, Any]) -> dict[str, Any]:
    """Bytes fetched, relative to those of all draws and of the different rows among them."""
    wanted = Spec(**spec)
    row_bytes = Workload("images", 1).row_bytes
    with open_loader(wanted, open_view(wanted)) as loader:
        drawn = np.concatenate([batch["_row_id"].numpy() for batch in loader])
        fetched = loader.stats().bytes
    different = len(np.unique(drawn))
    return {
        "draws": len(drawn),
        "different": different,
        "bytes_per_drawn": fetched / (len(drawn) * row_bytes),
        "bytes_per_different": fetched / (different * row_bytes),
    }


def _can_plan_this_epoch(pipeline: Any) -> bool:
    return bool(_can_plan(pipeline) and pipeline._planning_epoch <= pipeline._reading_epoch)


if __name__ == "__main__":
    setattr(_reading.SpanReader, "_can_plan", _can_plan_this_epoch)  # noqa: B010
    answer(windows, weighted)
