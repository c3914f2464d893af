"""Prometheus metrics of the server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class Metrics:
    """Prometheus metrics of one server, in a separate registry: two servers in one process do not add up."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        common: Any = {"namespace": "holdfast", "registry": self._registry}
        self.requests = Counter("requests", "Responses by path and status", ["path", "status"], **common)
        self.seconds = Histogram("request_seconds", "Seconds from request to response", buckets=_SECONDS, **common)
        self.queries = Counter(
            "queries",
            "Queries by outcome: searched, cached, joined to an equal query in flight, refused (429), or searched and "
            "failed",
            ["outcome"],
            **common,
        )
        self.batch_size = Histogram("batch_queries", "Queries per batch", buckets=_SIZES, **common)

    def gauge(self, name: str, help: str, value: Callable[[], float]) -> None:
        """Add a gauge whose value is read on request."""
        Gauge(name, help, namespace="holdfast", registry=self._registry).set_function(value)

    def text(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry)
