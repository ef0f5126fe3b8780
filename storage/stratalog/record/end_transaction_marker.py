"""The records of control batches that end a transaction, in Kafka's format.

    control batch = one record, uncompressed, with the producer's id and epoch and without a sequence
    key           = version int16 = 0 | type int16: 0 abort, 1 commit
    value         = version int16 = 0 | coordinator_epoch int32

Later versions may append fields; readers ignore unknown ones. Control records of other types end no
transaction (see `control_key`). A compaction that drops a marker may leave its batch without a record, which
keeps the producer's epoch.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.record.batch import decode
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import NO_LEADER_EPOCH, encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.control_key import ControlKey
from stratalog.record.header import BatchHeader
from stratalog.record.record import Record

_VERSION = 0
_VALUE = struct.Struct(">hi")


class ControlType(enum.IntEnum):
    """The two ends of a transaction. The numbers are those of the record's key."""

    ABORT = 0
    COMMIT = 1


_CONTROL_TYPES = frozenset(ControlType)


class EndTransactionMarker(NamedTuple):
    """The end of a producer's transaction. `coordinator_epoch` is that of the coordinator that decided it."""

    control_type: ControlType
    coordinator_epoch: int

    @staticmethod
    def parse(record: Record) -> EndTransactionMarker:
        """Read the marker in a control record. Raises CorruptRecordError."""
        control_type, value = ControlKey.parse(record).control_type, record.value or b""
        if len(value) >= _VALUE.size and control_type in _CONTROL_TYPES:
            value_version, coordinator_epoch = _VALUE.unpack_from(value)
            if value_version >= 0:
                return EndTransactionMarker(ControlType(control_type), coordinator_epoch)
        raise CorruptRecordError(
            "a control record does not end a transaction; find out which program wrote it",
            offset=record.offset,
        )

    @staticmethod
    def read(buffer: Buffer, position: int, header: BatchHeader) -> EndTransactionMarker | None:
        """Read the marker in the control batch at `position`; None if the batch ends no transaction, or
        compaction has dropped the marker.

        Raises CorruptRecordError.
        """
        assert header.is_control
        records = decode(buffer, position) if header.codec is Codec.NONE else []
        is_marker = any(ControlKey.parse(record).control_type in _CONTROL_TYPES for record in records)
        if header.codec is not Codec.NONE or (is_marker and len(records) > 1):
            raise CorruptRecordError(
                "a control batch is compressed or has a marker beside other records; find out which program"
                " wrote it",
                base_offset=header.base_offset,
                records_count=header.records_count,
            )
        return EndTransactionMarker.parse(records[0]) if is_marker else None

    def to_batch(
        self,
        producer_id: int,
        producer_epoch: int,
        timestamp_ms: int,
        *,
        base_offset: int = 0,
        leader_epoch: int = NO_LEADER_EPOCH,
    ) -> bytes:
        """Make the control batch that ends the producer's transaction."""
        key = ControlKey(_VERSION, self.control_type).pack()
        value = _VALUE.pack(_VERSION, self.coordinator_epoch)
        return encode_batch(
            [Record(0, timestamp_ms, key, value)],
            base_offset=base_offset,
            leader_epoch=leader_epoch,
            producer=BatchProducer(producer_id, producer_epoch, is_transactional=True),
            is_control=True,
        )
