"""The fields of batch headers that the checksums of batches leave out, summed up for a whole segment.

The checksum of a batch does not cover its base offset and its leader epoch. Kafka leaves them out so that a
broker can set them without another checksum. So a sum over them in the order of the batches goes into the
seal of a segment, packed::

    crc      uint32   CRC-32C of all (base offset int64, leader epoch int32)
    epochs            for each leader epoch that begins in the segment, the first batch's included:
      epoch          int32
      floor_offset   int64   offset after the batch before; the segment's base offset at the first
      start_offset   int64   base offset of the first batch with this epoch

A hole between floor and start is what compaction has left: the epoch may have begun anywhere in it.

The sum is empty, `UNKNOWN_HEADERS`, if damage hides headers of a broker's segment (`segment_adoption`). It
says nothing about the batches then, and stays so if the segment grows.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from stratalog.record.builder import NO_LEADER_EPOCH
from stratalog.record.header import BatchHeader
from stratalog.record.native.batch_row import BatchRow

_CRC = struct.Struct(">I")
_EPOCH = struct.Struct(">iqq")
_FIELDS = struct.Struct(">qi")


UNKNOWN_HEADERS = b""
"""The packed sum of a segment with headers that damage hides."""


class SummedEpoch(NamedTuple):
    """A leader epoch that begins at `start_offset`. The batch before ends at `floor_offset`."""

    epoch: int
    floor_offset: int
    start_offset: int


class BatchHeaders:
    """The sum over the headers of a segment's batches, which grows with them. Guarded by its user."""

    __slots__ = ("_epochs", "_is_unknown", "_leader_epoch", "crc", "end_offset")

    def __init__(self, base_offset: int) -> None:
        self.crc = 0
        self.end_offset = base_offset
        """The offset after the last batch."""
        self._epochs = b""
        self._is_unknown = False
        self._leader_epoch = NO_LEADER_EPOCH

    def follow(self, rows: Sequence[BatchRow], crc: int) -> None:
        """Add batches. `crc` already covers them."""
        if not rows:
            return
        if rows[0].leader_epoch != self._leader_epoch or rows[-1].leader_epoch != self._leader_epoch:
            self._follow_epochs(rows)
        self.crc = crc
        self.end_offset = rows[-1].last_offset + 1

    def _follow_epochs(self, rows: Sequence[BatchRow]) -> None:
        floor_offset = self.end_offset
        for row in rows:
            if row.leader_epoch != self._leader_epoch:
                self._epochs += _EPOCH.pack(row.leader_epoch, floor_offset, row.base_offset)
                self._leader_epoch = row.leader_epoch
            floor_offset = row.last_offset + 1

    def follow_header(self, position: int, header: BatchHeader) -> BatchRow:
        """Add the batch with this header; return it as a row."""
        row = row_of(position, header)
        self.follow([row], crc_with(row.base_offset, row.leader_epoch, self.crc))
        return row

    def resume(self, packed: bytes, end_offset: int) -> None:
        """Go on from the sum in a seal of batches that end there."""
        self.end_offset = end_offset
        self._is_unknown = packed == UNKNOWN_HEADERS
        if self._is_unknown:
            return
        self.crc, self._epochs = crc_of(packed), packed[_CRC.size :]
        epochs = summed_epochs(packed)
        self._leader_epoch = epochs[-1].epoch if epochs else NO_LEADER_EPOCH

    def packed(self) -> bytes:
        """The sum as a seal has it."""
        return UNKNOWN_HEADERS if self._is_unknown else _CRC.pack(self.crc) + self._epochs


def crc_with(base_offset: int, leader_epoch: int, crc: int) -> int:
    """The checksum that goes on from `crc` with the next batch."""
    return crc32c(_FIELDS.pack(base_offset, leader_epoch), crc)


def crc_of(packed: bytes) -> int:
    """The checksum of all base offsets and leader epochs in a packed sum."""
    crc: int = _CRC.unpack_from(packed)[0]
    return crc


def summed_epochs(packed: bytes) -> list[SummedEpoch]:
    """The leader epochs in a packed sum."""
    return [SummedEpoch(*fields) for fields in _EPOCH.iter_unpack(packed[_CRC.size :])]


def packed_bytes(epoch_count: int) -> int:
    """The size of a packed sum with so many leader epochs; -1 stands for unknown headers."""
    return len(UNKNOWN_HEADERS) if epoch_count < 0 else _CRC.size + epoch_count * _EPOCH.size


def epoch_count(packed: bytes) -> int:
    """The number of leader epochs in a packed sum; -1 if the headers are unknown."""
    return -1 if packed == UNKNOWN_HEADERS else (len(packed) - _CRC.size) // _EPOCH.size


def row_of(position: int, header: BatchHeader) -> BatchRow:
    """The batch with this header as a row."""
    return BatchRow(
        position=position,
        size_bytes=header.size_in_bytes,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        max_timestamp_ms=header.max_timestamp,
        leader_epoch=header.leader_epoch,
        is_noted=False,
    )
