"""Train with Accelerate, which keeps the loader's state beside the model's and the optimizer's.

To run it:

    accelerate launch examples/train_accelerate.py /tmp/stripes --checkpoints /tmp/stripes-accelerate
"""

import argparse
import json
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import nn

import penstock


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small classifier of images with Accelerate.")
    parser.add_argument("table", help="a folder, s3://bucket/prefix, gs://…, az://… or penstock://org/name")
    parser.add_argument("--checkpoints", type=Path, default=Path("train_accelerate"), help="a folder")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="of one rank")
    parser.add_argument("--max-steps", type=int, help="stop after so many steps; run it again to go on")
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--print-every", type=int, default=20, metavar="STEPS")
    args = parser.parse_args()

    accelerator = Accelerator()  # before the loader is made, which finds its rank by it
    done = [json.loads(path.read_text()) for path in args.checkpoints.glob("*/done.json")]
    newest = max(done, key=lambda checkpoint: checkpoint["step"], default={"step": 0, "version": None})

    # A run stays with the version it began with, whatever others commit meanwhile.
    ds = penstock.load(args.table, version=newest["version"])
    loader = ds.select(["image", "label"]).pytorch(batch_size=args.batch_size, shuffle=True, device=accelerator.device)

    torch.manual_seed(0)
    model = new_model(len(ds.schema["label"].kind.names))
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    accelerator.register_for_checkpointing(loader)  # and not to prepare(), which is for DataLoader
    step = newest["step"]
    if step:
        accelerator.load_state(str(args.checkpoints / str(step)))
        accelerator.print(f"going on after step {step}")

    def save() -> None:
        folder = args.checkpoints / str(step)
        accelerator.save_state(str(folder))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:  # written last: what has it is whole
            (folder / "done.json").write_text(json.dumps({"step": step, "version": ds.version}))

    stop = None if args.max_steps is None else step + args.max_steps
    for epoch in range(loader.epoch, args.epochs):
        for batch in loader:
            images, labels = batch["image"], batch["label"]
            if "_pad" in batch:  # rows that fill up the last batch of a rank are not learnt from
                labels = labels.masked_fill(batch["_pad"], -100)
            scores = model(images.permute(0, 3, 1, 2).float() / 255)
            loss = nn.functional.cross_entropy(scores, labels, reduction="sum") / args.batch_size
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step % args.print_every == 0:
                accelerator.print(f"epoch {epoch}, step {step}: loss {loss.item():.3f}")
            if step % args.save_every == 0:
                save()
            if step == stop:
                break
        if step == stop:
            break
    if step % args.save_every:
        save()
    accelerator.print(f"stopped after step {step}; {loader.stats().bottleneck}")
    accelerator.end_training()


def new_model(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2), nn.GELU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, classes)
    )


if __name__ == "__main__":
    main()
