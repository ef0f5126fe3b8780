"""Rebuilds one batch, of any codec, without the records that a clean drops: functions over a batch.

This is the slow way, for batches that the row kernels do not take. A batch of a few kilobytes may hold
gigabytes. A large one is read in sections, once to count the kept records and once to write them, so that
memory is bounded by some megabytes, or by a few copies of its largest record.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stratalog.base.filesystem import Buffer
from stratalog.log.exchange.cleaned_segment import OnRead
from stratalog.record.builder import (
    rebuild_batch,
    rebuild_compressed,
    rebuilt_max_timestamp,
    records_since,
    timestamp_shift,
)
from stratalog.record.codecs.compressed_pieces import compress_pieces
from stratalog.record.header import (
    CODEC_MASK,
    DELETE_HORIZON_BIT,
    NO_TIMESTAMP,
    BatchHeader,
)
from stratalog.record.keep_rules import gets_horizon, is_due
from stratalog.record.native.cleaned_batches import CleanedRecords, CleanRule
from stratalog.record.native.offset_map import OffsetMap, clean_records
from stratalog.record.reading.record_sections import RecordSections
from stratalog.record.records_summary import CopiedRecords

NOTHING = b""


class CleanedBatch(NamedTuple):
    """A batch with records after its clean."""

    batch: Buffer
    """Empty if no record is left."""
    records: CleanedRecords
    horizon_ms: int | None = None
    """The delete horizon that the batch has now."""


def is_compressed(header: BatchHeader) -> bool:
    """Return whether the batch has compressed records. The row kernels take it only if its data was
    aborted."""
    return header.attributes & CODEC_MASK != 0 and header.records_count > 0


def clean_records_of(
    batch: Buffer,
    header: BatchHeader,
    offset_map: OffsetMap,
    rule: CleanRule,
    level: int | None,
    on_read: OnRead,
) -> CleanedBatch:
    """Drop the records that do not stay, and compress the others with the same codec.

    Raises CorruptRecordError. Calls `on_read` for each section of a large batch, and raises its errors.
    """
    sections, horizon_ms = RecordSections(batch, header), header.delete_horizon_ms
    versions = None if offset_map.rule is None else offset_map.rule.of_batch(header)

    def cleaned_with(shift: int) -> Iterator[CleanedRecords]:
        for section, count in sections:
            on_read(1)
            yield clean_records(
                section,
                count,
                header.base_offset,
                offset_map,
                last_offset_delta=header.last_offset_delta,
                drop_tombstones=is_due(horizon_ms, rule.now_ms),
                timestamp_shift=shift,
                versions=versions,
            )

    shift, new_horizon_ms = 0, None
    left = _LeftRecords.of(cleaned_with(shift), is_whole=sections.is_whole)
    if gets_horizon(
        horizon_ms,
        has_tombstones=left.records.tombstone_count > 0,
        sees_all_older=header.last_offset <= offset_map.latest_offset,
    ):
        new_horizon_ms = rule.horizon_ms
        shift = timestamp_shift(header, new_horizon_ms)
        # Both at once would need twice the memory.
        del left
        left = _LeftRecords.of(cleaned_with(shift), is_whole=sections.is_whole)
    elif left.records.records_kept == header.records_count:
        return CleanedBatch(batch, left.records, horizon_ms)
    records = left.records
    if records.records_kept == 0:
        return CleanedBatch(NOTHING, records)
    pieces = [records.payload] if sections.is_whole else (one.payload for one in cleaned_with(shift))
    rebuilt = _rebuilt(
        header,
        compress_pieces(header.codec, pieces, left.size_bytes, level),
        records.records_kept,
        records.max_timestamp_delta,
        new_horizon_ms,
    )
    return CleanedBatch(rebuilt, records, horizon_ms if new_horizon_ms is None else new_horizon_ms)


class _LeftRecords(NamedTuple):
    """The kept records of all sections of a batch."""

    records: CleanedRecords
    """With the payload if the batch is one section."""
    size_bytes: int
    """Size of the payloads of all sections."""

    @staticmethod
    def of(sections: Iterator[CleanedRecords], *, is_whole: bool) -> _LeftRecords:
        if is_whole:
            (records,) = sections
            return _LeftRecords(records, len(records.payload))
        kept_count = tombstone_count = dropped_count = null_key_count = size_bytes = 0
        max_timestamp_delta: int | None = None
        for one in sections:
            kept_count += one.records_kept
            tombstone_count += one.tombstone_count
            dropped_count += one.dropped_tombstone_count
            null_key_count += one.null_key_count
            size_bytes += len(one.payload)
            if one.records_kept:
                delta = one.max_timestamp_delta
                max_timestamp_delta = (
                    delta if max_timestamp_delta is None else max(max_timestamp_delta, delta)
                )
            # Otherwise it would be in memory together with the next section.
            del one
        records = CleanedRecords(
            NOTHING,
            records_kept=kept_count,
            max_timestamp_delta=max_timestamp_delta or 0,
            tombstone_count=tombstone_count,
            dropped_tombstone_count=dropped_count,
            null_key_count=null_key_count,
        )
        return _LeftRecords(records, size_bytes)


def _rebuilt(
    header: BatchHeader,
    section: Buffer,
    records_count: int,
    max_timestamp_delta: int,
    new_horizon_ms: int | None = None,
) -> bytes:
    """The batch with other records, which are compressed already. `max_timestamp_delta` is relative to its
    new base timestamp."""
    return rebuild_compressed(
        header,
        section,
        records_count=records_count,
        max_timestamp=rebuilt_max_timestamp(header, max_timestamp_delta, new_horizon_ms),
        delete_horizon_ms=new_horizon_ms,
    )


def emptied(header: BatchHeader) -> bytes:
    """The header alone, with the offsets and the producer of a batch without its records. Like Kafka's, it
    has neither a codec nor a horizon."""
    without = header._replace(
        attributes=header.attributes & ~(CODEC_MASK | DELETE_HORIZON_BIT), base_timestamp=NO_TIMESTAMP
    )
    return rebuild_batch(without, NOTHING, records_count=0, max_timestamp=header.max_timestamp)


def since_offset(batch: Buffer, header: BatchHeader, start_offset: int, level: int | None) -> bytes:
    """The batch without its records below `start_offset`; empty if none is left. Raises
    CorruptRecordError."""
    if header.next_offset <= start_offset or header.records_count == 0:
        return NOTHING
    sections, first_delta = RecordSections(batch, header), start_offset - header.base_offset

    def copied() -> Iterator[CopiedRecords]:
        for section, count in sections:
            yield records_since(section, count, header, first_delta)

    count = size_bytes = 0
    max_timestamp_delta: int | None = None
    for one in copied():
        count, size_bytes = count + one.count, size_bytes + len(one.payload)
        if one.count:
            delta = one.max_timestamp_delta
            max_timestamp_delta = delta if max_timestamp_delta is None else max(max_timestamp_delta, delta)
        del one
    if count == 0:
        return NOTHING
    section = compress_pieces(header.codec, (one.payload for one in copied()), size_bytes, level)
    return _rebuilt(header, section, count, max_timestamp_delta or 0)
