"""The metrics of requests to the object store: how many, how large, how dear, how slow, and how they fail."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import Metric

from stratalog.objectstore.counted import CountedObjectStore, RequestPrices
from stratalog.server.metrics.families import counters, histograms

_KIND = ("verb", "kind")


def of_requests(store: CountedObjectStore, prices: RequestPrices) -> Iterator[Metric]:
    """Yield the requests by verb and kind, those of the processes of compaction included."""
    counts = sorted(store.counts().items())
    yield counters(
        "object_store_requests",
        "Requests to the object store.",
        _KIND,
        ((kind, count.requests) for kind, count in counts),
    )
    yield counters(
        "object_store_bytes",
        "Bytes that these requests have moved.",
        _KIND,
        ((kind, count.size_bytes) for kind, count in counts),
    )
    yield counters(
        "object_store_cost_dollars",
        "Their price in US dollars, by the configured prices of requests.",
        _KIND,
        ((kind, prices.cost(kind.verb, count.requests)) for kind, count in counts),
    )
    times = sorted(store.times().items())
    yield histograms(
        "object_store_duration_secs",
        "Seconds that the store took for a call.",
        _KIND,
        ((kind, one.durations) for kind, one in times),
    )
    yield counters(
        "object_store_failures",
        "Calls that failed, by the code of their error.",
        (*_KIND, "reason"),
        (((*kind, reason), count) for kind, one in times for reason, count in one.failures.items()),
    )
