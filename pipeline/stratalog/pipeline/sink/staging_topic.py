"""The topic in which the rows of a query, or of a batch job, wait for the decision to append them.

Each has a topic of its own, of two partitions:

* `DECISIONS`: the decisions of the driver, a `decision_log`.
* `ROWS`: the record batches of all tasks, each the value of a record. Its key is the attempt of a task, and
  its headers are the partition that the batch goes to. Batches of attempts that were not chosen are never
  read, and deleted with the others.

Neither is lost while its batches are to be appended: a staged record is on disk before the task ends, or in
the object store if the rows have to be, and no time deletes it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.pipeline.sink.sink_options import STAGING_PREFIX
from stratalog.pipeline.sink.target_batches import MAX_BATCH_BYTES, Target, TargetBatch
from stratalog.record.header import parse_header

if TYPE_CHECKING:
    from stratalog.client.topics_admin import ConfigValue

DECISIONS = 0
ROWS = 1
PARTITION_COUNT = 2

_MAX_STAGED_BYTES = MAX_BATCH_BYTES + (64 << 10)
"""The largest batch of the topic: one batch of a partition in a record."""

_SEGMENT_BYTES = 64 << 20
"""Staged rows are deleted by the segment."""


class StagedPlaces(NamedTuple):
    """The batches of an attempt in the order in which they were staged: a number of each in each array."""

    offsets: array[int]
    """The records of `ROWS`."""
    targets: array[int]
    """The partitions, by their index in the attempt's `record_counts`."""
    record_counts: array[int]

    @classmethod
    def none(cls) -> StagedPlaces:
        return cls(array("q"), array("i"), array("i"))

    def add(self, offset: int, target: int, record_count: int) -> None:
        for numbers, number in zip(self, (offset, target, record_count), strict=True):
            numbers.append(number)


class StagedTask(NamedTuple):
    """The batches that an attempt of a task has staged."""

    attempt: str
    """Its id, that of no other attempt."""
    start_offset: int
    """Its records of `ROWS` lie from here on."""
    end_offset: int
    """Exclusive."""
    batch_count: int
    record_counts: tuple[tuple[Target, int], ...]
    """The records for each partition."""
    places: StagedPlaces | None = None
    """None if a server that was started anew does not know all of them any more."""


def staging_topic_name(query: str) -> str:
    """The topic of a query, or of a job, by its id."""
    return f"{STAGING_PREFIX}{query}"


def staging_config(*, is_object_durable: bool) -> dict[str, ConfigValue]:
    """The configuration of such a topic."""
    return {
        "cleanup.policy": "delete",
        "retention.ms": -1,
        "retention.bytes": -1,
        "segment.bytes": _SEGMENT_BYTES,
        "max.message.bytes": _MAX_STAGED_BYTES,
        "remote.storage.enable": is_object_durable,
        "min.durability": "object" if is_object_durable else "disk",
    }


def target_headers(target: Target) -> tuple[tuple[str, bytes], ...]:
    """The headers of a staged batch."""
    return (
        ("topic", target.topic.encode()),
        ("topic_id", target.topic_id.encode()),
        ("partition", str(target.partition).encode()),
    )


def staged_batch(headers: Iterable[tuple[str, bytes | None]], value: bytes | None) -> TargetBatch:
    """The batch of a staged record. Raises CorruptRecordError for a record that is none."""
    fields = {name: text.decode() for name, text in headers if text is not None}
    if value is None or not fields.keys() >= {"topic", "topic_id", "partition"}:
        raise CorruptRecordError(
            "a record of a staging topic is not one that the sink has written; let no other program write to"
            " the topic",
            headers=", ".join(fields),
        )
    target = Target(fields["topic"], fields["topic_id"], int(fields["partition"]))
    return TargetBatch(target, value, parse_header(value).records_count)
