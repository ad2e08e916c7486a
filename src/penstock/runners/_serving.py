"""What processes do alike that a program starts for its work: answer messages, and end with the program.

The contract; if the code disagrees with this list, the code is wrong:

- A process exits at once when its channel is closed: also when the parent dies. It ignores Ctrl-C from the start.
- Whatever ends a thread of it ends the process, and so the parent sees it.
"""

import os
import pickle
import select
import signal
import sys
import traceback
from collections.abc import Callable
from importlib.abc import MetaPathFinder
from threading import Thread
from typing import Any, NoReturn

import numpy as np

from penstock.runners._channel import Channel


def ignore_interrupts() -> None:
    """Leave Ctrl-C, which `PythonProcess` has blocked, to the program: it ends its processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


class _NoPandas(MetaPathFinder):
    """Lets pyarrow not find pandas, which it imports for its first array, in a second and 40 MB; conversions retry."""

    def find_spec(self, name: str, *_: object) -> None:
        """Refuse pandas."""
        if name == "pandas":
            raise ModuleNotFoundError(name)


def load_spec(fd: int) -> Any:
    """What a `WorkerProcess` was started with; closes the descriptor.

    To unpickle it imports what its functions need, and nothing else of the user's program.
    """
    if "pandas" not in sys.modules:
        import pyarrow as pa  # processes that are started otherwise do without

        finder = _NoPandas()
        sys.meta_path.insert(0, finder)
        np.asarray(pa.array([0]))
        sys.meta_path.remove(finder)
    spec = pickle.loads(os.pread(fd, os.fstat(fd).st_size, 0))
    os.close(fd)
    return spec


Start = Callable[[], Callable[[], None]]
"""Prepares a process, and returns what then handles messages until the channel is closed."""


def serve(
    channel: Channel, start: Start, describe_failure: Callable[[BaseException], Any], *, threads: bool = True
) -> NoReturn:
    """Handle messages until the channel is closed; without `threads`, the process must stay without any.

    If `start` fails, sends a description of the error, and waits for the end.
    """
    ignore_interrupts()
    if threads:
        start_thread("penstock-parent", _exit_with_parent, channel.fileno())
    run_thread(_serve, channel, start, describe_failure)
    os._exit(0)  # threads may be inside a request


def _serve(channel: Channel, start: Start, describe_failure: Callable[[BaseException], Any]) -> None:
    try:
        handle_messages = start()
    except BaseException as error:
        channel.send(describe_failure(error))
        while True:  # until the other end is closed
            for descriptor in channel.receive()[1]:
                os.close(descriptor)
    handle_messages()


def _exit_with_parent(fd: int) -> None:
    """Exit when the other end of a socket is closed, whatever the main thread does."""
    closed = select.poll()
    closed.register(fd, 0)  # errors and the end are always reported
    closed.poll()
    os._exit(0)


def run_thread(function: Callable[..., None], *args: Any) -> None:
    """What a thread does; its error is the end of the process."""
    try:
        function(*args)
    except (EOFError, ConnectionError):
        pass  # the channel is closed
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def start_thread(name: str, function: Callable[..., None], *args: Any) -> None:
    """Start a thread; its error is the end of the process."""
    Thread(target=run_thread, args=(function, *args), name=name, daemon=True).start()
