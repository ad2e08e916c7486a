"""Prometheus metrics, of this process or of all worker processes together."""

import os

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

MULTIPROCESS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"
"""The variable of prometheus_client that names the folder in which worker processes share their metrics."""
_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """What a server counts; labels are path templates and never ids, so that their number is fixed."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "penstock_requests", "Requests.", ("method", "path", "status"), registry=self._registry
        )
        self._seconds = Histogram(
            "penstock_request_seconds", "Duration of requests.", ("method", "path"), buckets=_BUCKETS,
            registry=self._registry,
        )  # fmt: skip
        self._in_flight = Gauge(
            "penstock_requests_in_flight", "Requests that are being answered.", registry=self._registry,
            multiprocess_mode="livesum",
        )  # fmt: skip
        self._audit_dropped = Counter(
            "penstock_audit_events_dropped", "Audit events that were lost, because the database was away for too long.",
            registry=self._registry,
        )  # fmt: skip
        self._purged = Counter("penstock_purged_tables", "Dropped tables that were deleted.", registry=self._registry)

    def begin(self) -> None:
        """Count a request that has begun."""
        self._in_flight.inc()

    def end(self, method: str, path: str, status: int, seconds: float) -> None:
        """Count a request that was answered."""
        self._in_flight.dec()
        self._requests.labels(method, path, str(status)).inc()
        self._seconds.labels(method, path).observe(seconds)

    def audit_dropped(self) -> None:
        """Count an audit event that was lost."""
        self._audit_dropped.inc()

    def purged(self, tables: int) -> None:
        """Count dropped tables that were deleted."""
        self._purged.inc(tables)

    def text(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        if MULTIPROCESS_FOLDER not in os.environ:
            return generate_latest(self._registry)
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)
