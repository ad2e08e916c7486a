"""The commands of docs/ingest.md run unchanged, against an S3 server and a folder of robot logs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import simplejpeg

from penstock.storage import open_store
from tests.ingest.robot_logs import write_log
from tests.servers import StoreLocation, new_location

PAGE = Path(__file__).parents[2] / "docs" / "ingest.md"


def fill(place: StoreLocation) -> None:
    rng = np.random.default_rng(0)
    store = open_store(f"{place.uri}/pets", options=place.options)
    for index in range(40):
        image = rng.integers(0, 255, (48 + index % 3, 64, 3), np.uint8)
        store.put(f"{('cat', 'dog')[index % 2]}/{index:03}.jpg", simplejpeg.encode_jpeg(image))


def test_the_page_runs_in_under_ten_commands(tmp_path: Path) -> None:
    place = new_location("s3")
    fill(place)
    environment = {f"AWS_{name.upper()}": value for name, value in place.options.items()}
    (tmp_path / "logs").mkdir()
    for seed in range(2):
        write_log(tmp_path / "logs" / f"run-{seed}.mcap", seed=seed)
    text = PAGE.read_text().replace("s3://your-bucket", place.uri)
    blocks = re.findall(r"```(sh|python)\n(.*?)```", text, re.DOTALL)
    commands = [line for kind, block in blocks if kind == "sh" for line in block.splitlines() if line]
    assert len(commands) + sum(kind == "python" for kind, _ in blocks) < 10
    environ = (
        os.environ
        | environment
        | {
            "PENSTOCK_HOME": str(tmp_path / "home"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
    )
    outputs: list[str] = []
    code = ""
    for kind, block in blocks:
        if kind == "python":
            code += block
            words = [sys.executable, "-W", "error::penstock.errors.PenstockWarning", "-c", code]
        else:
            words = ["sh", "-e", "-c", block]
        process = subprocess.run(
            words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240, check=False
        )
        assert process.returncode == 0, process.stderr
        outputs.append(process.stdout)
    assert "40 images, loss" in outputs[1]
    assert "Nothing new." in outputs[2]
    assert "camera_rgb" in outputs[3]
    assert "joint_angles" in outputs[3]
    assert re.search(r"\(\d, \d+, \d+, 3\) \(\d, \d\)", outputs[4])
