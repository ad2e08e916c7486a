"""Make a small multimodal table, train a model from it, change it, and look at its history."""

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import torch

import penstock

ROWS = 2_000
CLASSES = ["idle", "reach", "grasp", "place"]
POSES = np.random.default_rng(1).normal(size=(len(CLASSES), 7))


def telemetry(rng: np.random.Generator, row: int) -> dict[str, object]:
    """One moment of a robot's day: what it saw, felt, heard and did."""
    shade = np.linspace(0, 255, 96, dtype=np.uint8)
    image = np.stack([np.roll(np.tile(shade, (72, 1)), row * step, axis=1) for step in (1, 2, 3)], axis=-1)
    hands = int(rng.integers(0, 3))
    return {
        "camera_rgb": image,
        "joint_angles": (POSES[row % len(CLASSES)] + rng.normal(size=7)).astype(np.float32),
        "action": CLASSES[row % len(CLASSES)],
        "instruction": f"pick up block {row % 12} and put it on block {row % 7}",
        "boxes": rng.uniform(0, 72, (hands, 4)).astype(np.float32),
        "force": None if row % 10 == 0 else float(rng.normal()),
        "info": {"episode": row // 100, "operator": "ada" if row % 3 else "grace"},
    }


def main() -> None:
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="penstock-demo-")) / "robot"
    schema = {
        "camera_rgb": penstock.Image("jpeg:90", (72, 96, 3)),
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
    print(f"   row 7: image {row['camera_rgb'].shape}, {row['instruction']!r}, force {row['force']}")
    start = time.perf_counter()
    rows = sum(len(batch["action"]) for batch in ds.batches(256))
    took = time.perf_counter() - start
    print(f"   {rows:,} rows in batches, images decoded, every byte verified: {rows / took:,.0f} rows/s\n")

    print("3. Train from it, stop in the middle, and go on")
    train(ds)

    print("4. Change it")
    idle = ds.delete(pc.field("action") == CLASSES.index("idle"))
    ds.update(pc.field("force") > 2, {"force": 2.0})
    ds.add_column("reward", fill=0.0)
    ds.add_column("speed", compute=lambda batch: np.abs(batch["joint_angles"]).sum(axis=1), inputs=["joint_angles"])
    version = ds.commit("idle moments out, rewards and speeds in")
    print(f"   {idle} idle rows deleted, forces clipped, two columns added as {version}\n")

    print("5. Its history")
    for commit in penstock.load(place).log():
        print(f"   main@{commit.version}  {commit.rows:>5,} rows  {commit.operation:<26}  {commit.message}")
    old = penstock.load(place, version=1)
    print(f"   version 1 still has its {len(old):,} rows and {len(old.schema.names)} columns\n")

    report = penstock.verify(place)
    print(f"6. Verified {report.objects} objects, {report.bytes:,} bytes: {len(report.damaged)} damaged")
    print(f"   Look around: {Path(sys.executable).parent / 'penstock'} head {place}")


def train(ds: penstock.Dataset) -> None:
    torch.manual_seed(0)
    model = Policy()
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    view = ds.select(["camera_rgb", "joint_angles", "action"])
    loader = view.pytorch(batch_size=64, shuffle=True)
    for epoch in range(3):
        for step, batch in enumerate(loader):
            score = model(batch["camera_rgb"], batch["joint_angles"])
            loss = torch.nn.functional.cross_entropy(score, batch["action"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if epoch == 2 and step == len(loader) // 2:  # as if the machine went away here
                state = json.dumps(loader.state_dict())
                break
        right = (score.argmax(1) == batch["action"]).float().mean()
        print(f"   epoch {epoch}: loss {loss:.3f}, {right:.0%} of the last batch right")
    print("   " + str(loader.stats()).replace("\n", "\n   "))
    loader.close()

    loader = view.pytorch(batch_size=64, shuffle=True, num_workers=1)  # another machine, with fewer workers
    loader.load_state_dict(json.loads(state))
    rest = sum(1 for _ in loader)
    print(f"   resumed from {len(state)} bytes of state: {rest} of {len(loader)} steps were left, no row came twice\n")
    loader.close()


class Policy(torch.nn.Module):
    """Tells what the robot is doing from what it sees and feels."""

    def __init__(self) -> None:
        super().__init__()
        self.eye = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 5, stride=4), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten()
        )
        self.mind = torch.nn.Sequential(torch.nn.Linear(135, 64), torch.nn.ReLU(), torch.nn.Linear(64, len(CLASSES)))

    def forward(self, image: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
        seen = self.eye(image.permute(0, 3, 1, 2).float() / 255)
        score: torch.Tensor = self.mind(torch.cat([seen, angles], dim=1))
        return score


if __name__ == "__main__":
    main()
