"""Train a diffusion policy on windows of robot episodes: two images, and the sixteen actions that follow.

It makes a small table of episodes if there is none. To run it:

    python examples/train_policy.py /tmp/robot --checkpoint /tmp/robot.pt
"""

import argparse
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

import penstock

SIZE, HORIZON, NOISE_LEVELS = 24, 16, 50


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small diffusion policy from a table of robot episodes.")
    parser.add_argument("table", help="a folder, s3://bucket/prefix, gs://…, az://… or penstock://org/name")
    parser.add_argument("--checkpoint", type=Path, default=Path("train_policy.pt"))
    parser.add_argument("--episodes", type=int, default=100, help="of the table, if it has to be made")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-steps", type=int, help="stop after so many steps; run it again to go on")
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--print-every", type=int, default=20, metavar="STEPS")
    args = parser.parse_args()

    if not penstock.exists(args.table):
        make_table(args.table, args.episodes)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    saved = torch.load(args.checkpoint, map_location=device) if args.checkpoint.exists() else None

    # A run stays with the version it began with, whatever others commit meanwhile.
    ds = penstock.load(args.table, version=saved["version"] if saved else None)
    windows = ds.windows(
        within="episode",
        order_by="step",
        offsets={"camera": [-1, 0], "action": range(HORIZON)},
        ends="pad",  # the last actions of an episode are learnt too; action_pad flags what is repeated after them
    )
    loader = windows.select(["camera", "action"]).pytorch(batch_size=args.batch_size, shuffle=True, device=device)

    torch.manual_seed(0)
    model = Policy().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
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
            loss = loss_of(model, batch, step)
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
    print(f"stopped after step {step}, with {loader.stats().rows:,} windows read in this run")
    print(loader.stats().bottleneck)


class Policy(nn.Module):
    """Predicts the noise in a sequence of actions, given what the camera sees and how much noise there is."""

    def __init__(self) -> None:
        super().__init__()
        self.camera = nn.Sequential(
            nn.Conv2d(6, 16, 5, stride=2), nn.GELU(), nn.Conv2d(16, 32, 3, stride=2), nn.GELU(), nn.Flatten()
        )
        self.level = nn.Embedding(NOISE_LEVELS, 32)
        self.noise = nn.Sequential(
            nn.Linear(512 + 32 + 2 * HORIZON, 256),
            nn.GELU(),
            nn.Linear(256, 2 * HORIZON),
            nn.Unflatten(1, (HORIZON, 2)),
        )

    def forward(self, camera: torch.Tensor, noisy: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        images = camera.permute(0, 1, 4, 2, 3).flatten(1, 2).float() / 255  # two images are six channels
        return self.noise(torch.cat([self.camera(images), self.level(level), noisy.flatten(1)], dim=1))


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor], step: int) -> torch.Tensor:
    """The error of the predicted noise. The noise depends on the step only, so that a resumed run repeats it."""
    actions = batch["action"]
    random = torch.Generator(actions.device).manual_seed(step)
    level = torch.randint(NOISE_LEVELS, (len(actions),), generator=random, device=actions.device)
    noise = torch.randn(actions.shape, generator=random, device=actions.device)
    angle = (0.5 * math.pi * (level + 1) / (NOISE_LEVELS + 1))[:, None, None]
    predicted = model(batch["camera"], angle.cos() * actions + angle.sin() * noise, level)
    known = ~batch["action_pad"][:, :, None]
    return ((predicted - noise) ** 2 * known).sum() / (2 * known.sum())


def make_table(table: str, episodes: int) -> None:
    schema = {
        "episode": penstock.Tensor("int64"),
        "step": penstock.Tensor("int64"),
        "camera": penstock.Image("png", (SIZE, SIZE, 3)),
        "action": penstock.Tensor("float32", (2,)),
    }
    ds = penstock.create(table, schema)
    ds.append(row for episode in range(episodes) for row in drive(episode))
    ds.commit(f"{episodes} episodes")


def drive(episode: int) -> Iterator[dict[str, object]]:
    """The steps of a robot, red, that drives to its goal, green."""
    random = np.random.default_rng(episode)
    robot, goal = random.uniform(2, SIZE - 3, (2, 2))
    for step in range(random.integers(10, 40)):
        camera = np.zeros((SIZE, SIZE, 3), np.uint8)
        for channel, (x, y) in enumerate(np.round([robot, goal]).astype(int)):
            camera[y - 1 : y + 2, x - 1 : x + 2, channel] = 255
        action = np.clip(0.2 * (goal - robot), -1, 1) + random.normal(0, 0.05, 2)
        yield {"episode": episode, "step": step, "camera": camera, "action": action.astype(np.float32)}
        robot = np.clip(robot + action, 2, SIZE - 3)


if __name__ == "__main__":
    main()
