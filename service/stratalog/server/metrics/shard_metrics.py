"""The metrics of shards and of what their objects hold."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from prometheus_client.core import Metric

from stratalog.compaction.job_history import Exclusion
from stratalog.compaction.plan.due_partitions import CompactionBacklog
from stratalog.remote.restore.metadata_scrub import FindingKind
from stratalog.server.metrics.families import gauge, gauges
from stratalog.server.operations.verification_log import EndedVerification
from stratalog.server.partitions.hosted_shard import HostedShard
from stratalog.server.partitions.offline_partition import ForeignPartition
from stratalog.server.partitions.partition_registry import HostedTopic
from stratalog.server.partitions.shard_set import ShardSet


def of_shards(shards: ShardSet) -> Iterator[Metric]:
    """Yield the shards that this server owns."""
    by_number = {str(shard.metadata.layout.shard): shard for shard in shards}
    for name, text, measure in _GAUGES_OF_A_SHARD:
        yield gauges(
            "shard_" + name, text, "shard", {number: measure(shard) for number, shard in by_number.items()}
        )


def of_exclusions(excluded: Collection[Exclusion]) -> Iterator[Metric]:
    """Yield the partitions that compaction leaves alone."""
    yield gauge(
        "compaction_excluded_partition_count",
        "Partitions that compaction leaves alone, as the last ones have found them.",
        len(excluded),
    )
    yield gauge(
        "compaction_excluded_since_timestamp_secs",
        "Time since when one of them is excluded, the oldest, in seconds since 1970; 0 for none.",
        min((one.since_ms for one in excluded), default=0) / 1000,
    )


def of_backlogs(backlogs: Mapping[int, CompactionBacklog]) -> Iterator[Metric]:
    """Yield the data that is not compacted, by shard."""
    for name, text, measure in _GAUGES_OF_A_BACKLOG:
        values = {str(number): measure(backlog) for number, backlog in backlogs.items()}
        yield gauges("compaction_" + name, text, "shard", values)


def of_verification(last: EndedVerification | None) -> Iterator[Metric]:
    """Yield those of the last finished verification; before the first the time is 0, and nothing is found."""
    yield gauge(
        "tier_verification_last_end_timestamp_secs",
        "End of the last finished verification since the start, in seconds since 1970; 0 for never.",
        0 if last is None else last.end_ms / 1000,
    )
    yield gauges(
        "tier_verification_findings",
        "Findings of the last finished verification.",
        "kind",
        {kind.value: 0 if last is None else last.finding_counts[kind] for kind in FindingKind},
    )
    yield gauge(
        "tier_verification_unreferenced_files",
        "Files that no commit refers to, at the last finished verification.",
        0 if last is None else last.unreferenced.file_count,
    )
    yield gauge(
        "tier_verification_unreferenced_bytes",
        "Size of these files.",
        0 if last is None else last.unreferenced.size_bytes,
    )
    yield gauge(
        "tier_verification_waiting_unreferenced_files",
        "Those of these files whose grace was not over then, such as uploads under way.",
        0 if last is None else last.unreferenced.waiting_count,
    )


def stored_bytes(topic: HostedTopic) -> int:
    """Size of the topic's slices in the shards that this server owns."""
    owned = (one for one in topic.all_partitions if not isinstance(one, ForeignPartition))
    states = (one.tier_state() for one in owned)
    return sum(state.tiered_bytes for state in states if state is not None)


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
_GAUGES_OF_A_BACKLOG: tuple[tuple[str, str, Callable[[CompactionBacklog], float]], ...] = (
    ("dirty_bytes", "Bytes of compacted topics that are not compacted yet.", lambda one: one.dirty_bytes),
    ("due_partition_count", "Partitions that are due for compaction.", lambda one: one.due_count),
    (
        "due_since_timestamp_secs",
        "Since when one of them waits, the longest, in seconds since 1970; 0 for none.",
        lambda one: max(one.due_since_ms, 0) / 1000,
    ),
    (
        "overdue_since_timestamp_secs",
        "Since when the oldest record is over max.compaction.lag.ms, in seconds since 1970; 0 for none.",
        lambda one: max(one.overdue_since_ms, 0) / 1000,
    ),
)
