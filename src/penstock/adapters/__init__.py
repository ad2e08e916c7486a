"""The engine's batches for each framework: one thin file each, imported when asked for."""

__all__ = ()
