"""What Prometheus is told: snapshots of log manager, cleaner, retention and moves, taken when it asks.

Where Kafka has a metric, ours has its type and its name, in Prometheus' spelling (`LogCleanerManager`,
`uncleanable-partitions-count`: `stratalog_log_cleaner_manager_uncleanable_partitions_count`); docs/metrics.md
has both. Nothing is counted here, and nothing waits for a log or for a disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from stratalog.cleaner.cleaner_stats import CleanerStats
from stratalog.manager.directories.log_directory import DirectoryState
from stratalog.manager.log_manager import LogManager
from stratalog.manager.moves.log_move import MoveState
from stratalog.record.native.cleaned_batches import NO_HORIZON
from stratalog.server.partitions.partition_registry import PartitionRegistry
from stratalog.server.thread_scheduler import ThreadScheduler
from stratalog.server.topics.local_cleaning import LocalCleaning
from stratalog.server.topics.tier_manager import TierManager

PREFIX = "stratalog_"
_DIRECTORY = "log_directory"


class ServerMetrics(Collector):
    """Thread-safe: each source is set once, by one assignment. What has no source yet is left out."""

    def __init__(self) -> None:
        self.logs: LogManager | None = None
        self.cleaning: LocalCleaning | None = None
        self.tiers: TierManager | None = None
        self.registry: PartitionRegistry | None = None
        self.schedulers: tuple[ThreadScheduler, ...] = ()

    def collect(self) -> Iterator[Metric]:
        """Called for every request, on a thread of the HTTP server."""
        if self.schedulers:
            yield _counter(
                "scheduler_failures",
                "Failures of what keeps the time of background tasks; it goes on after each.",
                sum(scheduler.failure_count for scheduler in self.schedulers),
            )
        if self.registry is not None:
            yield _gauge(
                "server_offline_partition_count",
                "Partitions that are not served, since a start, or their disk, has failed.",
                sum(len(topic.unserved_partitions) for topic in self.registry.topics()),
            )
        if self.logs is not None:
            yield from _of_directories(self.logs)
            yield from _of_logs(self.logs)
            yield from _of_moves(self.logs)
        if self.cleaning is not None:
            yield from _of_cleaner(
                self.cleaning.workers.stats(), () if self.logs is None else self.logs.data_dirs
            )
        if self.cleaning is not None and self.tiers is not None:
            deleted_count = self.tiers.deleted_segment_count + self.cleaning.workers.deleted_segment_count
            yield _counter(
                "log_retention_deleted_segments",
                "Local segments that retention has dropped, of tiered and other topics.",
                deleted_count,
            )


def _of_directories(logs: LogManager) -> Iterator[Metric]:
    found = logs.directories()
    offline = {one.path: int(one.state is DirectoryState.OFFLINE) for one in found}
    missing_count = len(logs.missing_directories())
    yield _gauge(
        "log_manager_missing_log_directory_count",
        "Log directories that the server was started without.",
        missing_count,
    )
    yield _gauge(
        "log_manager_offline_log_directory_count",
        "Log directories that have failed or are missing.",
        sum(offline.values()) + missing_count,
    )
    yield _by_directory("log_manager_log_directory_offline", "1: the log directory has failed.", offline)
    yield _by_directory(
        "log_manager_log_directory_cordoned",
        "1: the log directory takes no new partitions.",
        {one.path: int(one.state is DirectoryState.CORDONED) for one in found},
    )
    yield _by_directory(
        "log_manager_log_directory_partitions",
        "Partitions in the log directory.",
        {one.path: one.partition_count for one in found},
    )
    yield _by_directory(
        "log_manager_set_aside_directories",
        "Directories of partitions that are no topic's or were set aside, and what imports left that were"
        " killed, for somebody to look at.",
        {one.path: one.set_aside_count for one in found},
    )
    yield _by_directory(
        "log_manager_remaining_logs_to_recover",
        "Logs that were found at the start and have not been opened yet.",
        {one.path: one.remaining_log_count for one in found},
    )
    segments = GaugeMetricFamily(
        PREFIX + "log_manager_remaining_segments_to_recover",
        "Segments of the log that this thread opens which it has not walked yet.",
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
        "Open logs that refuse everything, because a disk failed.",
        sum(log.is_offline for log in opened),
    )
    yield _gauge(
        "log_future_timestamp_segments",
        "Segments of the future at which retention by time ended in its last run, one of a log at most.",
        sum(log.future_segment_count for log in opened),
    )


def _of_moves(logs: LogManager) -> Iterator[Metric]:
    moves = logs.moves.progress()
    counts = Counter(move.state for move in moves)
    states = GaugeMetricFamily(
        PREFIX + "log_manager_moves",
        "The last move between log directories of each partition that had one, by how it is.",
        labels=["state"],
    )
    for state in MoveState:
        states.add_metric([state.value], counts[state])
    yield states
    yield _gauge(
        "log_manager_moves_remaining_bytes",
        "What is still to be copied by moves that are under way.",
        sum(move.remaining_bytes for move in moves if not move.state.is_final),
    )


def _of_cleaner(stats: CleanerStats, directories: tuple[str, ...]) -> Iterator[Metric]:
    uncleanable = {path: stats.uncleanable.get(path) for path in directories}
    yield _by_directory(
        "log_cleaner_manager_uncleanable_partitions_count",
        "Partitions whose cleaning failed and is tried again later.",
        {path: 0 if one is None else one.partition_count for path, one in uncleanable.items()},
    )
    yield _by_directory(
        "log_cleaner_manager_uncleanable_bytes",
        "What waits to be cleaned of them.",
        {path: 0 if one is None else one.dirty_bytes for path, one in uncleanable.items()},
    )
    for name, text, value in (
        ("manager_time_since_last_run_ms", "Since a worker last looked for a log.", stats.ms_since_last_run),
        ("manager_max_dirty_percent", "Of the filthiest log.", 100 * stats.max_cleanable_ratio),
        (
            "max_buffer_utilization_percent",
            "How full the key map of a worker's last clean was, at most.",
            100 * stats.max_map_use_ratio,
        ),
        ("max_clean_time_secs", "The longest of the workers' last cleans.", stats.max_clean_ms / 1000),
        (
            "max_compaction_delay_secs",
            "How long a record is over max.compaction.lag.ms at most.",
            stats.max_compaction_delay_ms / 1000,
        ),
        (
            "manager_next_horizon_timestamp_secs",
            "When the first log is cleaned again for tombstones that were kept for a while; 0: none.",
            stats.next_horizon_ms / 1000 if stats.next_horizon_ms < NO_HORIZON else 0,
        ),
        (
            "dead_thread_count",
            "Workers whose last round was ended by an error that nobody expected.",
            stats.dead_worker_count,
        ),
        ("thread_count", "Workers.", stats.worker_count),
        ("running_count", "Cleans that are under way.", stats.running_count),
    ):
        yield _gauge("log_cleaner_" + name, text, value)
    for name, text, value in (
        ("cleans", "Cleans that came to their end.", stats.clean_count),
        ("aborted_cleans", "Cleans that were told to end.", stats.aborted_count),
        ("cleaned_records", "Records that cleans have read.", stats.cleaned_record_count),
        ("dropped_records", "Records that cleans have dropped.", stats.dropped_record_count),
        ("records_without_key", "Dropped records that had no key.", stats.null_key_count),
        ("cleaned_bytes", "Of the segments that cleans replaced.", stats.cleaned_bytes),
        ("reclaimed_bytes", "What these are smaller by now.", stats.reclaimed_bytes),
    ):
        yield _counter("log_cleaner_" + name, text, value)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def _by_directory(name: str, text: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=[_DIRECTORY])
    for path, value in values.items():
        family.add_metric([path], value)
    return family
