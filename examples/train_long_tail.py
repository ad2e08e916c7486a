"""Train a classifier whose classes are of very different sizes: each is drawn equally often, for a number of steps.

To run it:

    python examples/make_table.py /tmp/stripes
    python examples/train_long_tail.py /tmp/stripes --checkpoint /tmp/long_tail.pt
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import penstock


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small classifier with balanced classes.")
    parser.add_argument("table", help="a folder, s3://bucket/prefix, gs://…, az://… or penstock://org/name")
    parser.add_argument("--checkpoint", type=Path, default=Path("long_tail.pt"))
    parser.add_argument("--steps", type=int, default=384)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-steps", type=int, help="stop after so many steps; run it again to go on")
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    args = parser.parse_args()

    saved = torch.load(args.checkpoint) if args.checkpoint.exists() else None
    ds = penstock.load(args.table, version=saved["loader"]["order"]["version"] if saved else None)
    classes = len(ds.schema["label"].kind.names)
    loader = ds.pytorch(
        batch_size=args.batch_size, shuffle=True, balance="label", steps=args.steps, columns=["image", "label"]
    )

    torch.manual_seed(0)
    model = new_model(classes)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if saved:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    first = loader.state_dict()["steps"]
    print(f"beginning after step {first}")

    def save() -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        unfinished = args.checkpoint.with_suffix(".unfinished")
        torch.save(state, unfinished)
        unfinished.replace(args.checkpoint)  # a run that is killed here leaves the old checkpoint whole

    step, seen = first, torch.zeros(classes, dtype=torch.int64)
    for step, batch in enumerate(loader, first + 1):  # through as many epochs as the steps need
        scores = model(batch["image"].permute(0, 3, 1, 2).float() / 255)
        loss = nn.functional.cross_entropy(scores, batch["label"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += torch.bincount(batch["label"], minlength=classes)
        if step % args.save_every == 0:
            save()
        if args.max_steps is not None and step == first + args.max_steps:
            break
    save()
    print(f"stopped after step {step}, with {seen.tolist()} rows of each class in this run")
    print(loader.stats().bottleneck)


def new_model(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2), nn.GELU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, classes)
    )


if __name__ == "__main__":
    main()
