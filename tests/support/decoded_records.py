"""The records of whole batches, all at once."""

from __future__ import annotations

from stratalog.base.filesystem import Buffer
from stratalog.record.batch import batches, decode
from stratalog.record.native.consumer_records import ConsumerRecord
from stratalog.record.record import Record


def decode_all(buffer: Buffer) -> list[Record]:
    """Decode all batches, except control batches. Raises CorruptRecordError."""
    return [
        record
        for position, header in batches(buffer)
        if not header.is_control
        for record in decode(buffer, position)
    ]


def plain_record(record: ConsumerRecord) -> Record:
    """The record without its partition, to compare with what was appended."""
    return Record(record.offset, record.timestamp_ms, record.key, record.value, record.headers)
