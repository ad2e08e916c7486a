"""Every kind of source, one file each (a few with a helper beside it)."""

from penstock.ingest.sources._all import SOURCES

__all__ = ["SOURCES"]
