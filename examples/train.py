"""Train on one GPU, or on none, straight from a table in a folder or a bucket; run it again and it goes on.

To run it:

    python examples/make_table.py /tmp/stripes
    python examples/train.py /tmp/stripes --checkpoint /tmp/stripes.pt
"""

import argparse
from pathlib import Path

import torch
from torch import nn

import penstock


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small classifier of images from a table.")
    parser.add_argument("table", help="a folder, s3://bucket/prefix, gs://…, az://… or penstock://org/name")
    parser.add_argument("--checkpoint", type=Path, default=Path("train.pt"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-steps", type=int, help="stop after so many steps; run it again to go on")
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--print-every", type=int, default=20, metavar="STEPS")
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    saved = torch.load(args.checkpoint, map_location=device) if args.checkpoint.exists() else None

    # A run stays with the version it began with, whatever others commit meanwhile.
    ds = penstock.load(args.table, version=saved["version"] if saved else None)
    loader = ds.select(["image", "label"]).pytorch(batch_size=args.batch_size, shuffle=True, device=device)

    torch.manual_seed(0)
    model = new_model(len(ds.schema["label"].kind.names)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = 0
    if saved:
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
        print(f"going on after step {step}")

    def save() -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loader": loader.state_dict()}
        unfinished = args.checkpoint.with_suffix(".unfinished")
        torch.save({**state, "version": ds.version, "step": step}, unfinished)
        unfinished.replace(args.checkpoint)  # a run that is killed here leaves the old checkpoint whole

    stop = None if args.max_steps is None else step + args.max_steps
    for epoch in range(loader.epoch, args.epochs):
        for batch in loader:
            scores = model(batch["image"].permute(0, 3, 1, 2).float() / 255)
            loss = nn.functional.cross_entropy(scores, batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.print_every == 0:
                print(f"epoch {epoch}, step {step}: loss {loss.item():.3f}")
            if step % args.save_every == 0:
                save()
            if step == stop:
                break
        if step == stop:
            break
    save()
    print(f"stopped after step {step}, with {loader.stats().rows:,} rows read in this run")
    print(loader.stats().bottleneck)


def new_model(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2), nn.GELU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, classes)
    )


if __name__ == "__main__":
    main()
