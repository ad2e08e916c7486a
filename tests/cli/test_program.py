"""The program: exit codes, errors, secrets, interruption."""

import json
import os
import signal
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from penstock.cli._app import _COMMANDS
from penstock.cli._command import CommandContext, CommandResult, command, printable
from penstock.cli._render import format_bytes
from penstock.cli._verify import format_progress
from penstock.errors import PenstockWarning
from penstock.table import VerifyReport
from tests.cli.conftest import RunCommand

_HISTORY = ("branch", "tag", "checkout", "diff", "merge", "compact", "vacuum", "reset")
_PROGRAM = [sys.executable, "-m", "penstock"]


def _program(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*_PROGRAM, *map(str, words)], capture_output=True, text=True, timeout=240, check=False)


def test_exit_codes_of_the_program(table: Path, tmp_path: Path) -> None:
    well = _program("info", table, "--json")
    assert (well.returncode, well.stderr) == (0, "")
    assert json.loads(well.stdout)["rows"] == 3
    problem = _program("info", tmp_path / "nothing")
    assert (problem.returncode, problem.stdout) == (1, "")
    wrong = _program("info")
    assert (wrong.returncode, wrong.stdout) == (2, "")
    for failed in (problem, wrong):
        assert failed.stderr.startswith("Error: ")
        assert len(failed.stderr.splitlines()) == 1


@contextmanager
def _waiting(stderr: int) -> Iterator[subprocess.Popen[str]]:
    """The program while it waits for a store that accepts connections and does not respond."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"endpoint=http://127.0.0.1:{silent.getsockname()[1]}"
        settings = [
            word for text in (endpoint, "access_key_id=a", "secret_access_key=b") for word in ("--option", text)
        ]
        program = [*_PROGRAM, "info", "s3://bucket/table", *settings]
        process = subprocess.Popen(program, stdout=subprocess.PIPE, stderr=stderr, text=True)
        silent.settimeout(60)
        connection, _ = silent.accept()
        with connection, process:
            yield process


def test_ctrl_c_interrupts_a_request() -> None:
    with _waiting(subprocess.PIPE) as process:
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "", "Interrupted.\n")


def test_a_terminal_shows_a_spinner_and_gets_its_cursor_back() -> None:
    terminal, end = os.openpty()
    with _waiting(end) as process:
        os.close(end)
        seen = b""
        while b"waiting for the store" not in seen:
            seen += os.read(terminal, 4096)
        process.send_signal(signal.SIGINT)
        while b"Interrupted." not in seen:
            seen += os.read(terminal, 4096)
        assert process.wait(60) == 130
    os.close(terminal)
    assert seen.rindex(b"\x1b[?25h") > seen.rindex(b"\x1b[?25l")


def test_progress_of_a_verification() -> None:
    report = VerifyReport(objects=1234, bytes=5_000_000, damaged=["x"])
    assert format_progress(report, 2.0) == "1,234 objects, 5.0 MB, 2.5 MB/s, 1 damaged"


@pytest.mark.parametrize("words", [["info", "--json"], ["info"], ["--help"]])
def test_a_closed_pipe_ends_the_program_quietly(table: Path, words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    program = [*_PROGRAM, *words[:1], *([str(table)] if words[0] == "info" else []), *words[1:]]
    process = subprocess.run(program, stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert process.stderr == ""
    assert process.returncode == 1


@pytest.mark.parametrize(
    "words",
    [["nothing"], ["info", "a", "b"], ["head", "a", "-n", "x"], ["info", "a", "--option", "x"], ["info", "--foo"]],
)
def test_wrong_usage_is_one_sentence(run: RunCommand, words: list[str]) -> None:
    found = run(*words)
    assert (found.code, found.out) == (2, "")
    assert len(found.err.splitlines()) == 1


def test_help_documents_exit_codes_and_types(run: RunCommand) -> None:
    top = run()
    assert top.code == 0
    assert all(word in top.out for word in ("create", "info", "head", "log", "verify", "doctor", "Exit codes", "130"))
    assert all(run(name, "--help").code == 0 and f"  {name} " in top.out for name in _HISTORY)
    assert "no working copy" in run("checkout", "--help").out
    assert all(word in run("create", "--help").out for word in ("image:jpeg:90", "label=cat,dog", "uint8[?,4]"))


def test_the_help_of_all_commands_is_the_beginning_of_their_own(run: RunCommand) -> None:
    top = " ".join(run("--help").out.split())
    for name, (_, line) in _COMMANDS.items():
        assert f"{name} {line}" in top
        assert line.rstrip(".") in " ".join(run(name, "--help").out.split()), name


def test_debug_shows_the_traceback(run: RunCommand, tmp_path: Path) -> None:
    found = run("info", tmp_path / "nothing", "--debug")
    assert found.code == 1
    assert "Traceback" in found.err
    assert "NotFoundError" in found.err


@pytest.mark.parametrize("debug", [[], ["--debug"]])
def test_secrets_are_not_repeated(run: RunCommand, tmp_path: Path, debug: list[str]) -> None:
    settings = ["--option", "secret_access_key=hunter22", "--option", "allow_http=hunter22"]
    for words in (
        ["info", "s3://bucket/hunter22", *settings, *debug],
        ["info", "s3://bucket/x", "--option", "hunter22", *debug],
        ["info", "s3://bucket/x", "secret_access_key=hunter22"],
        ["create", tmp_path / "t", "secret_access_key=hunter22"],
    ):
        found = run(*words)
        assert found.code == 2
        assert "hunter22" not in found.out + found.err


def test_an_unexpected_error_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(context: CommandContext) -> CommandResult:
        raise RuntimeError("two\nlines with pass1234")

    assert command(broken)(json=True, debug=False, option=["token=pass1234"]) == 1
    out, err = capsys.readouterr()
    assert "RuntimeError: two lines with ***" in err
    assert len(err.splitlines()) == 1
    assert json.loads(out)["error"]["type"] == "RuntimeError"


def test_an_interrupted_command_cleans_up(capsys: pytest.CaptureFixture[str]) -> None:
    cleared = []

    def interrupted(context: CommandContext) -> CommandResult:
        context.on_interrupt = lambda: cleared.append("part")
        raise KeyboardInterrupt

    assert command(interrupted)(json=True, debug=False, option=[]) == 130
    assert cleared == ["part"]
    assert capsys.readouterr() == ("", "Interrupted.\n")


def test_warnings_are_printed_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def warns(context: CommandContext) -> CommandResult:
        warnings.warn("take care", PenstockWarning, stacklevel=1)
        return CommandResult({}, [])

    assert command(warns)(json=False, debug=False, option=[]) == 0
    assert capsys.readouterr() == ("", "Warning: take care\n")


def test_plain_output_is_not_wrapped(run: RunCommand, table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wide = run("info", table).out
    monkeypatch.setenv("COLUMNS", "20")
    assert run("info", table).out == wide


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 KB"),
        (1_000_000, "1.0 MB"),
        (123_456_789, "123 MB"),
        (1e18, "1000 PB"),
    ],
)
def test_sizes_are_formatted(size: float, text: str) -> None:
    assert format_bytes(size) == text


def test_printable_escapes_control_characters() -> None:
    assert printable("é\n\x1b[31m\u202e") == "é \\x1b[31m\\u202e"
