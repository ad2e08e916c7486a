"""Delete the objects of tables that were dropped long ago."""

import random
import threading
import time

from penstock.catalog.registry import Registry
from penstock.catalog.vending import Vendor
from penstock.errors import PenstockError
from penstock.server._logging import LOGGER
from penstock.server._metrics import Metrics

_INTERVAL_S = 3600.0
_FIRST_S = 60.0


class Purger:
    """A thread that purges once an hour; several processes may do so at once.

    Objects are removed before the entry, so that a crash in between is repaired by the next run. Nobody can restore a
    table meanwhile, because its time is over.
    """

    def __init__(self, registry: Registry, vendor: Vendor, metrics: Metrics) -> None:
        self._registry = registry
        self._vendor = vendor
        self._metrics = metrics
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-purge", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; a removal that is under way ends with the process."""
        self._stopped.set()

    def purge(self) -> int:
        """Purge once, and return the number of tables."""
        purged = 0
        for info in self._registry.workspaces():
            try:
                purged += self._purge_workspace(info.name)
            except PenstockError as error:  # another workspace may be fine
                LOGGER.error("purge failed", exc_info=error, extra={"fields": {"workspace": info.name}})
        self._metrics.purged(purged)
        return purged

    def _purge_workspace(self, name: str) -> int:
        workspace = self._registry.workspace(name)
        purged = 0
        for row in workspace.expired(time.time()):
            if self._stopped.is_set():
                break
            if row.owned:
                self._vendor.remove(row.location)
            workspace.purge(row.id)
            LOGGER.info("purged", extra={"fields": {"workspace": name, "table": row.name, "location": row.location}})
            purged += 1
        return purged

    def _run(self) -> None:
        wait_s = random.uniform(0, _FIRST_S)
        while not self._stopped.wait(wait_s):
            try:
                self.purge()
            except PenstockError as error:
                LOGGER.error("purge failed", exc_info=error)
            wait_s = _INTERVAL_S
