"""A worker process: receive a function, then call it for one item after the other."""

import os
import signal
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

from penstock.errors import PenstockError, text_of


def main(descriptor: int) -> None:
    """Serve until the other side closes the connection."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program, which ends its workers
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    connection = Connection(descriptor)
    try:
        function, failure = None, None
        try:
            function = cloudpickle.loads(connection.recv_bytes())
        except EOFError:
            raise
        except BaseException as error:
            failure = error
        while True:
            item = connection.recv_bytes()
            connection.send_bytes(_answer(function, failure, item))
    except (EOFError, OSError):
        os._exit(0)


def _answer(function: Any, failure: BaseException | None, item: bytes) -> bytes:
    """A result and an error, of which one is None."""
    try:
        if failure is not None:
            raise failure
        return bytes(cloudpickle.dumps((function(cloudpickle.loads(item)), None)))
    except BaseException as error:
        try:
            data: bytes = cloudpickle.dumps((None, error))
            cloudpickle.loads(data)  # an error that cannot be loaded is told in words
            return data
        except BaseException:
            told = PenstockError(f"a function raised {type(error).__name__}: {text_of(error)}")
            return bytes(cloudpickle.dumps((None, told)))
