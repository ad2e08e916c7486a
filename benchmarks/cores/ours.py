"""Measurements of our loader, always through `ds.pytorch`; each runs in a process of its own."""

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import cycle
from typing import Any

import torch

import penstock
from benchmarks.cores.data import BATCH_SIZE, Data
from benchmarks.cores.functions import crop_sample, tokenize_batch
from benchmarks.cores.memory import pss_bytes, sampled
from benchmarks.cores.rate import measure
from benchmarks.loader.job import answer
from benchmarks.loader.transforms import spin

TRANSFORMED_ROWS = 32
"""Rows of a batch where each row takes milliseconds."""
FUNCTIONS: dict[str, dict[str, Any]] = {
    "crop": {"transform": crop_sample},
    "tokenize": {"batch_transform": tokenize_batch},
}
REST_S = 0.5
TURNS_PER_ROUND, SYNCHRONIZED_STEPS = 2, 8
IMAGE = penstock.ImageTransform(
    crop=(224, 224), hflip_prob=0.5, dtype="bfloat16", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225),
    memory_format="channels_last",
)  # fmt: skip


def throughput(
    data: dict[str, Any],
    workers: int,
    worker_type: str | None,
    seconds: float,
    warmup_s: float,
    apply: str | None = None,
    default_options: bool = False,
    skip_epochs: int = 0,
) -> dict[str, Any]:
    """Rows a second, with a budget of a part of the table or with the default shuffle and budget."""
    at = Data(**data)
    options = _options(at, workers, worker_type) | (FUNCTIONS[apply] if apply else {})
    if default_options:
        options |= {"shuffle": True, "memory_budget": None}
    return _measured(at, options, apply, seconds=seconds, warmup_s=warmup_s, skip_epochs=skip_epochs)


def transformed(
    data: dict[str, Any], workers: int, worker_type: str | None, loops: int, seconds: float, warmup_s: float
) -> dict[str, Any]:
    """Rows a second through a transform that is heavy in Python."""
    options = _options(Data(**data), workers, worker_type)
    options |= {"batch_size": TRANSFORMED_ROWS, "transform": partial(spin, loops=loops)}
    return _measured(Data(**data), options, None, seconds=seconds, warmup_s=warmup_s)


def memory(
    data: dict[str, Any], workers: int, worker_type: str | None, seconds: float, warmup_s: float
) -> dict[str, Any]:
    """The peak of the memory of all processes together while batches are streamed."""
    imported = pss_bytes(os.getpid())
    with sampled() as peak:
        found = throughput(data, workers, worker_type, seconds, warmup_s)
    return found | {
        "imported_bytes": imported,
        "peak_bytes": peak.bytes,
        "processes": peak.processes,
        "budget_bytes": Data(**data).budget_bytes,
    }


def train(
    data: dict[str, Any], workers: int, worker_type: str | None, device: str, rounds: int, seconds: float
) -> dict[str, Any]:
    """Steps a second of ResNet-50 from images decoded on the host, in turns with one resident batch and the loader."""
    options = _options(Data(**data), workers, worker_type) | {
        "drop_last": True,
        "batch_transform": on_host,
        "device": penstock.DeviceOptions(device=device, transform={"image": IMAGE}),
    }
    step = _training_step(device)
    synchronize: Callable[[], object] = torch.cuda.synchronize if device == "cuda" else int
    with penstock.load(Data(**data).table).pytorch(**options) as loader:
        batches = (batch for _ in cycle([0]) for batch in loader)
        resident = {name: values.clone() for name, values in next(batches).items()}

        def steps_per_s(work: Callable[[], object]) -> float:
            synchronize()
            time.sleep(REST_S)  # else the loader would fill its queue in the turn of the next one
            _steps(work, seconds / 4, synchronize)  # what was queued meanwhile does not count
            start = time.perf_counter()
            count = _steps(work, seconds, synchronize)
            return count / (time.perf_counter() - start)

        turns = {
            "ours": lambda: step(next(batches)),
            "resident": lambda: step(resident),
            "loader": lambda: next(batches),
        }
        for work in turns.values():
            steps_per_s(work)
        found = [{name: steps_per_s(work) for name, work in turns.items()} for _ in range(TURNS_PER_ROUND * rounds)]
        stats = loader.stats()
    return {"turns": found, "stats": str(stats).splitlines()}


def on_host(batch: Any) -> Any:
    """A batch as it is: a transform of the batch makes the loader decode on the host."""
    return batch


def _steps(work: Callable[[], object], seconds: float, synchronize: Callable[[], object]) -> int:
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        work()
        count += 1
        if count % SYNCHRONIZED_STEPS == 0:
            synchronize()  # else the loop would only queue steps
    synchronize()
    return count


def _training_step(device: str) -> Callable[[dict[str, torch.Tensor]], None]:
    from torchvision.models import resnet50

    torch.manual_seed(0)
    model = resnet50().to(device).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step(batch: dict[str, torch.Tensor]) -> None:
        with torch.autocast(device, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(batch["image"]), batch["label"])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def _options(data: Data, workers: int, worker_type: Any) -> dict[str, Any]:
    return {
        "batch_size": BATCH_SIZE,
        "shuffle": True if data.spread is None else penstock.Shuffle(spread=data.spread),
        "num_workers": workers if worker_type is None else penstock.Workers(workers, worker_type),
        "memory_budget": data.budget_bytes,
    }


def _measured(data: Data, options: dict[str, Any], apply: str | None, **how: Any) -> dict[str, Any]:
    column = "tokens" if apply == "tokenize" else data.column
    workers = options["num_workers"]
    burst = workers if isinstance(workers, int) else workers.count
    with penstock.load(data.table).pytorch(**options) as loader:
        found = measure(loader, data, apply, burst=burst, values=lambda batch: batch[column], **how)
        return asdict(found) | {"stats": str(loader.stats()).splitlines()}


if __name__ == "__main__":
    answer(throughput, transformed, memory, train)
