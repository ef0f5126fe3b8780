"""All metrics of a server: snapshots of its components, taken at each request.

A metric that Kafka has too gets Kafka's type and name, in Prometheus' spelling (`LogCleanerManager`,
`uncleanable-partitions-count`: `stratalog_log_cleaner_manager_uncleanable_partitions_count`); docs/metrics.md
lists both names. Nothing is counted here, and no request waits for a log or a disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from stratalog.manager.log_manager import LogManager
from stratalog.objectstore.counted import CountedObjectStore, RequestPrices
from stratalog.remote.read.object_reads import ObjectReads
from stratalog.server.access.access_control import AccessControl
from stratalog.server.access.quotas import Quotas
from stratalog.server.access.reloaded_files import ReloadedFiles
from stratalog.server.access.server_tls import ServerTls
from stratalog.server.append.long_validation import LongValidations
from stratalog.server.background.local_cleaning import LocalCleaning
from stratalog.server.background.local_retention import LocalRetention
from stratalog.server.background.pass_registry import PassRegistry
from stratalog.server.background.tail_commits import TailCommits
from stratalog.server.background.thread_scheduler import ThreadScheduler
from stratalog.server.background.tier_compaction import TierCompaction
from stratalog.server.call_counts import CallCounts, CallKind
from stratalog.server.copy_lag import CopyLag
from stratalog.server.meters.append_groups import AppendGroups
from stratalog.server.meters.call_meter import CallMeter
from stratalog.server.meters.error_counts import ErrorCounts
from stratalog.server.metrics.access_metrics import of_access, of_certificate, of_reloads
from stratalog.server.metrics.append_metrics import of_commits, of_flushes, of_groups, of_long_turns
from stratalog.server.metrics.cache_metrics import of_caches, of_metadata_cache, of_remote_reads
from stratalog.server.metrics.call_metrics import of_call_kinds, of_errors, of_methods
from stratalog.server.metrics.families import counter, gauge, gauges
from stratalog.server.metrics.log_metrics import (
    of_cleaner,
    of_directories,
    of_disk_waits,
    of_logs,
    of_moves,
    of_uncleanable,
)
from stratalog.server.metrics.pass_metrics import of_copy_lag, of_passes, of_tiering
from stratalog.server.metrics.queue_metrics import of_memories, of_pools, of_space
from stratalog.server.metrics.shard_metrics import (
    of_backlogs,
    of_exclusions,
    of_shards,
    of_verification,
    stored_bytes,
)
from stratalog.server.metrics.store_metrics import of_requests
from stratalog.server.operations.verification_log import VerificationLog
from stratalog.server.partitions.free_space import FreeSpace
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.partitions.shard_set import ShardSet
from stratalog.server.request_memory import RequestMemories
from stratalog.server.worker_pools import WorkerPools


class ServerMetrics(Collector):
    """The metrics of one server. Thread-safe: each source is set once, by one assignment. Metrics without a
    source are left out."""

    def __init__(self) -> None:
        self.logs: LogManager | None = None
        self.cleaning: LocalCleaning | None = None
        self.local_retention: LocalRetention | None = None
        self.registry: PartitionRegistry | None = None
        self.schedulers: tuple[ThreadScheduler, ...] = ()
        self.passes: PassRegistry | None = None
        self.shards: ShardSet | None = None
        self.verifications: VerificationLog | None = None
        self.reads: ObjectReads | None = None
        self.requests: CountedObjectStore | None = None
        self.prices: Callable[[], RequestPrices] = RequestPrices
        self.calls: Mapping[CallKind, CallCounts] = {}
        self.awaited_request_count: Callable[[], int] = lambda: 0
        self.methods: CallMeter | None = None
        self.errors: ErrorCounts | None = None
        self.groups: AppendGroups | None = None
        self.validations: LongValidations | None = None
        self.memories: RequestMemories | None = None
        self.pools: WorkerPools | None = None
        self.space: FreeSpace | None = None
        self.commits: Sequence[TailCommits] = ()
        self.copy_lag: CopyLag | None = None
        self.compaction: TierCompaction | None = None
        self.access: AccessControl | None = None
        self.quotas: Quotas | None = None
        self.reloaded_files: Sequence[ReloadedFiles] = ()
        self.tls: ServerTls | None = None
        self.process: Collector | None = None
        self.is_listening: Callable[[], bool] | None = None
        """Whether the port of gRPC is listened on. Any thread may ask."""

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; each request calls it on a thread of the HTTP server."""
        if self.process is not None:
            yield from self.process.collect()
        if self.schedulers:
            yield counter(
                "scheduler_failures",
                "Failures of the timekeeper of background tasks; it continues after each.",
                sum(scheduler.failure_count for scheduler in self.schedulers),
            )
        yield from self._of_requests()
        if self.registry is not None:
            yield from _of_registry(self.registry)
        yield from self._of_local_logs()
        yield from self._of_object_tier()

    def _of_requests(self) -> Iterator[Metric]:
        if self.is_listening is not None:
            yield gauge(
                "server_listening",
                "1 while the port of gRPC is listened on.",
                int(self.is_listening()),
            )
        if self.reloaded_files:
            yield from of_reloads(self.reloaded_files)
        if self.tls is not None:
            yield from of_certificate(self.tls)
        if self.access is not None and self.quotas is not None:
            yield from of_access(self.access, self.quotas)
        if self.calls:
            yield from of_call_kinds(self.calls, self.awaited_request_count())
        if self.methods is not None:
            yield from of_methods(self.methods.counts())
        if self.errors is not None:
            yield from of_errors(self.errors.counts())
        if self.pools is not None:
            yield from of_pools(
                self.pools.uses(), self.pools.cold_refused_count, self.pools.turns.throttled_s
            )
            yield of_flushes(self.pools.flush_durations())
        if self.memories is not None:
            yield from of_memories(self.memories)
        if self.groups is not None:
            yield from of_groups(self.groups)
        if self.validations is not None:
            yield of_long_turns(self.validations)

    def _of_local_logs(self) -> Iterator[Metric]:
        if self.logs is not None:
            yield from of_directories(self.logs)
            if self.pools is not None:
                yield from of_disk_waits(self.logs, self.pools.append_waits_s(), self.pools.flush_waits_s())
            yield from of_logs(self.logs)
            yield from of_moves(self.logs)
        if self.space is not None:
            yield from of_space(self.space)
        if self.cleaning is not None:
            stats = self.cleaning.workers.stats()
            yield from of_uncleanable(stats, () if self.logs is None else self.logs.data_dirs)
            yield from of_cleaner(stats)
        if self.local_retention is not None:
            yield counter(
                "log_retention_deleted_segments",
                "Local segments that retention has deleted, of all topics.",
                self.local_retention.deleted_segment_count,
            )

    def _of_object_tier(self) -> Iterator[Metric]:
        if self.passes is not None:
            yield from of_passes(self.passes.statuses())
            yield from of_tiering(self.passes)
        if self.copy_lag is not None:
            yield from of_copy_lag(self.copy_lag.by_topic)
        if self.commits:
            yield from of_commits([one.stats for one in self.commits])
        if self.shards is not None:
            yield from of_shards(self.shards)
            yield from of_metadata_cache(self.shards)
        if self.compaction is not None:
            yield from of_exclusions(self.compaction.exclusions().values())
            yield from of_backlogs(self.compaction.backlogs())
        if self.verifications is not None:
            yield from of_verification(self.verifications.last)
        if self.reads is not None:
            yield from of_caches(self.reads)
            yield from of_remote_reads(self.reads)
        if self.requests is not None:
            yield from of_requests(self.requests, self.prices())


def _of_registry(registry: PartitionRegistry) -> Iterator[Metric]:
    yield gauge(
        "server_offline_partition_count",
        "Partitions that are not served, because their log could not be opened or their disk failed.",
        sum(len(topic.unserved_partitions) for topic in registry.topics()),
    )
    yield gauges(
        "broker_topic_metrics_remote_log_size_bytes",
        "Bytes in the object store that readers of the topic use.",
        "topic",
        {
            topic.name: stored_bytes(topic)
            for topic in registry.topics()
            if topic.config is not None and topic.config.remote_storage_enable
        },
    )
