"""The records of whole batches, all at once."""

from __future__ import annotations

from stratalog.base.filesystem import Buffer
from stratalog.record.batch import batches, decode
from stratalog.record.record import Record


def decode_all(buffer: Buffer) -> list[Record]:
    """Decode all batches, except control batches. Raises CorruptRecordError."""
    return [
        record
        for position, header in batches(buffer)
        if not header.is_control
        for record in decode(buffer, position)
    ]
