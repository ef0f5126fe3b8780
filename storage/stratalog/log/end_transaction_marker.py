"""The control record that ends a transaction, in Kafka's format.

A control batch holds one record, uncompressed, under the producer's id and epoch and without a sequence::

    key    version int16 = 0, type int16: 0 abort, 1 commit
    value  version int16 = 0, coordinator_epoch int32

Higher versions only add fields at the end. A compaction that has removed a transaction and its marker may
leave the batch without its record, so that the producer's epoch is not lost.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.record import kernels
from stratalog.record.batch import decode
from stratalog.record.builder import rebuild_batch
from stratalog.record.compression import Codec
from stratalog.record.header import (
    CONTROL_BIT,
    MAGIC,
    NO_SEQUENCE,
    TRANSACTIONAL_BIT,
    BatchHeader,
)
from stratalog.record.record import Record

_VERSION = 0
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class ControlType(enum.IntEnum):
    """How a transaction ended. The numbers are those of the record's key."""

    ABORT = 0
    COMMIT = 1


class EndTransactionMarker(NamedTuple):
    """What the control record says. `coordinator_epoch`: of the transaction coordinator that wrote it."""

    control_type: ControlType
    coordinator_epoch: int

    @staticmethod
    def read(buffer: Buffer, position: int, header: BatchHeader) -> EndTransactionMarker | None:
        """The marker in the control batch at `position`; None where compaction has removed it.

        Raises CorruptRecordError.
        """
        assert header.is_control
        if header.codec is not Codec.NONE or header.records_count > 1:
            raise CorruptRecordError(
                "a control batch holds one marker, uncompressed; find out who wrote it",
                base_offset=header.base_offset,
                records_count=header.records_count,
            )
        records = decode(buffer, position)
        return _parse(records[0]) if records else None

    def to_batch(
        self, producer_id: int, producer_epoch: int, timestamp_ms: int, *, base_offset: int, leader_epoch: int
    ) -> bytes:
        """The control batch that ends the producer's transaction."""
        record = Record(
            0,
            timestamp_ms,
            _KEY.pack(_VERSION, self.control_type),
            _VALUE.pack(_VERSION, self.coordinator_epoch),
        )
        header = BatchHeader(
            base_offset=base_offset,
            batch_length=0,
            leader_epoch=leader_epoch,
            magic=MAGIC,
            crc=0,
            attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
            last_offset_delta=0,
            base_timestamp=timestamp_ms,
            max_timestamp=timestamp_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=NO_SEQUENCE,
            records_count=1,
        )
        payload = kernels.encode_records([record], timestamp_ms)
        return rebuild_batch(header, payload, records_count=1, max_timestamp=timestamp_ms)


def _parse(record: Record) -> EndTransactionMarker:
    key, value = record.key or b"", record.value or b""
    if len(key) >= _KEY.size and len(value) >= _VALUE.size:
        key_version, control_type = _KEY.unpack_from(key)
        value_version, coordinator_epoch = _VALUE.unpack_from(value)
        if (
            key_version >= 0
            and value_version >= 0
            and control_type in (ControlType.ABORT, ControlType.COMMIT)
        ):
            return EndTransactionMarker(ControlType(control_type), coordinator_epoch)
    raise CorruptRecordError(
        "a control record is no end of a transaction; find out who wrote it", offset=record.offset
    )
