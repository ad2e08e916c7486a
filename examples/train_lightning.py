"""Train with Lightning, on one GPU or on many; its checkpoints hold the loader's state without any help.

To run it:

    python examples/train_lightning.py /tmp/stripes --checkpoints /tmp/stripes-lightning
"""

import argparse
from pathlib import Path
from typing import Any

import lightning
import torch
from torch import nn

import penstock


class Classifier(lightning.LightningModule):
    """Tells images apart; its hyperparameters say what it learns from, down to the version of the table."""

    def __init__(self, table: str, version: str, batch_size: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.batch_size = batch_size
        self.ds = penstock.load(table, version=version)
        torch.manual_seed(0)
        self.model = new_model(len(self.ds.schema["label"].kind.names))

    def train_dataloader(self) -> Any:
        """Called when the ranks are known; a loader that is made earlier would give every rank all the rows."""
        return self.ds.select(["image", "label"]).pytorch(batch_size=self.batch_size, shuffle=True)

    def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
        images, labels = batch["image"].permute(0, 3, 1, 2).float() / 255, batch["label"]
        if "_pad" in batch:  # rows that fill up the last batch of a rank are not learnt from
            labels = labels.masked_fill(batch["_pad"], -100)
        loss = nn.functional.cross_entropy(self.model(images), labels, reduction="sum") / self.batch_size
        if (self.global_step + 1) % 20 == 0:
            self.print(f"epoch {self.current_epoch}, step {self.global_step + 1}: loss {loss.item():.3f}")
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)


class SaveInMidst(lightning.Callback):
    """Saves every so many steps, but never the last of an epoch: Lightning counts that epoch as over, the loader not.

    For the same reason it does not save after fit(): Lightning takes an epoch that was broken off for a whole one.
    """

    def __init__(self, path: Path, steps: int) -> None:
        self.path, self.steps = path, steps

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        due = trainer.global_step % self.steps == 0 or trainer.global_step == trainer.max_steps
        if due and not trainer.is_last_batch:
            trainer.save_checkpoint(self.path)


def new_model(classes: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2), nn.GELU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, classes)
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small classifier of images with Lightning.")
    parser.add_argument("table", help="a folder, s3://bucket/prefix, gs://…, az://… or penstock://org/name")
    parser.add_argument("--checkpoints", type=Path, default=Path("train_lightning"), help="a folder")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="of one rank")
    parser.add_argument("--max-steps", type=int, default=-1, help="stop at this step, counted over all runs")
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--devices", default="auto", help="how many GPUs, or processes where there are none")
    args = parser.parse_args()

    last = args.checkpoints / "last.ckpt"
    if last.exists():  # go on with the version that the run began with, whatever others have committed meanwhile
        model = Classifier.load_from_checkpoint(last, batch_size=args.batch_size)
    else:
        model = Classifier(args.table, penstock.load(args.table).version, args.batch_size)
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        max_steps=args.max_steps,
        devices=args.devices,
        callbacks=[SaveInMidst(last, args.save_every)],
        enable_checkpointing=False,
        enable_progress_bar=False,
        logger=False,
    )
    trainer.fit(model, ckpt_path=last if last.exists() else None)
    trainer.save_checkpoint(args.checkpoints / "end.ckpt", weights_only=True)
    trainer.print(f"stopped after step {trainer.global_step}; {trainer.train_dataloader.stats().bottleneck}")


if __name__ == "__main__":
    main()
