"""Run all benchmarks, or those that are named; what follows `loader` are its own options."""

import importlib
import sys

NAMES = ["write", "read", "commits", "opening", "bitflips", "codecs", "history", "petabytes", "ingest", "gpu", "loader"]

words = sys.argv[1:]
options = words[words.index("loader") + 1 :] if "loader" in words else []
for name in words[: len(words) - len(options)] or NAMES:
    if name == "loader":
        importlib.import_module("benchmarks.loader.command").main(options)
    else:
        importlib.import_module(f"benchmarks.{name}").main()
