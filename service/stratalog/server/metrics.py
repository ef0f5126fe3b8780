"""The metrics for Prometheus: snapshots of the components, taken at each request.

A metric that Kafka has too gets Kafka's type and name, in Prometheus' spelling (`LogCleanerManager`,
`uncleanable-partitions-count`: `stratalog_log_cleaner_manager_uncleanable_partitions_count`); docs/metrics.md
lists both names. Nothing is counted here, and no request waits for a log or a disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stratalog.base.errors import AuthenticationFailedError, AuthorizationFailedError
from stratalog.cleaner.cleaner_stats import CleanerStats
from stratalog.compaction.job_history import Exclusion
from stratalog.manager.directories.log_directory import DirectoryState
from stratalog.manager.log_manager import LogManager
from stratalog.manager.moves.log_move import MoveState
from stratalog.objectstore.counted import CountedObjectStore, RequestCount, RequestKind
from stratalog.record.native.cleaned_batches import NO_HORIZON
from stratalog.remote.loading_cache import CacheStats
from stratalog.remote.read.object_reads import ObjectReads
from stratalog.remote.restore.metadata_scrub import FindingKind
from stratalog.server.access.access_control import AccessControl
from stratalog.server.access.quotas import QuotaCounts, Quotas
from stratalog.server.access.reloaded_files import ReloadedFiles
from stratalog.server.background.local_cleaning import LocalCleaning
from stratalog.server.background.local_retention import LocalRetention
from stratalog.server.background.pass_outcome import Backlog
from stratalog.server.background.pass_registry import PassRegistry, PassStatus
from stratalog.server.background.tail_commits import CommitStats, TailCommits
from stratalog.server.background.thread_scheduler import ThreadScheduler
from stratalog.server.background.tier_compaction import TierCompaction
from stratalog.server.call_counts import CallCounts, CallKind
from stratalog.server.copy_lag import CopyLag, TopicLag
from stratalog.server.operations.verification_log import EndedVerification, VerificationLog
from stratalog.server.partitions.hosted_shard import HostedShard
from stratalog.server.partitions.offline_partition import ForeignPartition
from stratalog.server.partitions.partition_registry import HostedTopic, PartitionRegistry
from stratalog.server.partitions.shard_set import ShardSet

PREFIX = "stratalog_"
_DIRECTORY = "log_directory"


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
        self.calls: Mapping[CallKind, CallCounts] = {}
        self.commits: Sequence[TailCommits] = ()
        self.copy_lag: CopyLag | None = None
        self.compaction: TierCompaction | None = None
        self.access: AccessControl | None = None
        self.quotas: Quotas | None = None
        self.reloaded_files: Sequence[ReloadedFiles] = ()
        self.flush_waits_s: Callable[[], Mapping[str, float]] = dict

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; each request calls it on a thread of the HTTP server."""
        if self.schedulers:
            yield _counter(
                "scheduler_failures",
                "Failures of the timekeeper of background tasks; it continues after each.",
                sum(scheduler.failure_count for scheduler in self.schedulers),
            )
        if self.calls:
            yield from _of_calls(self.calls)
        if self.reloaded_files:
            yield from _of_reloads(self.reloaded_files)
        if self.access is not None and self.quotas is not None:
            yield from _of_access(self.access, self.quotas)
        if self.registry is not None:
            yield _gauge(
                "server_offline_partition_count",
                "Partitions that are not served, because their log could not be opened or their disk failed.",
                sum(len(topic.unserved_partitions) for topic in self.registry.topics()),
            )
            yield _by_label(
                "broker_topic_metrics_remote_log_size_bytes",
                "Bytes in the object store that readers of the topic use.",
                "topic",
                {
                    topic.name: _stored_bytes(topic)
                    for topic in self.registry.topics()
                    if topic.config is not None and topic.config.remote_storage_enable
                },
            )
        if self.logs is not None:
            yield from _of_directories(self.logs)
            waits_s = self.flush_waits_s()
            yield _by_directory(
                "log_manager_oldest_flush_wait_secs",
                "Seconds that the oldest fsync of appends has been waited for; 0 if none is.",
                {one.path: waits_s.get(one.path, 0.0) for one in self.logs.directories.statuses()},
            )
            yield from _of_logs(self.logs)
            yield from _of_moves(self.logs)
        if self.cleaning is not None:
            stats = self.cleaning.workers.stats()
            yield from _of_uncleanable(stats, () if self.logs is None else self.logs.data_dirs)
            yield from _of_cleaner(stats)
        if self.local_retention is not None:
            yield _counter(
                "log_retention_deleted_segments",
                "Local segments that retention has deleted, of all topics.",
                self.local_retention.deleted_segment_count,
            )
        yield from self._of_object_tier()

    def _of_object_tier(self) -> Iterator[Metric]:
        if self.passes is not None:
            yield from _of_passes(self.passes.statuses())
            yield from _of_tiering(self.passes)
        if self.copy_lag is not None:
            yield from _of_copy_lag(self.copy_lag.by_topic)
        if self.commits:
            yield from _of_commits([one.stats for one in self.commits])
        if self.shards is not None:
            yield from _of_shards(self.shards)
            yield from _of_metadata_cache(self.shards)
        if self.compaction is not None:
            yield from _of_exclusions(self.compaction.exclusions().values())
        if self.verifications is not None:
            yield from _of_verification(self.verifications.last)
        if self.reads is not None:
            yield from _of_caches(self.reads)
            yield from _of_remote_reads(self.reads)
        if self.requests is not None:
            yield from _of_requests(self.requests.counts())


def _of_exclusions(excluded: Collection[Exclusion]) -> Iterator[Metric]:
    yield _gauge(
        "compaction_excluded_partition_count",
        "Partitions that compaction leaves alone, as the last ones have found them.",
        len(excluded),
    )
    yield _gauge(
        "compaction_excluded_since_timestamp_secs",
        "Time since when one of them is excluded, the oldest, in seconds since 1970; 0 for none.",
        min((one.since_ms for one in excluded), default=0) / 1000,
    )


def _of_verification(last: EndedVerification | None) -> Iterator[Metric]:
    """Yield those of the last finished verification; before the first the time is 0, and nothing is found."""
    yield _gauge(
        "tier_verification_last_end_timestamp_secs",
        "End of the last finished verification since the start, in seconds since 1970; 0 for never.",
        0 if last is None else last.end_ms / 1000,
    )
    findings = GaugeMetricFamily(
        PREFIX + "tier_verification_findings",
        "Findings of the last finished verification.",
        labels=["kind"],
    )
    for kind in FindingKind:
        findings.add_metric([kind.value], 0 if last is None else last.finding_counts[kind])
    yield findings
    yield _gauge(
        "tier_verification_unreferenced_files",
        "Files that no commit refers to, at the last finished verification.",
        0 if last is None else last.unreferenced_count,
    )
    yield _gauge(
        "tier_verification_unreferenced_bytes",
        "Size of these files.",
        0 if last is None else last.unreferenced_bytes,
    )


def _stored_bytes(topic: HostedTopic) -> int:
    """Size of the topic's slices in the shards that this server owns."""
    owned = (one for one in topic.all_partitions if not isinstance(one, ForeignPartition))
    states = (one.tier_state() for one in owned)
    return sum(state.tiered_bytes for state in states if state is not None)


def _of_directories(logs: LogManager) -> Iterator[Metric]:
    found = logs.directories.statuses()
    offline = {one.path: int(one.state is DirectoryState.OFFLINE) for one in found}
    missing_count = len(logs.directories.missing())
    yield _gauge(
        "log_manager_missing_log_directory_count",
        "Known log directories that are not in log.dirs.",
        missing_count,
    )
    yield _gauge(
        "log_manager_offline_log_directory_count",
        "Log directories that have failed or are missing.",
        sum(offline.values()) + missing_count,
    )
    yield _by_directory("log_manager_log_directory_offline", "1 if the log directory has failed.", offline)
    yield _by_directory(
        "log_manager_log_directory_cordoned",
        "1 if the log directory takes no new partitions.",
        {one.path: int(one.state is DirectoryState.CORDONED) for one in found},
    )
    yield _by_directory(
        "log_manager_log_directory_partitions",
        "Partitions in the log directory.",
        {one.path: one.partition_count for one in found},
    )
    yield _by_directory(
        "log_manager_set_aside_directories",
        "Directories that the server does not use: of unknown topics, set aside, or left by a killed import.",
        {one.path: one.set_aside_count for one in found},
    )
    yield _by_directory(
        "log_manager_remaining_logs_to_recover",
        "Logs found at the start that are not open yet.",
        {one.path: one.remaining_log_count for one in found},
    )
    segments = GaugeMetricFamily(
        PREFIX + "log_manager_remaining_segments_to_recover",
        "Segments that this thread has still to read in the log that it opens.",
        labels=["thread"],
    )
    for thread, count in sorted(logs.remaining_segment_counts.items()):
        segments.add_metric([thread], count)
    yield segments


def _of_logs(logs: LogManager) -> Iterator[Metric]:
    opened = logs.logs()
    yield _gauge("log_manager_log_count", "Logs that are open.", len(opened))
    yield _gauge(
        "log_manager_offline_log_count",
        "Open logs that refuse all requests because their disk failed.",
        sum(log.availability.is_offline for log in opened),
    )
    yield _gauge(
        "log_manager_tail_bytes", "Memory of the newest records, which are read from there.", logs.tail_bytes
    )
    yield _gauge(
        "log_future_timestamp_segments",
        "Segments with timestamps in the future that stopped the last retention by time, at most one a log.",
        sum(log.retention.future_segment_count for log in opened),
    )


def _of_moves(logs: LogManager) -> Iterator[Metric]:
    moves = logs.moves.progress()
    counts = Counter(move.state for move in moves)
    states = GaugeMetricFamily(
        PREFIX + "log_manager_moves",
        "The last move between log directories of each partition that had one, by state.",
        labels=["state"],
    )
    for state in MoveState:
        states.add_metric([state.value], counts[state])
    yield states
    yield _gauge(
        "log_manager_moves_remaining_bytes",
        "Bytes that running moves have still to copy.",
        sum(move.remaining_bytes for move in moves if not move.state.is_final),
    )


def _of_uncleanable(stats: CleanerStats, directories: tuple[str, ...]) -> Iterator[Metric]:
    uncleanable = {path: stats.uncleanable.get(path) for path in directories}
    yield _by_directory(
        "log_cleaner_manager_uncleanable_partitions_count",
        "Partitions whose cleaning failed and is tried again later.",
        {path: 0 if one is None else one.partition_count for path, one in uncleanable.items()},
    )
    yield _by_directory(
        "log_cleaner_manager_uncleanable_bytes",
        "Bytes to clean in those partitions.",
        {path: 0 if one is None else one.dirty_bytes for path, one in uncleanable.items()},
    )


def _of_cleaner(stats: CleanerStats) -> Iterator[Metric]:
    for name, text, value in (
        (
            "manager_time_since_last_run_ms",
            "Milliseconds since a worker last looked for a log to clean.",
            stats.ms_since_last_run,
        ),
        (
            "manager_max_dirty_percent",
            "Dirty share of the dirtiest log, in percent.",
            100 * stats.max_cleanable_ratio,
        ),
        (
            "max_buffer_utilization_percent",
            "Highest use of a worker's key map in its last clean, in percent.",
            100 * stats.max_map_use_ratio,
        ),
        (
            "max_clean_time_secs",
            "Duration of the longest of the workers' last cleans, in seconds.",
            stats.max_clean_ms / 1000,
        ),
        (
            "max_compaction_delay_secs",
            "Longest time that a record has been over max.compaction.lag.ms, in seconds.",
            stats.max_compaction_delay_ms / 1000,
        ),
        (
            "manager_next_clean_timestamp_secs",
            "Time of the next clean that removes old tombstones, in seconds since 1970; 0 for none.",
            stats.next_clean_ms / 1000 if stats.next_clean_ms < NO_HORIZON else 0,
        ),
        (
            "dead_thread_count",
            "Workers whose last round ended with an unexpected error.",
            stats.dead_worker_count,
        ),
        ("thread_count", "Workers of the cleaner.", stats.worker_count),
        ("running_count", "Running cleans.", stats.running_count),
    ):
        yield _gauge("log_cleaner_" + name, text, value)
    for name, text, value in (
        ("cleans", "Finished cleans.", stats.clean_count),
        ("aborted_cleans", "Cleans that were aborted.", stats.aborted_count),
        ("cleaned_records", "Records that cleans have read.", stats.cleaned_record_count),
        ("dropped_records", "Records that cleans have dropped.", stats.dropped_record_count),
        ("records_without_key", "Dropped records that had no key.", stats.null_key_count),
        ("cleaned_bytes", "Bytes of the segments that cleans replaced.", stats.cleaned_bytes),
        ("reclaimed_bytes", "Bytes by which cleans made these segments smaller.", stats.reclaimed_bytes),
    ):
        yield _counter("log_cleaner_" + name, text, value)


def _of_passes(statuses: Sequence[PassStatus]) -> Iterator[Metric]:
    for name, text, measure in _GAUGES_OF_A_PASS:
        values = {status.name: measure(status) for status in statuses}
        yield _by_label("pass_" + name, text, "pass", values)
    runs = CounterMetricFamily(PREFIX + "pass_turns", "Turns that have ended.", labels=["pass"])
    failed = CounterMetricFamily(PREFIX + "pass_failed_turns", "Turns that had a failure.", labels=["pass"])
    for status in statuses:
        runs.add_metric([status.name], status.turn_count)
        failed.add_metric([status.name], status.failed_turn_count)
    yield runs
    yield failed
    work = CounterMetricFamily(PREFIX + "pass_work", "Finished work, by noun.", labels=["pass", "noun"])
    refusals = CounterMetricFamily(
        PREFIX + "pass_refusals", "Pieces of work that a rule refused, by reason.", labels=["pass", "reason"]
    )
    for status in statuses:
        for noun, amount in status.total_done.items():
            work.add_metric([status.name, noun], amount)
        for reason, amount in status.total_refusals.items():
            refusals.add_metric([status.name, reason], amount)
    yield work
    yield refusals


def _of_tiering(passes: PassRegistry) -> Iterator[Metric]:
    """The metrics of tiering that Kafka has, too."""
    upload, collector = passes.status("upload"), passes.status("collector")
    topics = "broker_topic_metrics_remote_"
    for name, text, value in (
        (
            "delete_lag_bytes",
            "Bytes of dropped objects that are not deleted yet.",
            collector.backlog.size_bytes,
        ),
        ("delete_lag_segments", "Dropped objects that are not deleted yet.", collector.backlog.count),
    ):
        yield _gauge(topics + name, text, value)
    for name, text, count in (
        ("copy_bytes", "Bytes that uploads have committed.", upload.total_done.get("bytes", 0)),
        ("copy_requests", "Objects that uploads have committed.", upload.total_done.get("objects", 0)),
        ("copy_errors", "Uploads with a failure.", upload.failed_turn_count),
        ("delete_requests", "Objects that were deleted.", collector.total_done.get("files", 0)),
        ("delete_errors", "Collections with a failure.", collector.failed_turn_count),
    ):
        yield _counter(topics + name, text, count)


def _of_copy_lag(lags: Mapping[str, TopicLag]) -> Iterator[Metric]:
    """By topic what is not in the object store, at the end of the last upload."""
    for name, text, measure in _GAUGES_OF_A_LAG:
        values = {topic: measure(lag) for topic, lag in lags.items()}
        yield _by_label("broker_topic_metrics_remote_copy_" + name, text, "topic", values)


def _since_secs(backlog: Backlog) -> float:
    return max(backlog.oldest_ms, 0) / 1000


_GAUGES_OF_A_LAG: Sequence[tuple[str, str, Callable[[TopicLag], float]]] = (
    ("lag_bytes", "Bytes of closed segments that are not in the store.", lambda one: one.closed.size_bytes),
    ("lag_segments", "Closed segments that are not in the object store.", lambda one: one.closed.count),
    ("lag_records", "Records in them, counted as offsets.", lambda one: one.closed.record_count),
    (
        "lag_oldest_timestamp_secs",
        "Since when the oldest of them waits, in seconds since 1970; 0 for none.",
        lambda one: _since_secs(one.closed),
    ),
    ("tail_bytes", "Bytes of active segments that are not in the store.", lambda one: one.tails.size_bytes),
    ("tail_records", "Records in them, counted as offsets.", lambda one: one.tails.record_count),
    (
        "tail_oldest_timestamp_secs",
        "Since when the oldest of them waits, in seconds since 1970; 0 for none.",
        lambda one: _since_secs(one.tails),
    ),
)


def _of_commits(stats: Sequence[CommitStats]) -> Iterator[Metric]:
    """The commits of appends at `object`, of all shards."""
    for name, text, count in (
        ("appends", "Appends at object that were acknowledged.", sum(one.append_count for one in stats)),
        ("bytes", "Bytes that their commits have made live.", sum(one.data_bytes for one in stats)),
        ("objects", "Objects of these commits.", sum(one.object_count for one in stats)),
        ("slices", "Slices of these commits.", sum(one.slice_count for one in stats)),
        ("timeouts", "Appends that were not committed in time.", sum(one.timeout_count for one in stats)),
        ("wait_secs", "Seconds that acknowledged appends have waited.", sum(one.wait_s for one in stats)),
    ):
        yield _counter("object_commit_" + name, text, count)
    for name, text, count in (
        ("waiting_bytes", "Appends that wait for the next commit.", sum(one.waiting_bytes for one in stats)),
        (
            "waiting_partitions",
            "Partitions that wait for the next commit.",
            sum(one.waiting_count for one in stats),
        ),
    ):
        yield _gauge("object_commit_" + name, text, count)


def _of_shards(shards: ShardSet) -> Iterator[Metric]:
    by_number = {str(shard.metadata.layout.shard): shard for shard in shards}
    for name, text, measure in _GAUGES_OF_A_SHARD:
        yield _by_label(
            "shard_" + name, text, "shard", {number: measure(shard) for number, shard in by_number.items()}
        )


def _of_metadata_cache(shards: ShardSet) -> Iterator[Metric]:
    """Yield those of the caches of checkpoint pages, which all shards share."""
    metadata = next((shard.metadata for shard in shards), None)
    if metadata is None:
        return
    yield from _of_page_disk(metadata.page_disk_stats)
    stats = metadata.page_cache_stats
    for name, text, value in (
        ("bytes", "Size of the pages of metadata in memory.", stats.size_bytes),
        ("capacity_bytes", "The largest size.", stats.capacity_bytes),
        ("entries", "Pages in memory; one that is there in both forms counts twice.", stats.entry_count),
    ):
        yield _gauge("metadata_cache_" + name, text, value)
    for name, text, value in (
        ("hits", "Look-ups that found their page in memory.", stats.hit_count),
        ("misses", "Look-ups that asked the disk next, and then the store.", stats.miss_count),
        ("evictions", "Pages that left the cache because others needed the space.", stats.eviction_count),
    ):
        yield _counter("metadata_cache_" + name, text, value)


def _of_page_disk(stats: CacheStats | None) -> Iterator[Metric]:
    if stats is None:
        return
    for name, text, value in (
        ("bytes", "Size of the files of pages of metadata on disk.", stats.size_bytes),
        ("capacity_bytes", "The largest size.", stats.capacity_bytes),
        ("entries", "Pages on disk.", stats.entry_count),
    ):
        yield _gauge("metadata_disk_cache_" + name, text, value)
    for name, text, value in (
        ("hits", "Pages that were read from the disk.", stats.hit_count),
        ("misses", "Pages that the disk did not have, which the store was asked for.", stats.miss_count),
    ):
        yield _counter("metadata_disk_cache_" + name, text, value)


def _of_caches(reads: ObjectReads) -> Iterator[Metric]:
    found = reads.cache_stats
    caches = {"data": found.data, "index": found.indexes}
    if found.disk is not None:
        caches["disk"] = found.disk
    for name, text, values in (
        ("entries", "Values in the cache.", {key: one.entry_count for key, one in caches.items()}),
        ("bytes", "Size of these values.", {key: one.size_bytes for key, one in caches.items()}),
        ("capacity_bytes", "The largest size.", {key: one.capacity_bytes for key, one in caches.items()}),
    ):
        yield _by_label("remote_read_cache_" + name, text, "cache", values)
    hits = CounterMetricFamily(
        PREFIX + "remote_read_cache_hits", "Look-ups that found their value.", labels=["cache"]
    )
    misses = CounterMetricFamily(
        PREFIX + "remote_read_cache_misses", "Look-ups that did not find it.", labels=["cache"]
    )
    for key, one in caches.items():
        hits.add_metric([key], one.hit_count)
        misses.add_metric([key], one.miss_count)
    yield hits
    yield misses


def _of_remote_reads(reads: ObjectReads) -> Iterator[Metric]:
    gets, ahead = reads.gets.stats, reads.read_ahead_stats
    yield _gauge(
        "remote_read_ahead_waiting_bytes",
        "Bytes that were read ahead and wait for their reader.",
        ahead.waiting_bytes,
    )
    for name, text, value in (
        ("gets", "Ranges of objects that readers had fetched.", gets.get_count),
        ("get_failures", "Fetches that failed.", gets.failed_count),
        ("get_bytes", "Bytes that were fetched.", gets.size_bytes),
        ("get_duration_secs", "Seconds that the fetches took together.", gets.duration_s),
        ("hedges", "Second requests for slow ones.", gets.hedge_count),
        ("hedges_won", "Second requests that answered first.", gets.hedge_won_count),
        ("ahead_used_bytes", "Bytes that were read ahead and used.", ahead.used_bytes),
        ("ahead_wasted_bytes", "Bytes that were read ahead for nothing.", ahead.wasted_bytes),
        (
            "damaged_files",
            "Files of the cache on disk that were damaged or could not be read.",
            0 if reads.disk is None else reads.disk.damaged_count,
        ),
    ):
        yield _counter("remote_read_" + name, text, value)


def _of_requests(counts: Mapping[RequestKind, RequestCount]) -> Iterator[Metric]:
    requests = CounterMetricFamily(
        PREFIX + "object_store_requests", "Requests to the object store.", labels=["verb", "kind"]
    )
    sizes = CounterMetricFamily(
        PREFIX + "object_store_bytes", "Bytes that these requests have moved.", labels=["verb", "kind"]
    )
    for kind, count in sorted(counts.items()):
        requests.add_metric(kind, count.requests)
        sizes.add_metric(kind, count.size_bytes)
    yield requests
    yield sizes


def _of_reloads(files: Sequence[ReloadedFiles]) -> Iterator[Metric]:
    reloads = CounterMetricFamily(
        PREFIX + "access_reloads", "Changes of files that were taken over.", labels=["file"]
    )
    failures = CounterMetricFamily(
        PREFIX + "access_reload_failures", "Changes of files that were refused.", labels=["file"]
    )
    for one in files:
        reloads.add_metric([one.name], one.reload_count)
        failures.add_metric([one.name], one.failure_count)
    yield reloads
    yield failures
    yield _by_label(
        "access_stale_files",
        "1 if the files as they are now were refused, so that former contents are in force.",
        "file",
        {one.name: float(one.has_failed) for one in files},
    )


def _of_access(access: AccessControl, quotas: Quotas) -> Iterator[Metric]:
    refused = CounterMetricFamily(
        PREFIX + "access_refused_calls",
        "Calls that were refused for their credentials or permissions.",
        labels=["code"],
    )
    refusals = access.refusals
    for error in (AuthenticationFailedError, AuthorizationFailedError):
        refused.add_metric([error.code], refusals.get(error.code, 0))
    yield refused
    waits = CounterMetricFamily(
        PREFIX + "quota_throttled_calls", "Calls and messages that waited for a quota.", labels=["principal"]
    )
    waits_s = CounterMetricFamily(
        PREFIX + "quota_throttled_secs", "Seconds that they waited.", labels=["principal"]
    )
    too_many = CounterMetricFamily(
        PREFIX + "quota_refused_calls",
        "Calls and streams that were refused for a quota.",
        labels=["principal"],
    )
    counts = quotas.counts
    for principal in access.policy.principals:
        if principal.quota.is_set:
            found = counts.get(principal.name, QuotaCounts())
            waits.add_metric([principal.name], found.throttled_count)
            waits_s.add_metric([principal.name], found.throttled_s)
            too_many.add_metric([principal.name], found.refused_count)
    yield waits
    yield waits_s
    yield too_many


def _of_calls(calls: Mapping[CallKind, CallCounts]) -> Iterator[Metric]:
    yield _by_label(
        "server_open_calls",
        "Calls and streams that are open.",
        "kind",
        {kind.value: counts.open_count for kind, counts in calls.items()},
    )
    yield _by_label(
        "server_max_open_calls",
        "Calls and streams that may be open at once.",
        "kind",
        {kind.value: counts.limit for kind, counts in calls.items()},
    )
    accepted = CounterMetricFamily(PREFIX + "server_calls", "Calls that were let in.", labels=["kind"])
    refused = CounterMetricFamily(
        PREFIX + "server_refused_calls", "Calls that were refused as too many.", labels=["kind"]
    )
    for kind, counts in calls.items():
        accepted.add_metric([kind.value], counts.accepted_count)
        refused.add_metric([kind.value], counts.refused_count)
    yield accepted
    yield refused


def _seconds(time_ms: int) -> float:
    """A time in seconds since 1970; 0 for none."""
    return max(0, time_ms) / 1000


_GAUGES_OF_A_PASS: tuple[tuple[str, str, Callable[[PassStatus], float]], ...] = (
    ("running", "1 if a turn goes on.", lambda one: one.running_since_ms >= 0),
    (
        "last_begin_timestamp_secs",
        "Begin of the last turn, in seconds since 1970; 0 for never.",
        lambda one: _seconds(one.last_begin_ms),
    ),
    (
        "last_end_timestamp_secs",
        "End of the last turn that has ended.",
        lambda one: _seconds(one.last_end_ms),
    ),
    (
        "last_success_timestamp_secs",
        "End of the last turn without a failure.",
        lambda one: _seconds(one.last_success_ms),
    ),
    (
        "consecutive_failures",
        "Turns with a failure since the last without.",
        lambda one: one.consecutive_failure_count,
    ),
    ("backlog_count", "Pieces of work that are left.", lambda one: one.backlog.count),
    ("backlog_bytes", "Size of the work that is left.", lambda one: one.backlog.size_bytes),
    ("backlog_records", "Records in the work that is left.", lambda one: one.backlog.record_count),
    (
        "backlog_oldest_timestamp_secs",
        "Since when the oldest work that is left waits, in seconds since 1970; 0 for none.",
        lambda one: _seconds(one.backlog.oldest_ms),
    ),
)
_GAUGES_OF_A_SHARD: tuple[tuple[str, str, Callable[[HostedShard], float]], ...] = (
    (
        "clock_skew_secs",
        "Clock of the server minus that of the store, in seconds.",
        lambda one: one.metadata.compared_clocks.skew_ms / 1000,
    ),
    (
        "deletion_stopped",
        "1 if the clocks differ so much that nothing is deleted or expires by time.",
        lambda one: one.contact.is_clock_wrong,
    ),
    (
        "silence_secs",
        "Seconds since the store last answered a look at the head.",
        lambda one: one.contact.silence_ms / 1000,
    ),
    (
        "disk_appends_refused",
        "1 if the store has been silent for so long that appends at disk are refused.",
        lambda one: one.contact.is_too_silent,
    ),
    (
        "object_bytes",
        "Size of the objects with a live slice.",
        lambda one: sum(found.ref.size_bytes for found in one.metadata.state().objects.values()),
    ),
    (
        "live_bytes",
        "Record batches in live slices.",
        lambda one: sum(found.live_bytes for found in one.metadata.state().objects.values()),
    ),
)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def _by_directory(name: str, text: str, values: Mapping[str, float]) -> Metric:
    return _by_label(name, text, _DIRECTORY, values)


def _by_label(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family
