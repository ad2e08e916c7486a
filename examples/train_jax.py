"""Train with JAX on all devices of a machine: batches lie on their devices before the step that needs them.

To run it:

    python examples/train_jax.py /tmp/stripes --checkpoint /tmp/stripes.pickle
"""

import argparse
import pickle
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

import penstock


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small classifier of images with JAX.")
    parser.add_argument("table", help="a folder, s3://bucket/prefix, gs://…, az://… or penstock://org/name")
    parser.add_argument("--checkpoint", type=Path, default=Path("train_jax.pickle"))
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="shared by the devices")
    parser.add_argument("--max-steps", type=int, help="stop after so many steps; run it again to go on")
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--print-every", type=int, default=20, metavar="STEPS")
    args = parser.parse_args()

    saved = pickle.loads(args.checkpoint.read_bytes()) if args.checkpoint.exists() else None

    # A run stays with the version it began with, whatever others commit meanwhile.
    ds = penstock.load(args.table, version=saved["version"] if saved else None)
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    loader = ds.select(["image", "label"]).jax(
        batch_size=args.batch_size,
        shuffle=True,
        drop_last=True,  # a short batch would be compiled for, and could not be shared by all devices
        sharding=NamedSharding(mesh, PartitionSpec("data")),
    )

    if saved:
        model, momenta, step = saved["model"], saved["momenta"], saved["step"]
        loader.load_state_dict(saved["loader"])
        print(f"going on after step {step}")
    else:
        model, step = new_model(len(ds.schema["label"].kind.names)), 0
        momenta = jax.tree.map(jnp.zeros_like, model)
    model, momenta = jax.device_put((model, momenta), NamedSharding(mesh, PartitionSpec()))

    def save() -> None:
        state = {"model": jax.device_get(model), "momenta": jax.device_get(momenta), "loader": loader.state_dict()}
        unfinished = args.checkpoint.with_suffix(".unfinished")
        unfinished.write_bytes(pickle.dumps({**state, "version": ds.version, "step": step}))
        unfinished.replace(args.checkpoint)  # a run that is killed here leaves the old checkpoint whole

    stop = None if args.max_steps is None else step + args.max_steps
    for epoch in range(loader.epoch, args.epochs):
        for batch in loader:
            model, momenta, loss = update(model, momenta, batch["image"], batch["label"])
            step += 1
            if step % args.print_every == 0:
                print(f"epoch {epoch}, step {step}: loss {loss:.3f}")
            if step % args.save_every == 0:
                save()
            if step == stop:
                break
        if step == stop:
            break
    save()
    print(f"stopped after step {step}; {loader.stats().bottleneck}")


def new_model(classes: int) -> dict[str, Any]:
    first, second = jax.random.split(jax.random.key(0))
    return {
        "filters": jax.random.normal(first, (5, 5, 3, 16)) / 9,
        "bias": jnp.zeros(16),
        "weights": jax.random.normal(second, (16, classes)) / 4,
    }


def loss_of(model: dict[str, Any], images: jax.Array, labels: jax.Array) -> jax.Array:
    pixels = images.astype(jnp.float32) / 255
    layout = ("NHWC", "HWIO", "NHWC")
    seen = jax.lax.conv_general_dilated(pixels, model["filters"], (2, 2), "VALID", dimension_numbers=layout)
    scores = jax.nn.gelu(seen + model["bias"]).mean((1, 2)) @ model["weights"]
    return -jnp.take_along_axis(jax.nn.log_softmax(scores), labels[:, None], axis=1).mean()


@jax.jit
def update(model: Any, momenta: Any, images: jax.Array, labels: jax.Array) -> tuple[Any, Any, jax.Array]:
    loss, slopes = jax.value_and_grad(loss_of)(model, images, labels)
    momenta = jax.tree.map(lambda momentum, slope: 0.9 * momentum + slope, momenta, slopes)
    return jax.tree.map(lambda value, momentum: value - 0.05 * momentum, model, momenta), momenta, loss


if __name__ == "__main__":
    main()
