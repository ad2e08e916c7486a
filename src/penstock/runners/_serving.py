"""What processes do alike that a program starts for its work: answer messages, and end with the program.

The contract; if the code disagrees with this list, the code is wrong:

- A process exits at once when its channel is closed: also when the parent dies. It ignores Ctrl-C from the start.
- Whatever ends a thread of it ends the process, and so the parent sees it.
"""

import os
import select
import signal
import socket
import traceback
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any, NoReturn, Protocol

from penstock.runners._channel import Channel


class Role(Protocol):
    """What a process does."""

    def serve(self) -> None:
        """Handle messages until the channel is closed."""


def ignore_interrupts() -> None:
    """Leave Ctrl-C, which `start_python` has blocked, to the program: it ends its processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def serve(
    channel_fd: int,
    new_role: Callable[[Channel], Role],
    describe_failure: Callable[[BaseException], Any],
    *,
    kinds: Sequence[type[tuple[Any, ...]]],
    threads: bool = True,
) -> NoReturn:
    """Handle messages until the channel is closed; without `threads`, the process must stay without any.

    If the role cannot be made, sends a description of the error, and waits for the end.
    """
    channel = Channel(socket.socket(fileno=channel_fd), kinds)
    if threads:
        start_thread("penstock-parent", _exit_with_parent, channel.fileno())
    run_thread(_serve, channel, new_role, describe_failure)
    os._exit(0)  # threads may be inside a request


def _serve(
    channel: Channel, new_role: Callable[[Channel], Role], describe_failure: Callable[[BaseException], Any]
) -> None:
    try:
        role = new_role(channel)
    except BaseException as error:
        channel.send(describe_failure(error))
        while True:  # until the other end is closed
            for descriptor in channel.receive()[1]:
                os.close(descriptor)
    role.serve()


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
