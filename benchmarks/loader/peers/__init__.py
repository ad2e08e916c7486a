"""Other loaders, each in a file: `write` the rows in its format, `loader` to read them shuffled.

They run in an environment of their own, as `python -m benchmarks.loader.peers`.
"""
