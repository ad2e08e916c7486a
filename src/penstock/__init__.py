"""Penstock: a data lake for training. Tensors in chunks on object storage, streamed to GPUs."""

from penstock._front_door import install

install(__name__)
