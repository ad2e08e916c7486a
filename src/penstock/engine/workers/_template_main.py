"""The process that builders are forked from: it has imported what they need, once for all of them.

The contract; if the code disagrees with this list, the code is wrong:

- It is started by exec, imports the user's functions, and does nothing else; a fork of it begins with all that, in
  memory that the builders share.
- It forks only while it has one thread. If what it imported has started others, builders are started by exec.
- It waits for the end of a builder when it is told to, so that no other process gets its pid before.
"""

import gc
import os
import pickle
from functools import partial
from pathlib import Path

from penstock.engine.workers._builder_main import BuilderSpec, new_builder
from penstock.engine.workers._messages import Channel, Fork, Forked, Reap, Reaped
from penstock.engine.workers._process import run_process, serve


def main(channel_fd: int, spec_fd: int) -> None:
    """Serve the loader at the other end of a channel."""
    run_process(channel_fd, spec_fd, _Template, threads=False)


class _Template:
    def __init__(self, channel: Channel, spec: BuilderSpec) -> None:
        self._channel, self._spec = channel, spec
        self._formatter = pickle.loads(spec.formatter)

    def serve(self) -> None:
        """Fork builders until the channel is closed."""
        while True:
            message, descriptors = self._channel.receive()
            if isinstance(message, Fork):
                [builder_fd] = descriptors
                self._channel.send(Forked(self._fork(builder_fd)))
                os.close(builder_fd)
            elif isinstance(message, Reap):
                _, status = os.waitpid(message.pid, 0)
                self._channel.send(Reaped(os.waitstatus_to_exitcode(status)))

    def _fork(self, builder_fd: int) -> int | None:
        if len(list(Path("/proc/self/task").iterdir())) > 1:
            return None
        gc.freeze()  # or a collection would copy the memory that processes share
        pid = os.fork()
        if not pid:
            self._channel.close()
            serve(builder_fd, partial(new_builder, spec=self._spec, formatter=self._formatter))
        return pid
