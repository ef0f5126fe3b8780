"""The metrics of local logs: log directories, open logs, moves, and the cleaner."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric

from stratalog.cleaner.cleaner_stats import CleanerStats
from stratalog.manager.directories.log_directory import DirectoryState
from stratalog.manager.log_manager import LogManager
from stratalog.manager.moves.log_move import MoveState
from stratalog.record.native.cleaned_batches import NO_HORIZON
from stratalog.server.metrics.families import counter, gauge, gauges


def of_directories(logs: LogManager) -> Iterator[Metric]:
    """Yield the log directories."""
    found = logs.directories.statuses()
    offline = {one.path: int(one.state is DirectoryState.OFFLINE) for one in found}
    missing_count = len(logs.directories.missing())
    yield gauge(
        "log_manager_missing_log_directory_count",
        "Known log directories that are not in log.dirs.",
        missing_count,
    )
    yield gauge(
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
    disk_calls = logs.directories.disk_calls
    yield _by_directory(
        "log_manager_log_directory_silent",
        "1 if work on the log directory was given up because its disk does not answer, until it has ended.",
        {one.path: int(disk_calls.is_silent(one.path)) for one in found},
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
    yield gauges(
        "log_manager_remaining_segments_to_recover",
        "Segments that this thread has still to read in the log that it opens.",
        "thread",
        dict(sorted(logs.remaining_segment_counts.items())),
    )


def of_logs(logs: LogManager) -> Iterator[Metric]:
    """Yield the open logs."""
    opened = logs.logs()
    yield gauge("log_manager_log_count", "Logs that are open.", len(opened))
    yield gauge(
        "log_manager_offline_log_count",
        "Open logs that refuse all requests because their disk failed.",
        sum(log.availability.is_offline for log in opened),
    )
    yield gauge(
        "log_manager_tail_bytes", "Memory of the newest records, which are read from there.", logs.tail_bytes
    )
    yield gauge(
        "log_manager_producer_count",
        "Producer ids that all partitions remember.",
        logs.producer_room.count,
    )
    yield gauge(
        "log_future_timestamp_segments",
        "Segments with timestamps in the future that stopped the last retention by time, at most one a log.",
        sum(log.retention.future_segment_count for log in opened),
    )


def of_moves(logs: LogManager) -> Iterator[Metric]:
    """Yield the moves between log directories."""
    moves = logs.moves.progress()
    counts = Counter(move.state for move in moves)
    yield gauges(
        "log_manager_moves",
        "The last move between log directories of each partition that had one, by state.",
        "state",
        {state.value: counts[state] for state in MoveState},
    )
    yield gauge(
        "log_manager_moves_remaining_bytes",
        "Bytes that running moves have still to copy.",
        sum(move.remaining_bytes for move in moves if not move.state.is_final),
    )


def of_uncleanable(stats: CleanerStats, directories: tuple[str, ...]) -> Iterator[Metric]:
    """Yield the partitions that the cleaner cannot clean, by log directory."""
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


def of_cleaner(stats: CleanerStats) -> Iterator[Metric]:
    """Yield the work of the cleaner of local logs."""
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
        yield gauge("log_cleaner_" + name, text, value)
    for name, text, value in (
        ("cleans", "Finished cleans.", stats.clean_count),
        ("aborted_cleans", "Cleans that were aborted.", stats.aborted_count),
        ("cleaned_records", "Records that cleans have read.", stats.cleaned_record_count),
        ("dropped_records", "Records that cleans have dropped.", stats.dropped_record_count),
        ("records_without_key", "Dropped records that had no key.", stats.null_key_count),
        ("cleaned_bytes", "Bytes of the segments that cleans replaced.", stats.cleaned_bytes),
        ("reclaimed_bytes", "Bytes by which cleans made these segments smaller.", stats.reclaimed_bytes),
    ):
        yield counter("log_cleaner_" + name, text, value)


def _by_directory(name: str, text: str, values: Mapping[str, float]) -> Metric:
    return gauges(name, text, "log_directory", values)


def of_disk_waits(
    logs: LogManager, append_waits_s: Mapping[str, float], flush_waits_s: Mapping[str, float]
) -> Iterator[Metric]:
    """Yield the oldest work of appends under way in each log directory: turns, which write, and fsyncs. The
    mappings have the directories that had some, by path."""
    paths = [one.path for one in logs.directories.statuses()]
    yield _by_directory(
        "log_manager_oldest_append_wait_secs",
        "Seconds since the oldest turn that writes appends began, or was seen to compute; 0 if none does.",
        {path: append_waits_s.get(path, 0.0) for path in paths},
    )
    yield _by_directory(
        "log_manager_oldest_flush_wait_secs",
        "Seconds that the oldest fsync of appends has been waited for; 0 if none is.",
        {path: flush_waits_s.get(path, 0.0) for path in paths},
    )
