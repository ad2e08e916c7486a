"""Packed sequences against rows of as many tokens, and against a map of Hugging Face `datasets`."""

from functools import partial
from typing import Any

from benchmarks.loader.bench import Job, Line, median
from benchmarks.semantics import tables
from benchmarks.semantics.bench import Bench, Part, ask, compared, in_turns, peer, peer_files, throughput
from benchmarks.semantics.data import SEQUENCE
from benchmarks.semantics.views import BATCH_SIZE, ONE, WORKERS, Spec

FIXED = f"rows of {SEQUENCE} tokens"
_PEER_TOKENS = 20_000_000
_OF_FIXED, _TO_PEER, _FILL = 0.8, 5.0, 0.97
_PEERS = {"datasets, map of arrays": "numpy", "datasets, map of lists": "lists"}


def packing(bench: Bench) -> Part:
    """Tokens a second by policy, with all columns and with tokens only; free places do not count."""
    made = tables.token_tables(bench.folder, bench.scale)
    bench.warm()
    specs = {
        f"{policy}, {name}": Spec("packed", {ONE: made["documents"]}, columns, policy)
        for policy in ("concat", "fit")
        for name, columns in (("all columns", None), ("tokens only", ["tokens"]))
    }
    fills = {
        policy: ask("ours", "fill", spec=specs[f"{policy}, all columns"].to_json()) for policy in ("concat", "fit")
    }
    jobs: dict[str, Job] = {name: throughput(bench, spec) for name, spec in specs.items()}
    found = in_turns(bench, jobs | {FIXED: throughput(bench, Spec("rows", {ONE: made["fixed"]}))})
    lines = []
    for name, spec in specs.items():
        held = SEQUENCE * fills[spec.policy]["fill"]
        lines += compared(
            f"packed, {name}", found[name], FIXED, found[FIXED],
            unit="tokens/s", per_sample=(held, SEQUENCE), at_least=_OF_FIXED,
        )  # fmt: skip
    fill = fills["fit"]["fill"]
    lines.append(Line("packed, fit, places filled", fill, "all places", 1.0, "share", fill, at_least=_FILL))
    if not bench.with_peers:
        return Part(lines, {**found, "fill": fills})
    theirs, versions = _datasets(bench)
    ours = min(line.ours for line in lines if line.figure.startswith("packed, concat, all columns"))
    for name, answers in theirs.items():
        rate = median(answers, "samples_per_s") * SEQUENCE
        lines.append(Line("packed, concat, all columns", ours, name, rate, "tokens/s", ours / rate, at_least=_TO_PEER))
    return Part(lines, {**found, "fill": fills, **theirs}, versions)


def _datasets(bench: Bench) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """Sequences a second of the usual map, on lists, and of a faster one, on arrays."""
    tokens = max(64 * SEQUENCE, round(_PEER_TOKENS * min(1.0, bench.scale)))
    folder = bench.folder / "peers" / f"documents-{tokens}"
    root = peer_files(folder, lambda root: peer("write_documents", root=root, tokens=tokens))
    options = {"root": root, "batch_size": BATCH_SIZE, "workers": WORKERS, "seconds": bench.seconds}
    jobs = {name: partial(peer, "read_packed", variant=variant, **options) for name, variant in _PEERS.items()}
    found = in_turns(bench, jobs, "samples_per_s")
    return found, next(iter(found.values()))[0]["versions"]
