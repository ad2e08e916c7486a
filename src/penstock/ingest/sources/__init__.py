"""The built-in sources, one file each, and their helper modules."""

from penstock.ingest.sources._all import SOURCES

__all__ = ["SOURCES"]
