"""The metrics of the background passes, and of the records that they have not uploaded yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client.core import Metric

from stratalog.server.background.pass_outcome import Backlog
from stratalog.server.background.pass_registry import PassRegistry, PassStatus
from stratalog.server.copy_lag import TopicLag
from stratalog.server.metrics.families import counter, counters, gauge, gauges


def of_passes(statuses: Sequence[PassStatus]) -> Iterator[Metric]:
    """Yield the turns, the work and the backlog of each pass."""
    for name, text, measure in _GAUGES_OF_A_PASS:
        values = {status.name: measure(status) for status in statuses}
        yield gauges("pass_" + name, text, "pass", values)
    for name, text, counts in (
        ("turns", "Turns that have ended.", {one.name: one.turn_count for one in statuses}),
        ("failed_turns", "Turns that had a failure.", {one.name: one.failed_turn_count for one in statuses}),
    ):
        yield counters("pass_" + name, text, ("pass",), (((key,), count) for key, count in counts.items()))
    yield counters(
        "pass_work",
        "Finished work, by noun.",
        ("pass", "noun"),
        (((one.name, noun), amount) for one in statuses for noun, amount in one.total_done.items()),
    )
    yield counters(
        "pass_refusals",
        "Pieces of work that a rule refused, by reason.",
        ("pass", "reason"),
        (((one.name, reason), amount) for one in statuses for reason, amount in one.total_refusals.items()),
    )


def of_tiering(passes: PassRegistry) -> Iterator[Metric]:
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
        yield gauge(topics + name, text, value)
    for name, text, count in (
        ("copy_bytes", "Bytes that uploads have committed.", upload.total_done.get("bytes", 0)),
        ("copy_requests", "Objects that uploads have committed.", upload.total_done.get("objects", 0)),
        ("copy_errors", "Uploads with a failure.", upload.failed_turn_count),
        ("delete_requests", "Objects that were deleted.", collector.total_done.get("files", 0)),
        ("delete_errors", "Collections with a failure.", collector.failed_turn_count),
    ):
        yield counter(topics + name, text, count)


def of_copy_lag(lags: Mapping[str, TopicLag]) -> Iterator[Metric]:
    """By topic what is not in the object store, at the end of the last upload."""
    for name, text, measure in _GAUGES_OF_A_LAG:
        values = {topic: measure(lag) for topic, lag in lags.items()}
        yield gauges("broker_topic_metrics_remote_copy_" + name, text, "topic", values)


def _since_secs(backlog: Backlog) -> float:
    return max(backlog.oldest_ms, 0) / 1000


def _seconds(time_ms: int) -> float:
    """A time in seconds since 1970; 0 for none."""
    return max(0, time_ms) / 1000


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
