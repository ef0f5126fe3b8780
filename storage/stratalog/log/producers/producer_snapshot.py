"""The state of a partition's producers at one offset, in Kafka's format (version 1).

Big-endian::

    version      int16   1
    crc          uint32  CRC-32C of everything behind it
    entry_count  int32
    entries      46 bytes each, one for each producer:
        producer_id               int64
        epoch                     int16
        last_sequence             int32  of its last batch; -1 if none is known
        last_offset               int64  of its last batch; -1 if none is known
        offset_delta              int32  last minus first offset of that batch
        timestamp                 int64  highest timestamp of its last batch, a marker included
        coordinator_epoch         int32  of its last marker; -1 without one
        current_txn_first_offset  int64  first offset of its open transaction; -1 without one

Only the newest of the last five batches of a producer is kept. The file is named after the offset behind the
last batch that it knows. It is only a short cut: a damaged one is removed, and the replay begins further
back.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from typing import NamedTuple

from crc32c import crc32c

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.log.producers.producer_state_entry import BatchMetadata, ProducerStateEntry
from stratalog.record.header import NO_SEQUENCE
from stratalog.segment.file_names import parse_name_offset, segment_path

SNAPSHOT_SUFFIX = ".snapshot"
_NAME = re.compile(r"([0-9]{20})\.snapshot")

_VERSION = 1
_HEADER = struct.Struct(">hI")
_COUNT = struct.Struct(">i")
_ENTRY = struct.Struct(">qhiqiqiq")
ENTRY_SIZE = _ENTRY.size
assert ENTRY_SIZE == 46
_NONE = -1


class ProducerSnapshot(NamedTuple):
    """All producers as they were when the log ended at `end_offset`."""

    end_offset: int
    entries: tuple[ProducerStateEntry, ...]

    def to_bytes(self) -> bytes:
        """The contents of the file, entries in their order here."""
        body = _COUNT.pack(len(self.entries)) + b"".join(map(_pack, self.entries))
        return _HEADER.pack(_VERSION, crc32c(body)) + body

    def after(self, earlier: ProducerSnapshot) -> ProducerSnapshot:
        """The whole state, where this one has the producers that have changed since `earlier`."""
        entries = {entry.producer_id: entry for entry in (*earlier.entries, *self.entries)}
        return ProducerSnapshot(self.end_offset, tuple(entries[one] for one in sorted(entries)))

    @staticmethod
    def from_bytes(end_offset: int, data: Buffer) -> ProducerSnapshot:
        """Parse the contents of a file. Raises CorruptRecordError if they are no snapshot at that offset."""
        entries_position = _HEADER.size + _COUNT.size
        if len(data) < entries_position:
            raise CorruptRecordError("a producer snapshot is cut short", size=len(data))
        version, crc = _HEADER.unpack_from(data)
        (entry_count,) = _COUNT.unpack_from(data, _HEADER.size)
        if version != _VERSION:
            raise CorruptRecordError("a producer snapshot has an unknown version", version=version)
        if crc32c(memoryview(data)[_HEADER.size :]) != crc:
            raise CorruptRecordError("a producer snapshot does not match its checksum", end_offset=end_offset)
        if entry_count < 0 or len(data) != entries_position + entry_count * ENTRY_SIZE:
            raise CorruptRecordError(
                "a producer snapshot does not have the size of its entries", entry_count=entry_count
            )
        entries = tuple(
            _unpack(fields, end_offset) for fields in _ENTRY.iter_unpack(memoryview(data)[entries_position:])
        )
        _require_distinct(entry.producer_id for entry in entries)
        _require_distinct(
            entry.current_txn_first_offset for entry in entries if entry.current_txn_first_offset is not None
        )
        return ProducerSnapshot(end_offset, entries)


def snapshot_path(directory: str, end_offset: int) -> str:
    """The path of the snapshot at that offset."""
    return segment_path(directory, end_offset, SNAPSHOT_SUFFIX)


def parse_snapshot_name(name: str) -> int | None:
    """The offset of a snapshot file; None for any other name."""
    match = _NAME.fullmatch(name)
    return parse_name_offset(match[1]) if match else None


def _pack(entry: ProducerStateEntry) -> bytes:
    last = entry.batches[-1] if entry.batches else BatchMetadata(NO_SEQUENCE, _NONE, 0, _NONE)
    first_offset = entry.current_txn_first_offset
    return _ENTRY.pack(
        entry.producer_id,
        entry.epoch,
        last.last_sequence,
        last.last_offset,
        last.offset_delta,
        entry.last_timestamp_ms,
        entry.coordinator_epoch,
        _NONE if first_offset is None else first_offset,
    )


def _unpack(fields: tuple[int, ...], end_offset: int) -> ProducerStateEntry:
    (
        producer_id,
        epoch,
        last_sequence,
        last_offset,
        offset_delta,
        timestamp_ms,
        coordinator_epoch,
        txn_first_offset,
    ) = fields
    if not (
        producer_id >= 0
        and last_sequence >= NO_SEQUENCE
        and _NONE <= last_offset < end_offset
        and 0 <= offset_delta <= max(0, last_offset)
        and _NONE <= txn_first_offset < end_offset
    ):
        raise CorruptRecordError("an entry of a producer snapshot is out of range", entry=fields)
    last = BatchMetadata(last_sequence, last_offset, offset_delta, timestamp_ms)
    return ProducerStateEntry(
        producer_id=producer_id,
        epoch=epoch,
        coordinator_epoch=coordinator_epoch,
        last_timestamp_ms=timestamp_ms,
        current_txn_first_offset=None if txn_first_offset == _NONE else txn_first_offset,
        batches=() if last_offset == _NONE else (last,),
    )


def _require_distinct(numbers: Iterable[int]) -> None:
    found = list(numbers)
    if len(set(found)) != len(found):
        raise CorruptRecordError("a producer snapshot has a producer or a transaction twice")
