"""Run all benchmarks, or those that are named."""

import importlib
import sys

NAMES = ["write", "read", "commits", "opening", "bitflips", "codecs", "history"]

for name in sys.argv[1:] or NAMES:
    importlib.import_module(f"benchmarks.{name}").main()
