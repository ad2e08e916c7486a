"""Loaders for each framework over the engine: one thin file each, imported on first use."""

__all__ = ()
