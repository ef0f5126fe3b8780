"""A batch as producer state sees it: its header, and the marker of a control batch.

So headers and the few control batches are enough to find the state of a partition's producers again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import AppendFile, Buffer
from stratalog.record.batch_producer import add_to_sequence
from stratalog.record.end_transaction_marker import EndTransactionMarker
from stratalog.record.header import NO_SEQUENCE, BatchHeader
from stratalog.segment.batch_walk import LocatedBatch


class ProducerBatch(NamedTuple):
    """A batch with the offsets that it has in the log."""

    header: BatchHeader
    marker: EndTransactionMarker | None = None
    """The marker of a control batch, unless compaction has removed it."""

    @staticmethod
    def read(buffer: Buffer, position: int, header: BatchHeader) -> ProducerBatch:
        """The batch at `position`. Reads the bytes of control batches only. Raises CorruptRecordError."""
        if not header.is_control:
            return ProducerBatch(header)
        return ProducerBatch(header, EndTransactionMarker.read(buffer, position, header))

    def stamped(self, base_offset: int, append_time_ms: int | None) -> ProducerBatch:
        """The same batch with offsets of the log, and with its time unless that is None."""
        max_timestamp = self.header.max_timestamp if append_time_ms is None else append_time_ms
        return self._replace(
            header=self.header._replace(base_offset=base_offset, max_timestamp=max_timestamp)
        )

    @property
    def has_producer(self) -> bool:
        """The batch belongs to a producer: ids below 0 mean none."""
        return self.header.producer_id >= 0

    @property
    def last_sequence(self) -> int:
        """The sequence of the last record; -1 for control batches and a coordinator's own appends."""
        if self.header.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return add_to_sequence(self.header.base_sequence, self.header.last_offset_delta)


def read_batch(file: AppendFile, located: LocatedBatch) -> ProducerBatch:
    """A batch of a log file as producer state sees it. Reads more than the header of control batches only.

    Raises CorruptRecordError, OSError.
    """
    position, header = located
    if not header.is_control:
        return ProducerBatch(header)
    data = file.read_at(position, header.size_in_bytes)
    if len(data) < header.size_in_bytes:
        raise CorruptRecordError("a log file ends inside a control batch", path=file.path, position=position)
    return ProducerBatch.read(data, 0, header)


def producer_batches(file: AppendFile, located: Iterable[LocatedBatch]) -> Iterator[ProducerBatch]:
    """The batches at these places as producer state sees them, in order."""
    for each in located:
        yield read_batch(file, each)
