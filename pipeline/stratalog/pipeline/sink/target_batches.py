"""Rows as record batches of the partitions that they go to.

Rows with a key go to the partition of Kafka's murmur2, as those of every client; rows without a key fill a
batch of one partition, then one of the next; a row may name its partition. Nothing here has to be
deterministic: another attempt of the task may choose otherwise, and only the batches of one are appended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.errors import RecordTooLargeError
from stratalog.pipeline.sink.topic_demands import TopicDemands, naming_topic
from stratalog.record.builder import head_of_section
from stratalog.record.codecs.compression import Codec, compress
from stratalog.record.native.record_accumulator import OpenBatch, RecordAccumulator
from stratalog.record.record_rows import RecordRows

if TYPE_CHECKING:
    from stratalog.client.values import Topic

BATCH_BYTES = 512 << 10
"""A batch is complete at about this size, before its compression."""

MAX_BATCH_BYTES = 30 << 20
"""No batch is larger: a request of 32 MiB to the service has room for it, and for what comes with it."""

BUFFER_BYTES = 64 << 20
"""The open batches of all partitions together."""

_LIMIT_KEYS = ("max.message.bytes", "segment.bytes")


class Target(NamedTuple):
    """A partition of a topic that is written to."""

    topic: str
    topic_id: str
    """The only topic of the name that takes the rows."""
    partition: int


class TargetBatch(NamedTuple):
    """A record batch without a producer, and where it goes."""

    target: Target
    batch: bytes
    record_count: int


class TargetBatches(RecordAccumulator):
    """Encodes rows into batches of their partitions. Belongs to one thread."""

    def __init__(
        self, describe: Callable[[str], Topic], clock: Clock, compression: str, first_partition: int
    ) -> None:
        """`first_partition`: tasks begin to fill different partitions with rows without a key."""
        super().__init__(BATCH_BYTES, BUFFER_BYTES, _no_receipt)
        self._describe = describe
        self._clock = clock
        self._demands: dict[str, TopicDemands] = {}
        self._codec = Codec[compression.upper()]
        self._first_partition = first_partition

    def add(self, topic: str, rows: RecordRows) -> list[TargetBatch]:
        """Add rows; returns the batches that are complete. Raises UnknownTopicOrPartitionError,
        InvalidRequestError for a partition that the topic does not have, and rows that the topic refuses."""
        if not self.partition_count(topic):
            self._learn(topic)
        if topic in self._demands:
            self._demands[topic].require_met(rows, self._clock)
        complete: list[TargetBatch] = []
        row = 0
        while row < rows.row_count:
            with naming_topic(topic):
                row, _ = self.send_rows(topic, rows, row)
            if row < rows.row_count:
                # The buffer is full.
                self.close_all()
            complete += self._taken()
        return complete

    def finish(self) -> list[TargetBatch]:
        """The batches that are not complete."""
        self.close_all()
        return self._taken()

    def refuse_size(self, topic: str, size_bytes: int, max_bytes: int) -> None:
        """Raise RecordTooLargeError. It is sure before anything is appended, so that no batch that was
        decided on is refused for it."""
        raise RecordTooLargeError(
            "the row is larger than its topic takes, before compression; make it smaller or raise the limit",
            topic=topic,
            size_bytes=size_bytes,
            max_bytes=max_bytes,
        )

    def _learn(self, topic: str) -> None:
        found = self._describe(topic)
        if found.config:
            # Otherwise the server does not understand it.
            self._demands[topic] = TopicDemands.of(topic, found.config)
        limits = [int(found.config[key]) for key in _LIMIT_KEYS if key in found.config]
        self.hold_topic(
            topic,
            found.partition_count,
            self._first_partition % found.partition_count,
            topic_id=found.topic_id,
            max_batch_bytes=min([*limits, MAX_BATCH_BYTES]),
        )
        self.open_topic(topic)

    def _taken(self) -> list[TargetBatch]:
        _, complete = self.take_batches()
        return [self._encoded(batch) for batch in complete]

    def _encoded(self, batch: OpenBatch) -> TargetBatch:
        size_bytes = batch.size_bytes
        section = batch.take_section()
        self.release(size_bytes)
        compressed = section if self._codec is Codec.NONE else compress(self._codec, section)
        head = head_of_section(
            compressed,
            codec=self._codec,
            records_count=batch.record_count,
            base_timestamp=batch.base_timestamp,
            max_timestamp=batch.max_timestamp,
        )
        encoded = b"".join((head, compressed))
        return TargetBatch(Target(batch.topic, batch.topic_id, batch.partition), encoded, batch.record_count)


def _no_receipt(*_: object) -> None:
    """A batch has no receipt: it is not sent from here."""
