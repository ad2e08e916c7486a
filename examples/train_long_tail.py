"""Train a classifier with rare classes: every class is drawn as often as the others, however few rows it has.

It makes a small table if there is none, with 12 rows of its rarest class in 2,000. To run it:

    python examples/train_long_tail.py /tmp/shapes --checkpoint /tmp/shapes.pt
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

import penstock

SIZE = 16
SHARES = {"flat": 0.8, "rising": 0.15, "upright": 0.044, "falling": 0.006}
DIRECTIONS = {"flat": (0, 1), "rising": (1, 1), "upright": (1, 0), "falling": (1, -1)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small classifier of images with rare classes.")
    parser.add_argument("table", help="a folder, s3://bucket/prefix, gs://…, az://… or penstock://org/name")
    parser.add_argument("--checkpoint", type=Path, default=Path("train_long_tail.pt"))
    parser.add_argument("--rows", type=int, default=2000, help="of the table, if it has to be made")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-steps", type=int, help="stop after so many steps; run it again to go on")
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--print-every", type=int, default=20, metavar="STEPS")
    args = parser.parse_args()

    if not penstock.exists(args.table):
        make_table(args.table, args.rows)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    saved = torch.load(args.checkpoint, map_location=device) if args.checkpoint.exists() else None

    # A run stays with the version it began with, whatever others commit meanwhile.
    ds = penstock.load(args.table, version=saved["version"] if saved else None)
    names = ds.schema["label"].kind.names
    balanced = ds.select(["image", "label"]).balanced("label")  # draws as many rows as the table has, with replacement
    loader = balanced.pytorch(batch_size=args.batch_size, shuffle=True, device=device)

    torch.manual_seed(0)
    model = new_model(len(names)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step, drawn = 0, torch.zeros(len(names), dtype=torch.int64)
    if saved:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step, drawn = saved["step"], saved["drawn"].cpu()
        print(f"going on after step {step}")

    def save() -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        unfinished = args.checkpoint.with_suffix(".unfinished")
        torch.save({**state, "version": ds.version, "step": step, "drawn": drawn}, unfinished)
        unfinished.replace(args.checkpoint)  # a run that is killed here leaves the old checkpoint whole

    stop = None if args.max_steps is None else step + args.max_steps
    for epoch in range(loader.epoch, args.epochs):
        for batch in loader:
            loss = nn.functional.cross_entropy(model(batch["image"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            drawn += torch.bincount(batch["label"].cpu(), minlength=len(names))
            if step % args.print_every == 0:
                print(f"epoch {epoch}, step {step}: loss {loss.item():.3f}")
            if step % args.save_every == 0:
                save()
            if step == stop:
                break
        if step == stop:
            break
    save()
    print(f"stopped after step {step}; {loader.stats().bottleneck}")

    rows, right = torch.zeros(2, len(names), dtype=torch.int64)
    with torch.no_grad():
        for batch in ds.select(["image", "label"]).pytorch(batch_size=256, device=device):
            labels = batch["label"].cpu()
            rows += torch.bincount(labels, minlength=len(names))
            found = model(batch["image"]).argmax(1).cpu() == labels
            right += torch.bincount(labels[found], minlength=len(names))
    for name, *counts in zip(names, rows.tolist(), drawn.tolist(), right.tolist(), strict=True):
        print("{}: {} rows, drawn {} times, {} rows recognised".format(name, *counts))


def new_model(classes: int) -> nn.Module:
    return nn.Sequential(
        Pixels(), nn.Conv2d(3, 16, 5), nn.GELU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, classes)
    )


class Pixels(nn.Module):
    """Images of bytes as numbers from 0 to 1, channels first."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return images.permute(0, 3, 1, 2).float() / 255


def make_table(table: str, rows: int) -> None:
    schema = {"image": penstock.Image("png", (SIZE, SIZE, 3)), "label": penstock.Label(list(SHARES))}
    ds = penstock.create(table, schema)
    ds.append(stripes(rows))
    ds.commit("stripes in four directions, most of them flat")


def stripes(rows: int) -> Iterator[dict[str, object]]:
    random = np.random.default_rng(0)
    x, y = np.meshgrid(np.arange(SIZE), np.arange(SIZE))
    labels = np.repeat(list(SHARES), np.diff(np.round(np.cumsum([0, *SHARES.values()]) * rows).astype(int)))
    for label in random.permutation(labels):
        across, down = DIRECTIONS[label]
        wave = np.sin((across * x + down * y) * random.uniform(0.6, 1.2) + random.uniform(0, 2 * np.pi))
        image = 128 + wave[:, :, None] * random.uniform(40, 110, 3) + random.normal(0, 20, (SIZE, SIZE, 3))
        yield {"image": image.clip(0, 255).astype(np.uint8), "label": str(label)}


if __name__ == "__main__":
    main()
