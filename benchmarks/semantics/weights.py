"""A weighted draw of a tenth of the rows, clustered by page: what it fetches."""

from benchmarks.loader.bench import Line
from benchmarks.semantics import tables
from benchmarks.semantics.bench import Bench, Part, ask
from benchmarks.semantics.views import ONE, Spec

_AT_MOST = 1.5


def weights(bench: Bench) -> Part:
    """Bytes fetched by an epoch, relative to those of the rows drawn; a row that is drawn twice counts twice."""
    table = tables.images(bench.folder, bench.scale)[ONE]
    spec = Spec("weighted", {ONE: table}, ["image", "_row_id"])
    cost = ask("costs", "weighted", spec=spec.to_json())
    drawn, different = cost["bytes_per_drawn"], cost["bytes_per_different"]
    lines = [
        Line("weights, bytes fetched", drawn, "bytes drawn", 1.0, "ratio", drawn, at_most=_AT_MOST),
        Line("weights, bytes fetched", different, "bytes of different rows drawn", 1.0, "ratio", different),
    ]
    return Part(lines, {"cost": cost})
