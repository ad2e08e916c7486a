"""Processes of this machine, and work in parts by them."""

from penstock.runners._processes import can_travel, map_in_processes
from penstock.runners._start import start_connected, start_python

__all__ = ["can_travel", "map_in_processes", "start_connected", "start_python"]
