"""Make a small multimodal table, commit it, read it back, change it, and look at its history."""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.compute as pc

import penstock

ROWS = 2_000
CLASSES = ["idle", "reach", "grasp", "place"]


def telemetry(rng: np.random.Generator, row: int) -> dict[str, object]:
    """One moment of a robot's day: what it saw, felt, was told and did."""
    shade = np.linspace(0, 255, 96, dtype=np.uint8)
    picture = np.stack([np.roll(np.tile(shade, (72, 1)), row * step, axis=1) for step in (1, 2, 3)], axis=-1)
    hands = int(rng.integers(0, 3))
    return {
        "camera_rgb": picture,
        "joint_angles": rng.normal(size=7).astype(np.float32),
        "action": CLASSES[row % len(CLASSES)],
        "instruction": f"pick up block {row % 12} and put it on block {row % 7}",
        "boxes": rng.uniform(0, 72, (hands, 4)).astype(np.float32),
        "force": None if row % 10 == 0 else float(rng.normal()),
        "info": {"episode": row // 100, "operator": "ada" if row % 3 else "grace"},
    }


def main() -> None:
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="penstock-demo-")) / "robot"
    schema = {
        "camera_rgb": penstock.Image("jpeg:90"),
        "joint_angles": penstock.Tensor("float32", (7,)),
        "action": penstock.Label(CLASSES),
        "instruction": penstock.Column(penstock.Text(), codec="zstd"),
        "boxes": penstock.Boxes(),
        "force": penstock.Column(penstock.Tensor("float32"), nullable=True),
        "info": penstock.Json(),
    }

    print(f"1. A table in {place}")
    ds = penstock.create(place, schema)
    rng = np.random.default_rng(0)
    start = time.perf_counter()
    ds.append(telemetry(rng, row) for row in range(ROWS))
    version = ds.commit("first day of the robot")
    print(f"   {len(ds):,} rows appended and committed as {version} in {time.perf_counter() - start:.2f} s\n")

    print("2. Read it back")
    ds = penstock.load(place)
    print("   " + str(ds.summary()).replace("\n", "\n   "))
    row = ds[7]
    print(f"   row 7: picture {row['camera_rgb'].shape}, {row['instruction']!r}, force {row['force']}")
    start = time.perf_counter()
    rows = sum(len(batch["action"]) for batch in ds.batches(256))
    took = time.perf_counter() - start
    print(f"   {rows:,} rows in batches, pictures decoded, every byte verified: {rows / took:,.0f} rows/s\n")

    print("3. Change it")
    idle = ds.delete(pc.field("action") == CLASSES.index("idle"))
    ds.update(pc.field("force") > 2, {"force": 2.0})
    ds.add_column("reward", fill=0.0)
    ds.add_column("speed", compute=lambda batch: np.abs(batch["joint_angles"]).sum(axis=1), inputs=["joint_angles"])
    version = ds.commit("idle moments out, rewards and speeds in")
    print(f"   {idle} idle rows deleted, forces clipped, two columns added as {version}\n")

    print("4. Its history")
    for commit in penstock.load(place).log():
        print(f"   main@{commit.version}  {commit.rows:>5,} rows  {commit.operation:<26}  {commit.message}")
    old = penstock.load(place, version=1)
    print(f"   version 1 still has its {len(old):,} rows and {len(old.columns)} columns\n")

    report = penstock.verify(place)
    print(f"5. Verified {report.objects} objects, {report.bytes:,} bytes: {len(report.damaged)} damaged")
    print(f"   Look around: {Path(sys.executable).parent / 'penstock'} head {place}")


if __name__ == "__main__":
    main()
