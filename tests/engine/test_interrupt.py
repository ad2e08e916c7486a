"""Ctrl-C: a program that reads ends promptly, whatever it waits for, and leaves no processes and no shared memory."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock import Column, Tensor
from tests.engine.watch import processes_of_session, soon
from tests.servers import StoreLocation, moto_port, new_location
from tests.storage.proxy import FaultProxy

ENDS_WITHIN_S = 2.0
CONTROL_FACTOR = 5.0
"""A program may take this many times longer to end than an idle one that is interrupted in the same minute."""
HANGS_S = 60.0
TRIES = 4
ROOT = Path(__file__).parents[2]


def table(kind: str) -> StoreLocation:
    place = new_location(kind)
    ds = penstock.create(
        place.uri,
        {"n": Column(Tensor("int64"), page_bytes=64), "x": Tensor("float32", (8,))},
        storage_options=place.options,
    )
    ds.append({"n": np.arange(200), "x": np.zeros((200, 8), np.float32)})
    ds.commit()
    return place


@contextmanager
def reading(scenario: str, place: StoreLocation, endpoint: str = "") -> Iterator[subprocess.Popen[str]]:
    """Start the program in a session of its own, by which its processes are found."""
    program = subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.engine.interrupted", scenario, place.uri,
         json.dumps(place.options), endpoint],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert program.stdout is not None
        line = program.stdout.readline()
        assert line == "reading\n", program.communicate()[1]
        yield program
    finally:
        program.kill()
        program.communicate()


def check_end(begin: Callable[[], AbstractContextManager[subprocess.Popen[str]]], *, to_all: bool = False) -> str:
    """Interrupt a program and check that it ends promptly; returns its standard error.

    A program that misses the bound is compared with an idle one, which a busy machine delays as well.
    """
    missed = []
    for _ in range(TRIES):
        with begin() as program:
            printed, took_s = end(program, to_all=to_all)
        if took_s < ENDS_WITHIN_S:
            return printed
        with reading("idle", StoreLocation("")) as control:
            allowed_s = ENDS_WITHIN_S + CONTROL_FACTOR * end(control, to_all=to_all)[1]
        if took_s < allowed_s:
            return printed
        missed.append(f"{took_s:.1f} s where {allowed_s:.1f} s are allowed")
    pytest.fail(f"the program did not end promptly: {', '.join(missed)}")


def end(program: subprocess.Popen[str], *, to_all: bool) -> tuple[str, float]:
    """Interrupt the program, or its process group as a terminal does; returns its standard error, and the seconds."""
    pids = processes_of_session(program.pid)
    assert program.pid in pids
    started_s = time.monotonic()
    if to_all:
        os.killpg(program.pid, signal.SIGINT)
    else:
        os.kill(program.pid, signal.SIGINT)
    _, printed = program.communicate(timeout=HANGS_S)
    took_s = time.monotonic() - started_s
    assert program.returncode == -signal.SIGINT, printed
    assert soon(lambda: not processes_of_session(program.pid)), processes_of_session(program.pid)
    named = [name for name in os.listdir("/dev/shm") if set(map(int, re.findall(r"\d+", name))) & pids]
    assert not named
    assert printed.count("Traceback") == 1, printed
    assert "KeyboardInterrupt" in printed
    return printed, took_s


def marked_slow(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "scenario", ["plain", "slow store", "slow transform", marked_slow("inline"), marked_slow("slow transform inline")]
)
def test_ctrl_c_ends_a_program_that_reads_a_folder(scenario: str) -> None:
    check_end(lambda: reading(scenario, table("folder")))


def test_ctrl_c_ends_a_program_whose_bucket_does_not_answer() -> None:
    with FaultProxy(moto_port(), ["hang"]) as proxy:
        check_end(lambda: reading("hanging bucket", table("s3"), proxy.endpoint))


@pytest.mark.parametrize(
    ("scenario", "to_all"),
    [
        ("process", True),
        marked_slow("process", False),
        marked_slow("slow process", True),
        marked_slow("slow process", False),
    ],
)
def test_ctrl_c_ends_worker_processes(scenario: str, to_all: bool) -> None:
    printed = check_end(lambda: reading(scenario, table("folder")), to_all=to_all)
    assert "penstock-worker" not in printed


@pytest.mark.slow
def test_worker_processes_end_when_their_parent_is_killed() -> None:
    with reading("process", table("folder")) as program:
        assert len(processes_of_session(program.pid)) > 1
        program.kill()
        program.wait()
        assert soon(lambda: not processes_of_session(program.pid)), processes_of_session(program.pid)
