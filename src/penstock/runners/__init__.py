"""Work in parts, by processes of this machine."""

from penstock.runners._processes import can_travel, map_in_processes

__all__ = ["can_travel", "map_in_processes"]
