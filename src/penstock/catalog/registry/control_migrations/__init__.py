"""Migrations of the control database; a released one never changes, and servers of the version before must still run."""

__all__: list[str] = []
