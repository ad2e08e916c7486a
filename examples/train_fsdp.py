"""Train a model that is sharded over GPUs (FSDP2), with sharded checkpoints that any number of ranks can go on from.

To run it:

    torchrun --nproc-per-node=2 examples/train_fsdp.py /tmp/stripes --checkpoints /tmp/stripes-fsdp
"""

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import penstock


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small classifier of images, sharded over ranks.")
    parser.add_argument("table", help="a folder, s3://bucket/prefix, gs://…, az://… or penstock://org/name")
    parser.add_argument("--checkpoints", type=Path, default=Path("train_fsdp"), help="a folder that all ranks share")
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
    dist.init_process_group()
    mesh = init_device_mesh(device.type, (dist.get_world_size(),), mesh_dim_names=("dp",))

    step = max((int(path.parent.name) for path in args.checkpoints.glob("*/.metadata")), default=0)
    newest = args.checkpoints / str(step) if step else None  # .metadata is written last: what has it is whole
    pinned: dict[str, Any] = {"version": None}
    if newest:
        dcp.load(pinned, checkpoint_id=newest)

    # A run stays with the version it began with, whatever others commit meanwhile. With tensor or pipeline parallelism
    # the mesh has more dimensions; the loader wants the one whose ranks read different rows.
    ds = penstock.load(args.table, version=pinned["version"])
    loader = ds.select(["image", "label"]).pytorch(
        batch_size=args.batch_size, shuffle=True, distributed=mesh["dp"], device=device
    )

    torch.manual_seed(0)
    model = new_model(len(ds.schema["label"].kind.names)).to(device)
    fully_shard(model, mesh=mesh["dp"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def state() -> dict[str, Any]:
        weights, momenta = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": momenta, "loader": loader.state_dict(), "version": ds.version}

    if newest:
        saved = state()
        dcp.load(saved, checkpoint_id=newest)
        set_state_dict(model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"])
        loader.load_state_dict(saved["loader"])
    if dist.get_rank() == 0:
        print(f"ranks: {dist.get_world_size()}, {'going on after' if newest else 'beginning at'} step {step}")

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
            if step % args.print_every == 0 and dist.get_rank() == 0:
                print(f"epoch {epoch}, step {step}: loss {loss.item():.3f}")
            if step % args.save_every == 0:
                dcp.save(state(), checkpoint_id=args.checkpoints / str(step))
            if step == stop:
                break
        if step == stop:
            break
    if step % args.save_every:
        dcp.save(state(), checkpoint_id=args.checkpoints / str(step))
    print(f"rank {dist.get_rank()} stopped after step {step}; {loader.stats().bottleneck}")
    dist.destroy_process_group()


def new_model(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2), nn.GELU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, classes)
    )


if __name__ == "__main__":
    main()
