"""Runs that go on in the middle of an epoch: their first batch, and that no sample comes twice or is lost."""

from benchmarks.loader import nginx
from benchmarks.loader.bench import Line
from benchmarks.loader.proxy import Delays, proxy
from benchmarks.semantics import tables
from benchmarks.semantics.bench import Bench, Part, ask
from benchmarks.semantics.views import ONE, Spec

_DELAY_MS = 30
_TURNS_PER_ROUND = 3
_AT_MOST = 1.3


def resume(bench: Bench) -> Part:
    """Seconds to the first batch of a loader resumed at half an epoch, against a fresh one, 30 ms from the store."""
    images = tables.images(bench.folder, bench.scale)
    specs = {
        "mixture": Spec("mixture", {name: images[name] for name in tables.SHARES}, ["image"]),
        "windows": Spec("windows", {ONE: tables.episode_table(bench.folder, bench.scale)}, ["image", "action"]),
        "packed": Spec("packed", {ONE: tables.token_tables(bench.folder, bench.scale)["documents"]}),
        "weighted": Spec("weighted", {ONE: images[ONE]}, ["image"]),
    }
    bench.warm()
    turns, lines, found = _TURNS_PER_ROUND * bench.rounds, [], {}
    with nginx.serve(bench.folder) as server, proxy(server.port, Delays(_DELAY_MS)) as way:
        for name, spec in specs.items():
            state = ask("ours", "half", spec=spec.to_json())["state"]
            got = ask("ours", "first_batches", spec=spec.at(way).to_json(), state=state, rounds=turns)
            found[name] = got
            fresh, resumed = got["fresh_s"], got["resumed_s"]
            lines.append(Line(f"resume, {name}", resumed, "fresh start", fresh, "s", got["ratio"], at_most=_AT_MOST))
    wrong = ask("exactly_once", "check")
    for name, count in wrong["wrong"].items():
        what = f"resume, {name}, samples twice or lost, {wrong['ranks']} ranks"
        lines.append(Line(what, count, "none", 0, "samples", count, at_most=0))
    return Part(lines, {**found, "exactly_once": wrong}, {"nginx": nginx.version()})
