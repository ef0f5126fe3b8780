"""Records as consumers get them, compiled if possible.

`ConsumerRecord` is a record with its place. Many are made, so the native one is small, outside of the
garbage collector, and decodes its headers at the first look. `RecordCursor` hands out the records of lists
one by one, without a Python frame for each. The functions follow the rules of ``kernels``.

decode_consumer_records(payload, records_count, header, reading) -> list[ConsumerRecord]
    The wanted records of a records section of the batch with this header. Raises CorruptRecordError.
decode_consumer_batches(data, position, max_count, max_bytes, reading, records)
        -> (end_position, taken_bytes, last_epoch)
    Appends to `records` the wanted records of plain batches (see ``batch_kernels``) from `position` on, while
    at most `max_count` records are in the list, and the taken batches have at most `max_bytes`. Compares
    checksums. Stops before the first other batch, and before a damaged one. The plain-Python twin takes no
    batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stratalog.record.native.kernels import NATIVE
from stratalog.record.native.pure_consumer_records import Decoder, decoded_part

__all__ = (
    "ConsumerRecord",
    "Decoder",
    "RecordCursor",
    "decode_consumer_batches",
    "decode_consumer_records",
    "decoded_part",
)

if TYPE_CHECKING or not NATIVE:
    from stratalog.record.native.pure_consumer_records import (
        ConsumerRecord,
        RecordCursor,
        decode_consumer_batches,
        decode_consumer_records,
    )
else:
    from stratalog.record.native._kernels import (
        ConsumerRecord,
        RecordCursor,
        decode_consumer_batches,
        decode_consumer_records,
    )
