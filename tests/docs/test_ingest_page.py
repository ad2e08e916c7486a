"""The commands of docs/ingest.md run as they stand, against an S3 server and a folder of robot logs."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import simplejpeg

from penstock.storage import open_store
from tests.ingest.robot_logs import write_log
from tests.servers import Place, new_place

PAGE = Path(__file__).parents[2] / "docs" / "ingest.md"


def fill(place: Place) -> None:
    rng = np.random.default_rng(0)
    store = open_store(f"{place.uri}/pets", options=place.options)
    for number in range(40):
        picture = rng.integers(0, 255, (48 + number % 3, 64, 3), np.uint8)
        store.put(f"{('cat', 'dog')[number % 2]}/{number:03}.jpg", simplejpeg.encode_jpeg(picture))


def test_the_page_runs_in_under_ten_commands(tmp_path: Path) -> None:
    place = new_place("s3")
    fill(place)
    environment = {f"AWS_{name.upper()}": value for name, value in place.options.items()}
    (tmp_path / "logs").mkdir()
    for number in range(2):
        write_log(tmp_path / "logs" / f"run-{number}.mcap", seed=number)
    text = PAGE.read_text().replace("s3://your-bucket", place.uri)
    found = re.findall(r"```(sh|python)\n(.*?)```", text, re.DOTALL)
    commands = [line for kind, block in found if kind == "sh" for line in block.splitlines() if line]
    assert len(commands) + sum(kind == "python" for kind, _ in found) < 10
    environ = (
        os.environ
        | environment
        | {
            "PENSTOCK_HOME": str(tmp_path / "home"),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
    )
    said: list[str] = []
    code = ""
    for kind, block in found:
        if kind == "python":
            code += block
            words = [sys.executable, "-W", "error::penstock.errors.PenstockWarning", "-c", code]
        else:
            words = ["sh", "-e", "-c", block]
        done = subprocess.run(
            words, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=240, check=False
        )
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
    assert "40 pictures, loss" in said[1]
    assert "Nothing new." in said[2]
    assert "camera_rgb" in said[3]
    assert "joint_angles" in said[3]
    assert re.search(r"\(\d, \d+, \d+, 3\) \(\d, \d\)", said[4])
