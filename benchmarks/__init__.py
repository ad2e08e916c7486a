"""Timings and counts, each a ratio inside one run: `python -m benchmarks [NAME …]`."""
