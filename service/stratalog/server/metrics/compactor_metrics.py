"""The metrics of a compactor without a server: those of a server about its process, the passes, compaction
and requests to the store, under the same names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from prometheus_client import ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.job_history import Exclusion
from stratalog.compaction.plan.due_partitions import CompactionBacklog
from stratalog.objectstore.counted import CountedObjectStore, RequestPrices
from stratalog.server.background.pass_registry import PassRegistry
from stratalog.server.metrics.pass_metrics import of_passes
from stratalog.server.metrics.shard_metrics import of_backlogs, of_exclusions
from stratalog.server.metrics.store_metrics import of_requests


class MeasuredCompaction(Protocol):
    """The compaction of a store. Thread-safe, and no property waits."""

    @property
    def requests(self) -> CountedObjectStore: ...

    @property
    def prices(self) -> RequestPrices: ...

    def exclusions(self) -> Mapping[TopicIdPartition, Exclusion]:
        """The partitions that are left alone."""
        ...

    def backlogs(self) -> Mapping[int, CompactionBacklog]:
        """The data that is not compacted, by shard."""
        ...


class CompactorMetrics(Collector):
    """The metrics of one compactor. Thread-safe: `compaction` is set once, by one assignment."""

    def __init__(self, passes: PassRegistry) -> None:
        self.compaction: MeasuredCompaction | None = None
        """None until the store is open; its metrics are left out then."""
        self._passes = passes
        self._process = ProcessCollector(registry=None)

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; each request calls it on a thread of the HTTP server."""
        yield from self._process.collect()
        yield from of_passes(self._passes.statuses())
        if self.compaction is not None:
            yield from of_exclusions(self.compaction.exclusions().values())
            yield from of_backlogs(self.compaction.backlogs())
            yield from of_requests(self.compaction.requests, self.compaction.prices)
