"""The entry of one slice in the directory of an object file.

A slice is an unbroken row of a partition's record batches inside an object. Its entry tells where the bytes
lie and everything that a reader, a compactor or a rebuild must know before it reads them. The entry describes
the *bytes*; their valid range may be narrower: a commit can clip a live slice at its low end, and then
`LiveSlice.base_offset` is above `SliceEntry.base_offset`.

Invariants (`SliceEntry.fault` names the first broken one):

* ``base_offset <= end_offset``; every record's offset lies below `end_offset`; offsets may have holes.
* A slice without data has no records and no last batch. Data without records are empty batches that are kept
  for their offsets or producers.
* `record_count` counts every record in the bytes, control records and records below `base_offset` included:
  the ordinals of the key stream and the bits of a survivor bitmap lie in ``[0, record_count)``.
* ``stable_end_offset <= end_offset``; they are equal exactly where no transaction is open at the end.

All positions count from the first byte of the object. Immutable, so thread-safe.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from stratalog.base.types import TopicIdPartition

MAX_RECORD_COUNT = (1 << 32) - 1
"""Ordinals are 32-bit numbers: more records are divided over several slices."""

NO_TIMESTAMP = -1
"""Kafka's "no timestamp"; also the timestamps of a slice without records."""


class LastBatch(NamedTuple):
    """The last batch of a slice, for comparison with the local log. The CRC does not cover offset and
    epoch.
    """

    base_offset: int
    epoch: int
    crc: int


class LeaderEpoch(NamedTuple):
    """Batches from `start_offset` on carry `epoch`, up to the next entry."""

    epoch: int
    start_offset: int


class OpenTransaction(NamedTuple):
    """A transaction that is open at the end of a slice. Its first record may lie before the slice."""

    producer_id: int
    first_offset: int


class PartRef(NamedTuple):
    """The position of a part of an object, and the CRC-32C of its bytes."""

    position: int
    size_bytes: int
    crc: int


class KeyStreamRef(NamedTuple):
    """The position of a slice's key stream, and the hashing that made it. Usable only while the topic still
    hashes that way.
    """

    position: int
    size_bytes: int
    entry_count: int
    crc: int
    hash_key_id: int
    """64 bits derived from the topic's hash key; the key itself never leaves the catalog."""


class SliceEntry(NamedTuple):
    """One slice of an object file. Immutable. Name each value: it is a tuple only because jobs and pages make
    a hundred thousand of them."""

    topic_id: UUID
    topic: str
    partition: int
    base_offset: int
    end_offset: int
    """Exclusive. Slices of a partition tile, so it is the base of the next slice even if the last records are
    gone.
    """
    data_position: int
    data_bytes: int
    data_crc: int
    """CRC-32C of the slice's data, from the first byte to the last."""
    record_count: int
    min_timestamp: int
    """Milliseconds; -1 without records. The times are those of all records, markers included."""
    max_timestamp: int
    max_timestamp_offset: int
    """Offset of the first record that has `max_timestamp`."""
    codec_mask: int
    """Bit ``1 << codec`` for each compression codec that occurs."""
    stable_end_offset: int
    """Exclusive end of the decided records: the first offset of an open transaction, else `end_offset`."""
    index: PartRef  # type: ignore[assignment]  # no caller asks a tuple for the place of a value
    has_aborted: bool = False
    """Whether the slice's index names aborted transactions."""
    open_transactions: tuple[OpenTransaction, ...] = ()
    tombstone_count: int = 0
    marker_count: int = 0
    earliest_delete_horizon_ms: int | None = None
    leader_epochs: tuple[LeaderEpoch, ...] = ()
    last_batch: LastBatch | None = None
    key_stream: KeyStreamRef | None = None

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return TopicIdPartition(self.topic_id, self.partition)

    @staticmethod
    def columns_of(entries: Sequence[SliceEntry]) -> dict[str, Sequence[Any]]:
        """The values of all entries by field: a step for a column costs less than one for each value."""
        values = zip(*entries, strict=True) if entries else itertools.repeat(())
        return dict(zip(SliceEntry._fields, values, strict=False))

    @staticmethod
    def of_columns(columns: Mapping[str, Sequence[Any]]) -> tuple[SliceEntry, ...]:
        """The entries with these values by field; other columns do not matter."""
        values = zip(*[columns[field] for field in SliceEntry._fields], strict=True)
        return tuple(map(SliceEntry._make, values))

    @property
    def data_end_position(self) -> int:
        return self.data_position + self.data_bytes

    def fault(self) -> str | None:
        """The first contradiction in this entry, as a clause for a message; None if there is none."""
        if not 0 <= self.base_offset <= self.end_offset:
            return "its offset range runs backwards"
        if not 0 <= self.record_count <= MAX_RECORD_COUNT:
            return "its record count is out of range"
        if (
            min(self.partition, self.data_position, self.data_bytes, self.tombstone_count, self.marker_count)
            < 0
        ):
            return "a count or position is negative"
        if self.data_bytes == 0 and self.record_count > 0:
            return "it counts records without data"
        if (self.data_bytes == 0) != (self.last_batch is None):
            return "data and last batch disagree about whether it is empty"
        if self.tombstone_count + self.marker_count > self.record_count:
            return "it counts more tombstones and markers than records"
        if self.min_timestamp > self.max_timestamp:
            return "its timestamps run backwards"
        if self.last_batch is not None and not 0 <= self.last_batch.base_offset < self.end_offset:
            return "its last batch lies outside its range"
        if len(self.leader_epochs) > 1 and not _ascend(self.leader_epochs):
            return "its leader epochs do not ascend"
        if not self._stable_end_fits():
            return "its stable end and its open transactions contradict each other"
        return self._key_stream_fault()

    def check(self) -> None:
        fault = self.fault()
        assert fault is None, f"slice of {self.topic}-{self.partition}: {fault}"

    def _stable_end_fits(self) -> bool:
        if not self.open_transactions:
            return self.stable_end_offset == self.end_offset
        first_open_offset = min(transaction.first_offset for transaction in self.open_transactions)
        return first_open_offset == self.stable_end_offset < self.end_offset

    def _key_stream_fault(self) -> str | None:
        stream = self.key_stream
        if stream is None:
            return None
        if self.open_transactions:
            return "it has a key stream although transactions are undecided"
        if stream.entry_count > self.record_count:
            return "its key stream has more entries than it has records"
        return None


def _ascend(epochs: Sequence[LeaderEpoch]) -> bool:
    return all(
        earlier.epoch < later.epoch and earlier.start_offset < later.start_offset
        for earlier, later in itertools.pairwise(epochs)
    )


def joined_epochs(entries: Iterable[SliceEntry]) -> tuple[LeaderEpoch, ...]:
    """The leader epochs of consecutive slices, each with its first start offset."""
    return ascending_epochs(itertools.chain.from_iterable(entry.leader_epochs for entry in entries))


def ascending_epochs(pairs: Iterable[tuple[int, int]]) -> tuple[LeaderEpoch, ...]:
    """The same from the pairs of epoch and start offset of all slices."""
    joined: list[LeaderEpoch] = []
    last_epoch = last_start_offset = -2
    for epoch, start_offset in pairs:
        if epoch > last_epoch and start_offset > last_start_offset:
            joined.append(LeaderEpoch(epoch, start_offset))
            last_epoch, last_start_offset = epoch, start_offset
    return tuple(joined)
