"""Make a small table of labelled images, stripes in four directions, for the other examples to train on.

To run it:

    python examples/make_table.py /tmp/stripes
    python examples/make_table.py s3://your-bucket/stripes --rows 100000
"""

import argparse
from collections.abc import Iterator

import numpy as np

import penstock

SIZE = 32
CLASSES = {"flat": (0, 1), "rising": (1, 1), "upright": (1, 0), "falling": (1, -1)}


def images(rows: int) -> Iterator[dict[str, object]]:
    """Rows one by one: a table may be larger than memory."""
    rng = np.random.default_rng(0)
    x, y = np.meshgrid(np.arange(SIZE), np.arange(SIZE))
    for _ in range(rows):
        label = rng.choice(list(CLASSES))
        across, down = CLASSES[label]
        wave = np.sin((across * x + down * y) * rng.uniform(0.6, 1.2) + rng.uniform(0, 2 * np.pi))
        color = rng.uniform(40, 110, 3)
        image = 128 + wave[:, :, None] * color + rng.normal(0, 20, (SIZE, SIZE, 3))
        yield {"image": image.clip(0, 255).astype(np.uint8), "label": label}


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a small table of labelled images.")
    parser.add_argument("table", help="where: a folder, s3://bucket/prefix, gs://…, az://… or penstock://org/name")
    parser.add_argument("--rows", type=int, default=8192)
    args = parser.parse_args()

    schema = {"image": penstock.Image("jpeg:90", (SIZE, SIZE, 3)), "label": penstock.Label(list(CLASSES))}
    ds = penstock.create(args.table, schema)
    ds.append(images(args.rows))
    version = ds.commit("stripes in four directions")
    print(f"{len(ds):,} rows in {args.table}, committed as {version}")


if __name__ == "__main__":
    main()
