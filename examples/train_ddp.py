"""Train on several GPUs and machines with DistributedDataParallel; run it again, on as many ranks as there are then.

To run it:

    torchrun --nproc-per-node=2 examples/train_ddp.py /tmp/stripes --checkpoint /tmp/ddp.pt

On two machines, with a table and a checkpoint that both can reach (one machine can play both, in two terminals):

    torchrun --nnodes=2 --node-rank=0 --rdzv-endpoint=HOST:29500 --nproc-per-node=8 examples/train_ddp.py s3://…
    torchrun --nnodes=2 --node-rank=1 --rdzv-endpoint=HOST:29500 --nproc-per-node=8 examples/train_ddp.py s3://…
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import penstock


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small classifier of images on several ranks.")
    parser.add_argument("table", help="a folder, s3://bucket/prefix, gs://…, az://… or penstock://org/name")
    parser.add_argument("--checkpoint", type=Path, default=Path("train_ddp.pt"), help="a file that all ranks can read")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32, help="of one rank")
    parser.add_argument("--max-steps", type=int, help="stop after so many steps; run it again to go on")
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--print-every", type=int, default=20, metavar="STEPS")
    args = parser.parse_args()

    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
    dist.init_process_group()  # before the loader is made, which finds its rank by it
    first_rank = dist.get_rank() == 0
    saved = torch.load(args.checkpoint, map_location=device) if args.checkpoint.exists() else None

    # A run stays with the version it began with, whatever others commit meanwhile.
    ds = penstock.load(args.table, version=saved["version"] if saved else None)
    loader = ds.select(["image", "label"]).pytorch(batch_size=args.batch_size, shuffle=True, device=device)

    torch.manual_seed(0)
    model = DistributedDataParallel(new_model(len(ds.schema["label"].kind.names)).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = 0
    if saved:
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])  # the same on every rank, and good for any number of them
        step = saved["step"]

    def save() -> None:
        if first_rank:
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            unfinished = args.checkpoint.with_suffix(".unfinished")
            torch.save({**state, "loader": loader.state_dict(), "version": ds.version, "step": step}, unfinished)
            unfinished.replace(args.checkpoint)

    if first_rank:
        print(f"ranks: {dist.get_world_size()}, {'going on after' if saved else 'beginning at'} step {step}")
    stop = None if args.max_steps is None else step + args.max_steps
    for epoch in range(loader.epoch, args.epochs):
        for batch in loader:
            images, labels = batch["image"], batch["label"]
            if "_pad" in batch:  # rows that fill up the last batch of a rank are not learnt from
                labels = labels.masked_fill(batch["_pad"], -100)
            scores = model(images.permute(0, 3, 1, 2).float() / 255)
            loss = nn.functional.cross_entropy(scores, labels, reduction="sum") / args.batch_size
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % args.print_every == 0 and first_rank:
                print(f"epoch {epoch}, step {step}: loss {loss.item():.3f}")
            if step % args.save_every == 0:
                save()
            if step == stop:
                break
        if step == stop:
            break
    save()
    print(f"rank {dist.get_rank()} stopped after step {step}; {loader.stats().bottleneck}")
    dist.destroy_process_group()


def new_model(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2), nn.GELU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, classes)
    )


if __name__ == "__main__":
    main()
