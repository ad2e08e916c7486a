"""Ctrl-C: a program that reads ends at once, whatever it waits for, and leaves nothing behind."""

import json
import os
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
from tests.servers import Place, moto_port, new_place
from tests.storage.proxy import FaultProxy

ENDS_WITHIN_S = 2.0
TRIES = 4
ROOT = Path(__file__).parents[2]


def table(kind: str) -> Place:
    place = new_place(kind)
    ds = penstock.create(
        place.uri, {"n": Column(Tensor("int64"), page_bytes=64), "x": Tensor("float32", (8,))}, options=place.options
    )
    ds.append({"n": np.arange(200), "x": np.zeros((200, 8), np.float32)})
    ds.commit()
    return place


@contextmanager
def reading(scenario: str, place: Place, endpoint: str = "") -> Iterator[subprocess.Popen[str]]:
    """The program in a session of its own, so that it can be told apart, and its processes with it."""
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
    """See a program end in time; a machine that has other work may be late with it, but not again and again."""
    for _ in range(TRIES):
        with begin() as program:
            printed, took = end(program, to_all=to_all)
        if took < ENDS_WITHIN_S:
            return printed
    pytest.fail(f"it took {took:.1f} s to end, and no less before, {TRIES} times")


def end(program: subprocess.Popen[str], *, to_all: bool) -> tuple[str, float]:
    """Interrupt the program, as a terminal does or as a supervisor; returns what it printed, and how long it took."""
    mine = processes_of_session(program.pid)
    assert program.pid in mine
    started = time.monotonic()
    if to_all:
        os.killpg(program.pid, signal.SIGINT)
    else:
        os.kill(program.pid, signal.SIGINT)
    _, printed = program.communicate(timeout=60)
    took = time.monotonic() - started
    assert program.returncode == -signal.SIGINT, printed
    assert soon(lambda: not processes_of_session(program.pid)), processes_of_session(program.pid)
    named = [name for name in os.listdir("/dev/shm") if any(str(pid) in name for pid in mine)]
    assert not named
    assert printed.count("Traceback") == 1, printed
    assert "KeyboardInterrupt" in printed
    return printed, took


def slowly(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    "scenario", ["plain", "slow store", "slow transform", slowly("inline"), slowly("slow transform inline")]
)
def test_a_program_that_reads_a_folder_ends(scenario: str) -> None:
    check_end(lambda: reading(scenario, table("folder")))


def test_a_program_whose_bucket_does_not_answer_ends() -> None:
    with FaultProxy(moto_port(), ["hang"]) as proxy:
        check_end(lambda: reading("hanging bucket", table("s3"), proxy.endpoint))


@pytest.mark.parametrize(
    ("scenario", "to_all"),
    [("process", True), slowly("process", False), slowly("slow process", True), slowly("slow process", False)],
)
def test_a_program_with_worker_processes_ends_with_them(scenario: str, to_all: bool) -> None:
    printed = check_end(lambda: reading(scenario, table("folder")), to_all=to_all)
    assert "penstock-worker" not in printed


@pytest.mark.slow
def test_worker_processes_end_with_a_program_that_is_killed() -> None:
    with reading("process", table("folder")) as program:
        assert len(processes_of_session(program.pid)) > 1
        program.kill()
        program.wait()
        assert soon(lambda: not processes_of_session(program.pid)), processes_of_session(program.pid)
