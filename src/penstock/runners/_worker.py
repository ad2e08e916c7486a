"""A worker process: receive a function, then call it for one item after the other."""

import os
import pickle
from collections.abc import Callable
from functools import cache, partial
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from penstock.runners._errors import portable
from penstock.runners._serving import ignore_interrupts


def main(descriptor: int) -> None:
    """Serve until the other side closes the connection."""
    ignore_interrupts()
    connection = Connection(descriptor)
    try:
        function = cache(partial(cloudpickle.loads, connection.recv_bytes()))
        while True:
            connection.send_bytes(_answer(function, connection.recv_bytes()))
    except (EOFError, OSError):
        os._exit(0)


def _answer(function: Callable[[], Any], item: bytes) -> bytes:
    """A result, or an error: that of the function, or why there is none."""
    try:
        return bytes(cloudpickle.dumps(function()(cloudpickle.loads(item))))
    except BaseException as error:
        return pickle.dumps(portable(error))
