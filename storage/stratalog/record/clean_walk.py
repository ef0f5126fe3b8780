"""Which batches the kernels of the log cleaner take; the twins' part of it."""

from __future__ import annotations

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.record.batch import crc_matches
from stratalog.record.compression import Codec
from stratalog.record.header import HEADER_SIZE, BatchHeader, parse_header


def taken_batch(
    data: Buffer, position: int, stop_offset: int, *, takes_transactional: bool
) -> BatchHeader | None:
    """The header of the batch at `position`, None where the kernels do not take it. See ``offset_map``."""
    try:
        header = parse_header(data, position)
    except CorruptRecordError:
        return None
    if header.size_in_bytes > len(data) - position or header.base_offset >= stop_offset:
        return None
    if header.is_control or (header.is_transactional and not takes_transactional):
        return None
    if header.records_count == 0 and header.size_in_bytes > HEADER_SIZE:
        return None
    # Without records, it does not matter how they would be compressed.
    if header.records_count > 0 and header.codec is not Codec.NONE:
        return None
    return header if crc_matches(data, position, header) else None
