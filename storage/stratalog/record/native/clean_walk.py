"""What the kernels of the log cleaner do with a batch; the twins' part of it."""

from __future__ import annotations

import enum
from collections.abc import Sequence

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.record.batch import crc_matches
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import HEADER_SIZE, BatchHeader, parse_header
from stratalog.record.native.aborted_spans import is_aborted


class BatchKind(enum.Enum):
    """As far as its header says."""

    RECORDS = enum.auto()
    ABORTED = enum.auto()
    CONTROL = enum.auto()


def taken_batch(
    data: Buffer, position: int, stop_offset: int, aborted: Sequence[int]
) -> tuple[BatchHeader, BatchKind] | None:
    """The header of the batch at `position`, None where the kernels do not take it. See ``offset_map``."""
    try:
        header = parse_header(data, position)
    except CorruptRecordError:
        return None
    if header.size_in_bytes > len(data) - position or header.base_offset >= stop_offset:
        return None
    kind = _kind_of(header, aborted)
    return (header, kind) if kind is not None and crc_matches(data, position, header) else None


def _kind_of(header: BatchHeader, aborted: Sequence[int]) -> BatchKind | None:
    if header.is_control:
        return BatchKind.CONTROL
    if is_aborted(aborted, header):
        return BatchKind.ABORTED
    # Without records, it does not matter how they would be compressed.
    is_plain = header.codec is Codec.NONE if header.records_count else header.size_in_bytes == HEADER_SIZE
    return BatchKind.RECORDS if is_plain else None
