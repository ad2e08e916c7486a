"""The loader against other loaders, the processor, the disk and the network: `python -m benchmarks loader`."""
