"""What a server tells Prometheus."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """Counters of one server. A registry of its own, so that two servers in one process do not add up."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self._registry = own = CollectorRegistry()
        self.requests = Counter("holdfast_requests", "Answers by path and status", ["path", "status"], registry=own)
        self.seconds = Histogram("holdfast_request_seconds", "From request to answer", buckets=_SECONDS, registry=own)
        self.queries = Counter(
            "holdfast_queries",
            "Queries that were searched, found in the cache, joined to an equal one under way, refused (429), and of "
            "those searched the ones that failed",
            ["outcome"],
            registry=own,
        )
        self.batch_size = Histogram("holdfast_batch_queries", "Queries in a batch", buckets=_SIZES, registry=own)

    def watch(self, name: str, what: str, value: Callable[[], float]) -> None:
        """A gauge that is read when it is asked for."""
        Gauge(name, what, registry=self._registry).set_function(value)

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self._registry)
