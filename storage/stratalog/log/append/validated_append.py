"""A valid request to append, and how its batches get their offsets.

A request is made without a lock. Under the log's lock, `ValidatedAppend.stamp` gives the batches their
offsets. It copies no large batch: it makes a new prefix for each one and passes on the rest as it lies in the
caller's memory.

    base_offset int64 | batch_length int32 | leader_epoch int32 | the rest, unchanged: CRC-32C and what it
    covers

Under `message.timestamp.type=LogAppendTime` the timestamp type and the highest timestamp change as well. The
checksum covers these, so then the whole header is new.

Most requests of clients are taken by one kernel, and have no headers as objects. Those of batches that have
their offsets already are kept, because their offsets are needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from crc32c import crc32c

from stratalog.base.filesystem import Buffer
from stratalog.log.producers.producer_append import AppendOrigin
from stratalog.log.producers.producer_batch import ProducerBatch
from stratalog.record.batch import batches
from stratalog.record.header import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    TIMESTAMP_TYPE_BIT,
    BatchHeader,
    parse_header,
)
from stratalog.record.native.batch_kernels import stamp_batches
from stratalog.record.native.batch_row import AppendedBatch
from stratalog.segment.indexes.offset_index import MAX_RELATIVE_OFFSET


class ValidatedAppend(NamedTuple):
    """A request whose batches are sound. Immutable, as long as `buffer` is."""

    buffer: Buffer
    origin: AppendOrigin
    size_bytes: int
    offset_count: int
    """The number of offsets that the request takes."""
    max_timestamp_ms: int
    producer_batches: Sequence[ProducerBatch]
    """All batches if one of them has a producer, else none."""
    expected_offset: int | None = None
    """The offset that the first record must get; None for any."""
    located: Sequence[tuple[int, BatchHeader]] = ()
    """The batches that have their offsets already, with their positions in `buffer`; none of another
    origin."""

    @staticmethod
    def accepted(
        buffer: Buffer, offset_count: int, max_timestamp_ms: int, *, has_producer: bool
    ) -> ValidatedAppend:
        """A client's request with these facts, in which a batch with a producer is alone."""
        return ValidatedAppend(
            buffer=buffer,
            origin=AppendOrigin.CLIENT,
            size_bytes=len(buffer),
            offset_count=offset_count,
            max_timestamp_ms=max_timestamp_ms,
            producer_batches=(ProducerBatch(parse_header(buffer)),) if has_producer else (),
        )

    @staticmethod
    def of(
        buffer: Buffer, located: Sequence[tuple[int, BatchHeader]], origin: AppendOrigin
    ) -> ValidatedAppend:
        """The request with these batches and their positions. Raises CorruptRecordError for a control batch
        without a control record."""
        headers = [header for _, header in located]
        producer_batches: Sequence[ProducerBatch] = ()
        if any(header.has_producer_id for header in headers):
            producer_batches = tuple(ProducerBatch.read(buffer, *batch) for batch in located)
        return ValidatedAppend(
            buffer=buffer,
            origin=origin,
            size_bytes=len(buffer),
            offset_count=sum(header.last_offset_delta + 1 for header in headers),
            max_timestamp_ms=max(header.max_timestamp for header in headers),
            producer_batches=producer_batches,
            located=located if origin is AppendOrigin.REPLICATION else (),
        )

    def by_segment(self) -> list[ValidatedAppend]:
        """The request in as few parts as fit into segments, whose indexes have a limited range of offsets.
        There are several parts only if batches have their offsets already, with holes between them."""
        parts: list[list[tuple[int, BatchHeader]]] = []
        for position, header in self.located:
            if not parts or header.last_offset - parts[-1][0][1].base_offset > MAX_RELATIVE_OFFSET:
                parts.append([])
            parts[-1].append((position, header))
        if len(parts) == 1:
            return [self]
        return [self._part(located) for located in parts]

    def _part(self, located: Sequence[tuple[int, BatchHeader]]) -> ValidatedAppend:
        """Some of the batches, adjacent ones."""
        begin = located[0][0]
        end = located[-1][0] + located[-1][1].size_in_bytes
        moved = [(position - begin, header) for position, header in located]
        return ValidatedAppend.of(memoryview(self.buffer)[begin:end], moved, self.origin)

    def verbatim(self) -> tuple[list[Buffer], list[AppendedBatch]]:
        """The same as `stamp` returns, for batches that have their offsets already."""
        appended = [
            AppendedBatch(
                header.size_in_bytes,
                header.base_offset,
                header.last_offset,
                header.max_timestamp,
                header.leader_epoch,
            )
            for _, header in self.located
        ]
        return [self.buffer], appended

    def stamp(
        self, base_offset: int, leader_epoch: int, append_time_ms: int | None
    ) -> tuple[list[Buffer], list[AppendedBatch]]:
        """The bytes to write, with offsets from `base_offset` on, and the notes that the segment takes.

        `append_time_ms`: the time that replaces the producer's; None keeps the latter.
        """
        if append_time_ms is None:
            return stamp_batches(self.buffer, base_offset, leader_epoch)
        view = memoryview(self.buffer)
        parts: list[Buffer] = []
        appended: list[AppendedBatch] = []
        for position, header in batches(self.buffer):
            records = view[position + HEADER_SIZE : position + header.size_in_bytes]
            stamped = header._replace(
                base_offset=base_offset,
                leader_epoch=leader_epoch,
                attributes=header.attributes | TIMESTAMP_TYPE_BIT,
                max_timestamp=append_time_ms,
            )
            parts += with_crc(stamped, records).pack(), records
            last_offset = base_offset + header.last_offset_delta
            appended.append(
                AppendedBatch(header.size_in_bytes, base_offset, last_offset, append_time_ms, leader_epoch)
            )
            base_offset = last_offset + 1
        return parts, appended


def with_crc(header: BatchHeader, records: Buffer) -> BatchHeader:
    """The header with the checksum of its own fields and of the records section."""
    return header._replace(crc=crc32c(records, crc32c(header.pack()[ATTRIBUTES_POSITION:])))
