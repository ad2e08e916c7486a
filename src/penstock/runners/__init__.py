"""Processes of this machine: how they start, their messages, what they may use, and work in parts by them."""

from penstock.runners._channel import Channel
from penstock.runners._errors import RemoteError, portable
from penstock.runners._fork_server import ForkedProcess, ForkServer, WorkerProcess, serve_forks
from penstock.runners._machine import available_cores, available_memory
from penstock.runners._processes import can_travel, map_in_processes
from penstock.runners._serving import load_spec, serve, start_thread
from penstock.runners._shipments import Shipment, compact, expand, pack, read_pickled, unpack, write_pickled
from penstock.runners._start import ConnectedProcess

__all__ = [
    "Channel",
    "ConnectedProcess",
    "ForkServer",
    "ForkedProcess",
    "RemoteError",
    "Shipment",
    "WorkerProcess",
    "available_cores",
    "available_memory",
    "can_travel",
    "compact",
    "expand",
    "load_spec",
    "map_in_processes",
    "pack",
    "portable",
    "read_pickled",
    "serve",
    "serve_forks",
    "start_thread",
    "unpack",
    "write_pickled",
]
