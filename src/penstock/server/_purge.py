"""Delete the objects of tables that were dropped long ago."""

import random
import threading

from penstock.catalog.registry import Registry, TableRow, Workspace
from penstock.catalog.vending import Vendor
from penstock.errors import PenstockError
from penstock.server._logging import LOGGER
from penstock.server._metrics import Metrics

_INTERVAL_S = 3600.0
"""As long as the claim of a process on an expired table: what one round could not delete, the next one tries again."""
_FIRST_S = 10.0
"""Processes that start together spread their first rounds over this time."""


class Purger:
    """A thread that purges at an interval; several processes may do so at once.

    Objects are removed before the entry, so that a crash in between is repaired by the next run. Nobody can restore a
    table meanwhile, because its time is over.
    """

    def __init__(
        self, registry: Registry, vendor: Vendor, metrics: Metrics, *, interval_s: float = _INTERVAL_S
    ) -> None:
        self._registry = registry
        self._vendor = vendor
        self._metrics = metrics
        self._interval_s = interval_s
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
                workspace = self._registry.workspace(info.name)
                purged += sum(self._purge_table(workspace, row) for row in workspace.expired())
            except PenstockError as error:  # another workspace may be fine
                LOGGER.error("purge failed", exc_info=error, extra={"fields": {"workspace": info.name}})
        self._metrics.purged(purged)
        return purged

    def _purge_table(self, workspace: Workspace, row: TableRow) -> bool:
        """Delete a table; one that cannot be deleted now does not keep others from it."""
        if self._stopped.is_set():
            return False
        fields = {"workspace": workspace.name, "table": row.name, "location": row.location}
        try:
            if row.owned:
                self._vendor.remove(row.location)
            workspace.purge(row.id)
        except Exception as error:
            LOGGER.error("purge failed", exc_info=error, extra={"fields": fields})
            return False
        LOGGER.info("purged", extra={"fields": fields})
        return True

    def _run(self) -> None:
        wait_s = random.uniform(0, min(_FIRST_S, self._interval_s))
        while not self._stopped.wait(wait_s):
            try:
                self.purge()
            except Exception as error:  # the thread goes on: the next round may succeed
                LOGGER.error("purge failed", exc_info=error)
            wait_s = self._interval_s
