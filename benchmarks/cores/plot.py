"""Draw rows per second over the number of workers: `plot FIGURES.json IMAGE.png`; needs matplotlib alone."""

import json
import sys
from typing import Any

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, LogLocator

TITLES = {
    "jpeg": ("JPEG 256 x 256, decoded", "processes that only decode"),
    "raw": ("raw images, 224 x 224 x 3", "numpy.take, threads"),
    "tokens": ("tokens, 1024 x uint16", "numpy.take, threads"),
}
LINES = {"ours": ("penstock", "o-", "tab:blue"), "peer": ("torch DataLoader", "s-", "tab:orange")}


def draw(record: dict[str, Any], target: str) -> None:
    matplotlib.use("agg")
    names = [name for name in TITLES if record["parts"].get(name, {}).get("curve")]
    if not names:
        return
    figure, panels = pyplot.subplots(
        1, len(names), figsize=(4.2 * len(names), 3.8), layout="constrained", squeeze=False
    )
    for panel, name in zip(panels.flat, names, strict=True):
        _curves(panel, record["parts"][name]["curve"], *TITLES[name])
    panels.flat[0].set_ylabel("rows/s")
    figure.suptitle(f"Shuffled batches of 256, {record['machine']}, {record['date'][:10]}", fontsize=10)
    figure.savefig(target, dpi=120)


def _curves(panel: Axes, points: list[dict[str, Any]], title: str, limit: str) -> None:
    counts = [point["workers"] for point in points]
    panel.plot(counts, [_number(point["limit"]) for point in points], "--", color="dimgrey", label=f"limit: {limit}")
    for role, (label, style, colour) in LINES.items():
        panel.plot(counts, [_number(point[role]) for point in points], style, color=colour, label=label)
    panel.set(xscale="log", yscale="log", xlabel="workers", title=title)
    panel.minorticks_off()
    panel.set_xticks(counts, [str(count) for count in counts])
    panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.yaxis.set_major_formatter(EngFormatter(sep=""))
    panel.grid(which="major", alpha=0.3)
    panel.legend(fontsize=7)


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        draw(json.load(file), sys.argv[2])
    print(json.dumps({"image": sys.argv[2]}))
