"""The examples, as people run them: each is stopped in the midst of an epoch, run again, and learns what one run would.

What a model has learnt depends on every row of every step, so two runs that end with the weights of one that was never
stopped have read each row once, and in its order.
"""

import os
import pickle
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import penstock
from penstock import Dataset
from tests.servers import new_location

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS = 500
BATCH = 64
STEPS = 8
"""In an epoch; the last is short, and padded where ranks share it."""
LIMIT_S = 240

pytestmark = pytest.mark.timeout(600)

Weights = Mapping[str, torch.Tensor]


def start(command: list[Any], **environment: str) -> subprocess.Popen[str]:
    known = os.environ | {"PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"} | environment
    words = [sys.executable, *map(str, command)]
    return subprocess.Popen(words, env=known, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(process: subprocess.Popen[str]) -> str:
    try:
        said, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.terminate()  # torchrun ends its ranks then
        said, _ = process.communicate()
        raise AssertionError(f"{process.args!r} hangs; it said:\n{said}") from None
    assert process.returncode == 0, f"{process.args!r} failed:\n{said}"
    return said


def run(command: list[Any], **environment: str) -> str:
    return finish(start(command, **environment))


def torchrun(*options: str) -> list[str]:
    return ["-m", "torch.distributed.run", *options]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port


def make_table(uri: str | Path, **environment: str) -> None:
    said = run([EXAMPLES / "make_table.py", uri, "--rows", ROWS], **environment)
    assert said == f"{ROWS} rows in {uri}, committed as main@1\n"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("examples") / "stripes"
    make_table(place)
    return place


def learnt(ds: Dataset, steps: int, *, mean: bool = False) -> Weights:
    """What one run that is never stopped has learnt after so many steps; each row weighs the same, or each step."""
    torch.manual_seed(0)
    model: torch.nn.Module = run_path(str(EXAMPLES / "train.py"))["new_model"](4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = 0
    with ds.select(["image", "label"]).pytorch(batch_size=BATCH, shuffle=True) as loader:
        while step < steps:
            for batch in loader:
                images, labels = batch["image"].permute(0, 3, 1, 2).float() / 255, batch["label"]
                loss = torch.nn.functional.cross_entropy(model(images), labels, reduction="sum")
                optimizer.zero_grad()
                torch.autograd.backward(loss / (len(labels) if mean else BATCH))
                optimizer.step()
                step += 1
                if step == steps:
                    break
    return model.state_dict()


def assert_same(found: Weights, wanted: Weights) -> None:
    assert found.keys() == wanted.keys()
    for name, weight in wanted.items():
        torch.testing.assert_close(found[name], weight, rtol=0, atol=1e-5)


def test_train_is_killed_and_goes_on_while_others_commit(tmp_path: Path) -> None:
    place = new_location("s3")
    at = {f"AWS_{name.upper()}": value for name, value in place.options.items()}
    make_table(place.uri, **at)
    checkpoint = tmp_path / "train.pt"
    command = [EXAMPLES / "train.py", place.uri, "--checkpoint", checkpoint, "--print-every", 1, "--save-every", 4]

    with start([*command, "--epochs", 1000], **at) as process:
        assert process.stdout is not None
        assert any("step 7:" in line for line in process.stdout), "it ends early"
        process.kill()
    step = torch.load(checkpoint)["step"]
    assert step >= 4

    ds = penstock.load(place.uri, storage_options=place.options)
    begun = penstock.load(place.uri, storage_options=place.options, version=1)
    ds.append([ds[0]])
    ds.commit("one more")
    said = run([*command, "--epochs", 1000, "--max-steps", 2 * STEPS + 1], **at)
    assert said.startswith(f"going on after step {step}\n")
    assert re.search(r"\nstopped after step \d+, with [\d,]+ rows read in this run\nbottleneck: .*\n$", said)
    assert_same(torch.load(checkpoint)["model"], learnt(begun, step + 2 * STEPS + 1, mean=True))


def test_ddp_goes_on_as_two_nodes(table: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "ddp.pt"
    command = [EXAMPLES / "train_ddp.py", table, "--checkpoint", checkpoint, "--batch-size", BATCH // 2]
    said = run([*torchrun("--nproc-per-node=2", "--standalone"), *command, "--max-steps", STEPS + 3])
    assert "ranks: 2, beginning at step 0" in said
    endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    nodes = [start([*torchrun("--nnodes=2", f"--node-rank={node}", endpoint), *command]) for node in range(2)]
    try:
        said = "".join(map(finish, nodes))
    finally:
        for node in nodes:
            node.terminate()
    assert f"ranks: 2, going on after step {STEPS + 3}" in said
    for rank in range(2):
        assert f"rank {rank} stopped after step {3 * STEPS}; bottleneck: " in said
    assert_same(torch.load(checkpoint)["model"], learnt(penstock.load(table), 3 * STEPS))


@pytest.mark.slow
def test_fsdp_goes_on_with_more_ranks(table: Path, tmp_path: Path) -> None:
    command = [EXAMPLES / "train_fsdp.py", table, "--checkpoints", tmp_path / "fsdp", "--save-every", 5]
    one = [*torchrun("--nproc-per-node=1", "--standalone"), *command, "--batch-size", BATCH]
    assert "ranks: 1, beginning at step 0" in run([*one, "--max-steps", STEPS + 3])
    two = [*torchrun("--nproc-per-node=2", "--standalone"), *command, "--batch-size", BATCH // 2]
    said = run(two)
    assert f"ranks: 2, going on after step {STEPS + 3}" in said
    for rank in range(2):
        assert f"rank {rank} stopped after step {3 * STEPS}; bottleneck: " in said
    dcp_to_torch_save(tmp_path / "fsdp" / str(3 * STEPS), tmp_path / "whole.pt")
    assert_same(torch.load(tmp_path / "whole.pt")["model"], learnt(penstock.load(table), 3 * STEPS))


@pytest.mark.slow
def test_lightning_goes_on_after_it_was_stopped_between_epochs(table: Path, tmp_path: Path) -> None:
    command = [EXAMPLES / "train_lightning.py", table, "--checkpoints", tmp_path, "--save-every", 4, "--devices", 1]
    assert f"\nstopped after step {STEPS}; bottleneck: " in run([*command, "--max-steps", STEPS])
    assert torch.load(tmp_path / "last.ckpt")["global_step"] == STEPS - 4
    assert f"\nstopped after step {3 * STEPS}; bottleneck: " in run(command)
    weights = torch.load(tmp_path / "end.ckpt")["state_dict"]
    found = {name.removeprefix("model."): weight for name, weight in weights.items()}
    assert_same(found, learnt(penstock.load(table), 3 * STEPS))


@pytest.mark.slow
def test_accelerate_goes_on(table: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    command = [EXAMPLES / "train_accelerate.py", table, "--checkpoints", tmp_path]
    assert f"stopped after step {STEPS + 3}; bottleneck: " in run([*command, "--max-steps", STEPS + 3])
    said = run(command)
    assert said.startswith(f"going on after step {STEPS + 3}\n")
    assert f"stopped after step {3 * STEPS}; bottleneck: " in said
    assert_same(load_file(tmp_path / str(3 * STEPS) / "model.safetensors"), learnt(penstock.load(table), 3 * STEPS))


def test_jax_goes_on_with_fewer_devices(table: Path, tmp_path: Path) -> None:
    checkpoint = tmp_path / "jax.pickle"
    command = [EXAMPLES / "train_jax.py", table, "--checkpoint", checkpoint]
    said = run([*command, "--max-steps", STEPS + 1], XLA_FLAGS="--xla_force_host_platform_device_count=4")
    assert said.startswith(f"stopped after step {STEPS + 1}; bottleneck: ")
    said = run(command)
    steps = 3 * (STEPS - 1)  # without the short ones
    assert said.startswith(f"going on after step {STEPS + 1}\n")
    assert f"\nstopped after step {steps}; bottleneck: " in said

    script = run_path(str(EXAMPLES / "train_jax.py"))
    model = script["new_model"](4)
    momenta = {name: 0 * weight for name, weight in model.items()}
    with penstock.load(table).select(["image", "label"]).jax(batch_size=BATCH, shuffle=True, drop_last=True) as loader:
        for _ in range(3):
            for batch in loader:
                model, momenta, _loss = script["update"](model, momenta, batch["image"], batch["label"])
    saved = pickle.loads(checkpoint.read_bytes())["model"]
    for name, weight in model.items():
        np.testing.assert_allclose(saved[name], weight, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("script", "size", "steps"),
    [
        ("train_policy.py", ["--episodes", 12], 15),
        ("train_gpt.py", ["--documents", 24], 10),
        ("train_long_tail.py", ["--rows", 400], 21),
    ],
)
def test_an_example_makes_its_table_stops_and_goes_on(
    script: str,
    size: list[Any],
    steps: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def call(checkpoint: str, *options: Any) -> str:
        command = [EXAMPLES / script, tmp_path / "table", "--checkpoint", tmp_path / checkpoint, "--print-every", 1]
        monkeypatch.setattr(sys, "argv", [str(word) for word in (*command, *options)])
        run_path(str(EXAMPLES / script), run_name="__main__")
        return capsys.readouterr().out

    middle = steps // 2 + 2  # in the second epoch
    assert f"\nstopped after step {middle}" in call("stopped.pt", *size, "--max-steps", middle)
    said = call("stopped.pt")
    assert said.startswith(f"going on after step {middle}\nepoch 1, step {middle + 1}: loss ")
    assert f"\nstopped after step {steps}" in said
    call("whole.pt")
    stopped, whole = (torch.load(tmp_path / name) for name in ("stopped.pt", "whole.pt"))
    assert stopped["step"] == whole["step"] == steps
    assert_same(stopped["model"], whole["model"])


def test_the_demo_runs(tmp_path: Path) -> None:
    assert "0 damaged" in run([EXAMPLES / "demo.py"], TMPDIR=str(tmp_path), PENSTOCK_HOME=str(tmp_path / "home"))
