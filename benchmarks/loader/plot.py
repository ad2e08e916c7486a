"""Draw the figures, in the peers' environment, which has matplotlib: `plot FIGURES.json IMAGE.png`."""

import json
import sys
from typing import Any

import matplotlib
from matplotlib import pyplot
from matplotlib.axes import Axes

OURS = "penstock"
COLOURS = {OURS: "tab:blue", "limit": "dimgrey"}
PEER = "lightgrey"
LOG_FROM = 30
"""The ratio of longest to shortest bar from which a scale is logarithmic."""
TITLES = {
    "tokens": "tokens, 1024 x uint16",
    "images": "raw images, 224 x 224 x 3",
    "jpeg": "JPEG 256 x 256, decoded",
}


def draw(records: dict[str, dict[str, Any]], target: str) -> None:
    matplotlib.use("agg")
    names = [name for name in TITLES if name in records]
    drawn = len(names) + ("latency" in records)
    if not drawn:
        return
    columns = min(2, drawn)
    lines = -(-drawn // columns)
    figure, grid = pyplot.subplots(
        lines, columns, figsize=(6 * columns, 3.4 * lines), layout="constrained", squeeze=False
    )
    panels = iter(grid.flat)
    for name in names:
        _bars(next(panels), records[name]["figures"], TITLES[name])
    if "latency" in records:
        _latency(next(panels), records["latency"]["figures"])
    for panel in panels:
        panel.set_visible(False)
    any_record = next(iter(records.values()))
    figure.suptitle(f"Shuffled batches, {any_record['machine']}, {any_record['date'][:10]}", fontsize=10)
    figure.savefig(target, dpi=120)


def _bars(panel: Axes, rows: list[dict[str, Any]], title: str) -> None:
    order = sorted(rows, key=lambda row: row["rows/s"])
    bars = panel.barh(
        [row["loader"] for row in order],
        [row["rows/s"] for row in order],
        color=[COLOURS.get(row["loader"].partition(":")[0], PEER) for row in order],
    )
    panel.bar_label(bars, labels=[f"{row['rows/s']:,.0f}" for row in order], padding=2, fontsize=7)
    far_apart = order[-1]["rows/s"] > LOG_FROM * order[0]["rows/s"]
    panel.set(xscale="log" if far_apart else "linear", xlabel="rows/s", title=title)
    panel.margins(x=0.25)
    panel.tick_params(labelsize=8)


def _latency(panel: Axes, rows: list[dict[str, Any]]) -> None:
    delays = [str(row["delay ms"]) for row in rows]
    panel.plot(delays, [row["line GB/s"] for row in rows], "--", color="black", label="line rate")
    panel.plot(delays, [row["GB/s"] for row in rows], "o-", color=COLOURS[OURS], label=OURS)
    panel.set(xlabel="ms added to each request", ylabel="GB/s", ylim=(0, None), title="raw images from S3")
    panel.legend()


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        found = json.load(file)["records"]
    draw({record["benchmark"].partition("-")[2]: record for record in found}, sys.argv[2])
    print(json.dumps({"image": sys.argv[2]}))
