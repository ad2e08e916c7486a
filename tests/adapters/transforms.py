"""Functions for loaders and worker processes, which must be importable there."""

import os
import threading
import time
from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np
import torch

Sample = dict[str, Any]


class Pair(NamedTuple):
    n: Any
    name: str


class BrokenError(Exception):
    """An error of the user's own, which survives pickling."""


class FragileError(Exception):
    """An error that does not."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first)


class Carrier:
    """A batch of a type that nobody knows."""

    def __init__(self, n: Any) -> None:
        self.n = n


def same(value: Any) -> Any:
    return value


def doubled(sample: Sample) -> Sample:
    return {**sample, "n": sample["n"] * 2}


def noisy(sample: Sample, generator: np.random.Generator) -> Sample:
    return {"n": sample["n"], "noise": torch.from_numpy(generator.random(3))}


def noisy_batch(batch: Sample, generator: np.random.Generator) -> Sample:
    return {**batch, "noise": torch.from_numpy(generator.random(3))}


def drawn_in_every_way(sample: Sample, generator: np.random.Generator) -> Sample:
    """Random numbers of its own and of the global generators, and where this is."""
    drawn = {"noise": torch.from_numpy(generator.random(3)), "numpy": np.random.random(), "torch": torch.rand(())}
    return {"n": sample["n"], "pid": os.getpid(), **drawn}


def reshaped(sample: Sample) -> Sample:
    return {"n": sample["n"], "grid": torch.full((3, 5), float(sample["n"]))}


def rewritten(sample: Sample) -> Sample:
    """Writes to what it is given, and then fails for some rows."""
    sample["n"] += 1000
    if sample["n"] % 10 == 3:
        raise BrokenError("three")
    return sample


def fails_at_threes(sample: Sample) -> Sample:
    if sample["n"] % 10 == 3:
        raise BrokenError(f"row {int(sample['n'])} ends with a three")
    return sample


def always_fails(sample: Sample) -> Sample:
    raise BrokenError("always")


def fails_at_13_and_23(sample: Sample) -> Sample:
    if sample["n"] == 13:
        raise BrokenError("thirteen")
    if sample["n"] == 23:
        raise FragileError("one", "two")
    return sample


def fails_at_33_and_43(batch: Sample) -> Sample:
    if 33 in batch["n"]:
        raise FileNotFoundError("the file that this transform needs")
    return {**batch, "f": threading.Lock()} if 43 in batch["n"] else batch


def dies(sample: Sample) -> Sample:
    os._exit(3)


def says_where(sample: Sample) -> Sample:
    return {**sample, "pid": os.getpid()}


def slow(sample: Sample) -> Sample:
    time.sleep(0.002)
    return sample


def very_slow(sample: Sample) -> Sample:
    time.sleep(600)
    return sample


def in_types_of_all_kinds(batch: Sample) -> Any:
    """The batch inside a named tuple, an ordered dictionary, a list and a tuple, beside plain values."""
    n = batch["n"]
    ordered = OrderedDict(b=n.to(torch.bfloat16), a=[n.bool(), (n.to(torch.complex64), "text", None)])
    plain = {"shape": n.shape, "empty": n[:0], "one": n[0], "t": batch["t"], "b": batch["b"]}
    return {"pair": Pair(n, "pair"), "ordered": ordered, "carrier": Carrier(n), **plain}


def length_and_process(data: bytes) -> tuple[int, int]:
    """A decoder that says where it was called."""
    return len(data), os.getpid()
