"""Processes of this machine, what they may use of it, and work in parts by them."""

from penstock.runners._machine import available_cores, available_memory
from penstock.runners._processes import can_travel, map_in_processes
from penstock.runners._start import start_connected, start_python

__all__ = [
    "available_cores",
    "available_memory",
    "can_travel",
    "map_in_processes",
    "start_connected",
    "start_python",
]
