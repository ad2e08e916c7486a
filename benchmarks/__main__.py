"""Run all benchmarks, or those named; `cores`, `loader`, `query`, `semantics` and `server` take options."""

import importlib
import sys

NAMES = [
    "write", "read", "commits", "opening", "bitflips", "codecs", "history", "petabytes", "ingest", "gpu", "cores",
    "loader", "semantics", "query", "server",
]  # fmt: skip
WITH_OPTIONS = ("cores", "loader", "query", "semantics", "server")

words = sys.argv[1:]
first = next((index for index, word in enumerate(words) if word in WITH_OPTIONS), len(words))
options = words[first + 1 :]
for name in words[: first + 1] or NAMES:
    if name in WITH_OPTIONS:
        importlib.import_module(f"benchmarks.{name}.command").main(options)
    else:
        importlib.import_module(f"benchmarks.{name}").main()
