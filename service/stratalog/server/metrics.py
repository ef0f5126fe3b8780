"""The metrics for Prometheus: snapshots of the components, taken at each request, and their HTTP endpoint.

A metric that Kafka has too gets Kafka's type and name, in Prometheus' spelling (`LogCleanerManager`,
`uncleanable-partitions-count`: `stratalog_log_cleaner_manager_uncleanable_partitions_count`); docs/metrics.md
lists both names. Nothing is counted here, and no request waits for a log or a disk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client import start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector, CollectorRegistry

from stratalog.base.errors import InvalidConfigError
from stratalog.cleaner.cleaner_stats import CleanerStats
from stratalog.manager.directories.log_directory import DirectoryState
from stratalog.manager.log_manager import LogManager
from stratalog.manager.moves.log_move import MoveState
from stratalog.record.native.cleaned_batches import NO_HORIZON
from stratalog.server.background.local_cleaning import LocalCleaning
from stratalog.server.background.local_retention import LocalRetention
from stratalog.server.background.thread_scheduler import ThreadScheduler
from stratalog.server.configuration.settings import listen_address
from stratalog.server.partitions.partition_registry import PartitionRegistry

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

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics; each request calls it on a thread of the HTTP server."""
        if self.schedulers:
            yield _counter(
                "scheduler_failures",
                "Failures of the timekeeper of background tasks; it continues after each.",
                sum(scheduler.failure_count for scheduler in self.schedulers),
            )
        if self.registry is not None:
            yield _gauge(
                "server_offline_partition_count",
                "Partitions that are not served, because their log could not be opened or their disk failed.",
                sum(len(topic.unserved_partitions) for topic in self.registry.topics()),
            )
        if self.logs is not None:
            yield from _of_directories(self.logs)
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


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(PREFIX + name, text, value=value)


def _by_directory(name: str, text: str, values: dict[str, int]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=[_DIRECTORY])
    for path, value in values.items():
        family.add_metric([path], value)
    return family


class MetricsEndpoint:
    """Serves a collector over HTTP until `close`, on threads of its own. Belongs to one thread."""

    def __init__(self, listen: str, collector: Collector) -> None:
        """Listen for requests for metrics. Raises InvalidConfigError if the address is not free."""
        registry = CollectorRegistry()
        registry.register(collector)
        host, port = listen_address(listen, "metrics-listen")
        try:
            self._server, self._thread = start_http_server(port, host.strip("[]"), registry)
        except OSError as error:
            raise InvalidConfigError(
                "cannot listen on this address for metrics; stop the process that has the port, or choose"
                " another address",
                name="metrics-listen",
                value=listen,
                reason=error.strerror or str(error),
            ) from None
        self.port: int = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
