"""Loops of others: Lightning and Accelerate train from a loader, stop, and go on where they were."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import penstock
from penstock import Dataset, Tensor
from penstock.engine import Loader

ROWS = 192
BATCH = 32
STEPS = ROWS // BATCH

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("default"),  # theirs are none of our business
]


@pytest.fixture(scope="module")
def ds(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    made = penstock.create(
        tmp_path_factory.mktemp("frameworks") / "t", {"n": int, "x": Tensor("float32", (4,)), "y": "float32"}
    )
    x = np.random.default_rng(0).standard_normal((ROWS, 4)).astype(np.float32)
    made.append({"n": np.arange(ROWS), "x": x, "y": x @ np.array([1, -2, 3, 0.5], np.float32)})
    made.commit()
    return made


def loader_of(ds: Dataset, **options: Any) -> Loader:
    loader: Loader = ds.pytorch(batch_size=BATCH, shuffle=True, num_workers=2, **options)
    return loader


def error(model: torch.nn.Module, batch: dict[str, Any]) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(batch["x"])[:, 0], batch["y"])


def order(ds: Dataset, epochs: int) -> list[list[int]]:
    with loader_of(ds) as loader:
        return [[n for batch in loader for n in batch["n"].tolist()] for _ in range(epochs)]


def test_lightning_trains_two_epochs(ds: Dataset, tmp_path: Path) -> None:
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.seen: list[list[int]] = []
            self.losses: list[float] = []

        def on_train_epoch_start(self) -> None:
            self.seen.append([])

        def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
            self.seen[-1] += batch["n"].tolist()
            loss = error(self.layer, batch)
            self.losses.append(float(loss.detach()))
            return loss

        def validation_step(self, batch: dict[str, Any], _: int) -> None:
            self.log("error", error(self.layer, batch), batch_size=len(batch["n"]))

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    model = Model()
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=tmp_path, num_sanity_val_steps=1,
    )  # fmt: skip
    with loader_of(ds) as training, ds.pytorch(batch_size=BATCH) as validation:
        trainer.fit(model, training, validation)
        assert trainer.num_training_batches == STEPS
    assert model.seen == order(ds, 2)
    assert model.losses[-1] < 0.2 * model.losses[0]
    assert "error" in trainer.callback_metrics


def test_lightning_resumes_from_its_checkpoint_in_the_midst_of_an_epoch(ds: Dataset, tmp_path: Path) -> None:
    """Lightning keeps the state of loaders that have one."""
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)
            self.seen: list[int] = []

        def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
            self.seen += batch["n"].tolist()
            return error(self.layer, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    def trained(steps: int, checkpoint: Path | None) -> tuple[list[int], Any]:
        model = Model()
        trainer = lightning.Trainer(
            max_steps=steps, accelerator="cpu", devices=1, logger=False, enable_progress_bar=False,
            enable_model_summary=False, enable_checkpointing=False, default_root_dir=tmp_path,
        )  # fmt: skip
        with loader_of(ds) as loader:
            trainer.fit(model, loader, ckpt_path=None if checkpoint is None else str(checkpoint), weights_only=False)
        return model.seen, trainer

    first, trainer = trained(4, None)
    trainer.save_checkpoint(tmp_path / "four.ckpt")
    then, _ = trained(2 * STEPS, tmp_path / "four.ckpt")
    epochs = order(ds, 2)
    assert first == epochs[0][: 4 * BATCH]
    assert then == epochs[0][4 * BATCH :] + epochs[1]


def test_accelerate_trains_two_epochs(ds: Dataset, tmp_path: Path) -> None:
    import accelerate  # type: ignore[import-untyped]

    accelerator = accelerate.Accelerator(cpu=True)
    model = torch.nn.Linear(4, 1)
    with loader_of(ds) as made:
        model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), made)
        assert len(loader) == STEPS
        seen: list[list[int]] = []
        losses = []
        for epoch in range(2):
            loader.set_epoch(epoch)
            seen.append([])
            for batch in loader:
                loss = error(model, batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
                seen[-1] += batch["n"].tolist()
                losses.append(float(loss.detach()))
    assert seen == order(ds, 2)
    assert losses[-1] < 0.2 * losses[0]


def test_accelerate_keeps_a_loaders_state(ds: Dataset, tmp_path: Path) -> None:
    import accelerate

    accelerator = accelerate.Accelerator(cpu=True)
    with loader_of(ds) as loader:
        accelerator.register_for_checkpointing(loader)
        first = [n for batch in islice(loader, 4) for n in batch["n"].tolist()]
        accelerator.save_state(str(tmp_path / "state"))
        accelerator.load_state(str(tmp_path / "state"))
        rest = [n for batch in loader for n in batch["n"].tolist()]
    assert first + rest == order(ds, 1)[0]
