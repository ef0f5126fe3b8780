"""All that was appended to one partition, as a list, and the promises that follow from it.

The ledger knows records, not segments, slices or objects. The offset of a record is its place in the list.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from stratalog.base.types import Durability
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.record import Record

UNLIMITED = -1
_KNOWN_BATCHES = 5
"""Batches of a producer that a process knows again."""


class TopicPlan(NamedTuple):
    """The configuration of a topic as the ledger understands it."""

    name: str
    config: Mapping[str, str]
    level: Durability = Durability.OS
    """The level of the topic."""
    is_tiered: bool = True
    is_compacted: bool = False
    retention_ms: int = UNLIMITED
    retention_bytes: int = UNLIMITED


class Batch(NamedTuple):
    """A batch that is in the log, as it was sent."""

    base_offset: int
    end_offset: int
    data: bytes
    producer: BatchProducer


class PartitionLedger:
    """One partition's records. Not thread-safe: one test uses it."""

    def __init__(self, topic: TopicPlan) -> None:
        self.topic = topic
        self.records: list[Record] = []
        self.batches: list[Batch] = []
        self.log_start_offset = 0
        self.durable_end_offset = 0
        """Below this offset every record was acknowledged at `disk` or `object`, or seen in the store."""
        self.tiered_end_offset = 0
        """Below this offset every record was acknowledged at `object`, or seen in the store."""
        self.certain_end_offset = 0
        """Behind it lies an append at which the process died: it may be in the log or not."""
        self.opened_end_offset = 0
        """The end at the last start: of what lies below, a producer's last batch alone is known again."""
        self.deletable_offset = 0
        """Records below this offset were deleted, or may have been."""

    @property
    def end_offset(self) -> int:
        return len(self.records)

    def append(
        self, records: Sequence[Record], data: bytes, producer: BatchProducer, *, is_certain: bool = True
    ) -> Batch:
        """A batch got into the log, or maybe."""
        base_offset = self.end_offset
        self.records += [one._replace(offset=base_offset + number) for number, one in enumerate(records)]
        if is_certain:
            self.certain_end_offset = self.end_offset
        self.batches.append(Batch(base_offset, self.end_offset, data, producer))
        return self.batches[-1]

    def next_sequence(self, producer_id: int) -> int:
        """The sequence that the producer goes on with."""
        for batch in reversed(self.batches):
            if batch.producer.producer_id == producer_id:
                return batch.producer.base_sequence + batch.end_offset - batch.base_offset
        return 0

    def is_known_again(self, batch: Batch) -> bool:
        """Whether the log has to know a batch of a producer again."""
        of_producer = [one for one in self.batches if one.producer.producer_id == batch.producer.producer_id]
        is_of_process = batch.base_offset >= self.opened_end_offset
        return batch in (of_producer[-_KNOWN_BATCHES:] if is_of_process else of_producer[-1:])

    def note_durable(self, end_offset: int, *, is_tiered: bool) -> None:
        """Every record below that offset survives the loss of power, or of the machine."""
        self.durable_end_offset = max(self.durable_end_offset, end_offset)
        if is_tiered:
            self.tiered_end_offset = max(self.tiered_end_offset, end_offset)

    def cut(self, end_offset: int) -> None:
        """The log goes on at that offset: what was behind it is lost, rightfully."""
        del self.records[end_offset:]
        self.batches = [one for one in self.batches if one.end_offset <= end_offset]
        self.certain_end_offset = self.opened_end_offset = end_offset
        self.durable_end_offset = min(self.durable_end_offset, end_offset)

    def require_start(self, start_offset: int, now_ms: int) -> None:
        """Check that the log may begin there, and remember it. Raises AssertionError."""
        before = self.log_start_offset
        assert before <= start_offset <= self.end_offset, f"log start {start_offset} after {before}"
        for record in self.records[before:start_offset]:
            assert self._may_expire(record, start_offset, now_ms), (
                f"the record went before its time: {record}"
            )
        self.log_start_offset = start_offset

    def _may_expire(self, record: Record, start_offset: int, now_ms: int) -> bool:
        topic = self.topic
        if record.offset < self.deletable_offset:
            return True
        if topic.is_compacted:
            later = self.records[record.offset + 1 :]
            if record.is_tombstone or any(one.key == record.key for one in later):
                # Compaction may have removed it before.
                return True
        if topic.retention_ms != UNLIMITED and record.timestamp_ms + topic.retention_ms <= now_ms:
            return True
        rest_bytes = sum(len(one.data) for one in self.batches if one.base_offset >= start_offset)
        return topic.retention_bytes != UNLIMITED and rest_bytes >= topic.retention_bytes

    def require_readable(self, found: Sequence[Record], end_offset: int, compacted_upto: int) -> None:
        """Check what a reader gets from the log start up to `end_offset`, in both tiers. Raises
        AssertionError."""
        wanted = self.records[self.log_start_offset : end_offset]
        if not self.topic.is_compacted:
            require_same(found, wanted)
            return
        self.require_survivors(found, self.log_start_offset, end_offset, end_offset)
        self._require_no_return(wanted, {record.offset: record for record in found})
        keys = [record.key for record in found if record.offset < compacted_upto]
        assert len(keys) == len(set(keys)), "a key has two records below compacted_upto"

    def require_survivors(
        self, found: Sequence[Record], base_offset: int, end_offset: int, newest_offset: int
    ) -> None:
        """Check what one read of a compacted topic gets between two offsets: all but what may be gone,
        because the key has a later record below `newest_offset`. Raises AssertionError."""
        offsets = [record.offset for record in found]
        assert offsets == sorted(set(offsets)), "the records are out of order"
        require_same(found, [self.records[offset] for offset in offsets])
        last = {record.key: record.offset for record in self.records[:newest_offset]}
        for record in self.records[base_offset:end_offset]:
            if record.offset not in set(offsets):
                is_displaced = last[record.key] > record.offset
                assert is_displaced or record.is_tombstone, f"the last record of its key is gone: {record}"

    @staticmethod
    def _require_no_return(wanted: Sequence[Record], found: Mapping[int, Record]) -> None:
        """Check that no value is back whose tombstone is gone."""
        last_found = {record.key: record for record in found.values()}
        last_wanted = {record.key: record for record in wanted}
        for key, record in last_found.items():
            if record != last_wanted[key]:
                assert record.is_tombstone, f"a deleted key is back: {record}"


def require_same(found: Sequence[Record], wanted: Sequence[Record]) -> None:
    """Check that both lists are the same, and name the first difference. Raises AssertionError."""
    if list(found) == list(wanted):
        return
    for one, other in zip(found, wanted, strict=False):
        assert one == other, f"read {one}, wanted {other}"
    raise AssertionError(
        f"read {len(found)} records up to {found[-1:]}, wanted {len(wanted)} up to {list(wanted[-1:])}"
    )
