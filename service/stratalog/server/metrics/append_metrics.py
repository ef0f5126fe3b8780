"""The metrics of group commit: the groups of appends, their fsyncs, and their commits at `object`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from prometheus_client.core import Metric

from stratalog.base.histogram import HistogramCounts
from stratalog.server.append.long_validation import LongValidations
from stratalog.server.background.tail_commits import CommitStats
from stratalog.server.meters.append_groups import AppendGroups
from stratalog.server.metrics.families import counter, gauge, histograms


def of_groups(groups: AppendGroups) -> Iterator[Metric]:
    """Yield the groups in which appends are written and fsynced, of all partitions."""
    for name, text, one in (
        ("group_calls", "Appends that were written together.", groups.calls),
        ("group_records", "Records that were stored together.", groups.records),
        ("group_bytes", "Bytes of requests that were written together.", groups.sizes),
        ("flush_calls", "Appends that waited for an fsync together.", groups.flushed),
    ):
        yield histograms("append_" + name, text, (), [((), one.counts())])


def of_long_turns(validations: LongValidations) -> Metric:
    """The turns whose appends took long to validate, of all partitions."""
    return counter(
        "append_long_turns",
        "Turns of a partition whose appends took long to decompress, or to compress anew.",
        validations.turn_count,
    )


def of_flushes(durations: Mapping[str, HistogramCounts]) -> Metric:
    """The fsyncs of appends, by log directory."""
    return histograms(
        "log_manager_flush_duration_secs",
        "Seconds from the moment that an fsync of appends is asked for to its end.",
        ("log_directory",),
        (((path,), counts) for path, counts in durations.items()),
    )


def of_commits(stats: Sequence[CommitStats]) -> Iterator[Metric]:
    """The commits of appends at `object`, of all shards."""
    for name, text, count in (
        ("appends", "Appends at object that were acknowledged.", sum(one.append_count for one in stats)),
        ("bytes", "Bytes that their commits have made live.", sum(one.data_bytes for one in stats)),
        ("objects", "Objects of these commits.", sum(one.object_count for one in stats)),
        ("slices", "Slices of these commits.", sum(one.slice_count for one in stats)),
        ("timeouts", "Appends that were not committed in time.", sum(one.timeout_count for one in stats)),
        ("wait_secs", "Seconds that acknowledged appends have waited.", sum(one.wait_s for one in stats)),
    ):
        yield counter("object_commit_" + name, text, count)
    for name, text, count in (
        ("waiting_bytes", "Appends that wait for the next commit.", sum(one.waiting_bytes for one in stats)),
        (
            "waiting_partitions",
            "Partitions that wait for the next commit.",
            sum(one.waiting_count for one in stats),
        ),
    ):
        yield gauge("object_commit_" + name, text, count)
