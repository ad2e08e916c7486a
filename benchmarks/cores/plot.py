"""Draw rows per second relative to torch's DataLoader: `plot FIGURES.json IMAGE.png`; needs matplotlib alone."""

import json
import sys
from typing import Any

import matplotlib
from matplotlib import pyplot

TITLES = {
    "jpeg": "JPEG 256 x 256, decoded",
    "crops": "JPEG of many sizes, RandomResizedCrop",
    "lists": "JPEG of many sizes, lists",
    "raw": "raw images, 224 x 224 x 3",
    "tokens": "tokens, 1024 x uint16",
    "resident": "tokens that fit in memory, epoch 2 on",
    "text": "text of 2.5 KB",
    "tokenized": "text, Python batch_transform",
}
OURS, LIMIT, PEER = "tab:blue", "dimgrey", "tab:orange"
_NEAR = 4.0
"""A limit that is higher by less than this is where the text of a bar would be."""


def draw(record: dict[str, Any], target: str) -> None:
    """A bar for each part, at the largest number of workers."""
    matplotlib.use("agg")
    last = {name: part["curve"][-1] for name, part in record["parts"].items() if part.get("curve")}
    shown = [(title, last[name]) for name, title in TITLES.items() if name in last and last[name]["peer"]]
    if not shown:
        return
    figure, panel = pyplot.subplots(figsize=(9, 0.42 * len(shown) + 1.3), layout="constrained")
    for row, (_, point) in enumerate(shown):
        ratio = point["ours"] / point["peer"]
        panel.barh(row, ratio - 1, left=1, height=0.55, color=OURS, label=None if row else "penstock")
        limit = (point["limit"] or 0.0) / point["peer"]
        if limit:
            label = None if row else "limit: as many processes or threads that do only this work"
            panel.plot(limit, row, "D", markersize=5, color=LIMIT, label=label)
        text, at = f"{point['ours']:,.0f} rows/s, {ratio:.1f}x", limit if ratio < limit < _NEAR * ratio else ratio
        panel.annotate(text, (at, row), (8, 0), textcoords="offset points", va="center", fontsize=8)
    panel.axvline(1, color=PEER, label="torch DataLoader")
    panel.set(xscale="log", xlabel="rows per second, relative to torch's DataLoader")
    panel.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
    panel.minorticks_off()
    panel.set_yticks(range(len(shown)), [title for title, _ in shown])
    panel.invert_yaxis()
    panel.grid(axis="x", alpha=0.3)
    panel.legend(fontsize=8, loc="lower right")
    workers = max(point["workers"] for _, point in shown)
    figure.suptitle(f"Shuffled, {workers} workers, {record['machine']}, {record['date'][:10]}", fontsize=10)
    figure.savefig(target, dpi=120)


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        draw(json.load(file), sys.argv[2])
    print(json.dumps({"image": sys.argv[2]}))
