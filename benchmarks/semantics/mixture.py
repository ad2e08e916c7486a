"""A mixture of three tables of raw images against one table of as many rows."""

from benchmarks.semantics import tables
from benchmarks.semantics.bench import OURS, Bench, Part, compared, in_turns, throughput
from benchmarks.semantics.views import ONE, Spec

_AT_LEAST = 0.95


def mixture(bench: Bench) -> Part:
    """Rows a second of both; an epoch of the mixture reads every row of its tables once."""
    made = tables.images(bench.folder, bench.scale)
    mixed = Spec("mixture", {name: made[name] for name in tables.SHARES}, ["image"])
    bench.warm()
    found = in_turns(
        bench, {OURS: throughput(bench, mixed), ONE: throughput(bench, Spec("rows", {ONE: made[ONE]}, ["image"]))}
    )
    lines = compared("mixture", found[OURS], "one table", found[ONE], unit="rows/s", at_least=_AT_LEAST)
    return Part(lines, found)
