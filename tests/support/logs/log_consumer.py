"""Reads of a log as a consumer makes them: one after the other, each from where the one before it ended."""

from __future__ import annotations

from collections.abc import Iterable

from stratalog.log.fetch_data import FetchData
from stratalog.log.isolation import Isolation
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch import batches, decode
from stratalog.record.record import Record


class Consumer:
    """Reads on from where it is, as Kafka's consumer does, and keeps what it gets. Used by one thread."""

    def __init__(
        self, log: UnifiedLog, offset: int | None = None, isolation: Isolation = Isolation.TXN_COMMITTED
    ) -> None:
        """`offset`: None for the log's start. With `LOG_END` it gets the markers, too."""
        self.log = log
        self.offset = log.offsets.log_start_offset if offset is None else offset
        self.start_offset = self.offset
        self.records: list[Record] = []
        self._isolation = isolation

    @property
    def end_offset(self) -> int:
        """Where there is nothing to read any more, for now."""
        if self._isolation is Isolation.TXN_COMMITTED:
            return self.log.offsets.last_stable_offset
        return self.log.offsets.log_end_offset

    def poll(self, max_bytes: int = 1) -> bool:
        """Read on; False at the end."""
        if self.offset >= self.end_offset:
            return False
        offset = max(self.offset, self.log.offsets.log_start_offset)
        found, self.offset = read_on(self.log, offset, self._isolation, max_bytes)
        for one in found:
            assert not self.records or self.records[-1].offset < one.offset, "a consumer goes back"
            self.records.append(one)
        return True

    def catch_up(self, end_offset: int | None = None, max_bytes: int = 1) -> list[Record]:
        """Read up to there, or to the end; returns all that it got so far."""
        while (end_offset is None or self.offset < end_offset) and self.poll(max_bytes):
            pass
        return self.records

    @property
    def table(self) -> dict[bytes | None, bytes]:
        """The table that is left when all of its records are applied in order."""
        return table_of(self.records)


def table_of(records: Iterable[Record]) -> dict[bytes | None, bytes]:
    """Keys with their last values; without those that were deleted."""
    table: dict[bytes | None, bytes] = {}
    for one in records:
        if one.value is None:
            table.pop(one.key, None)
        else:
            table[one.key] = one.value
    return table


def read_as_consumer(log: UnifiedLog, isolation: Isolation, max_bytes: int) -> list[Record]:
    """The decided records of the local log, as Kafka's consumer finds them, who has no `LOG_END`."""
    assert isolation is not Isolation.LOG_END
    return read_up_to(log.offsets.last_stable_offset, log, isolation, max_bytes)


def read_up_to(end_offset: int, log: UnifiedLog, isolation: Isolation, max_bytes: int) -> list[Record]:
    """From the local log start on. With `LOG_END` the markers are there, too."""
    offset, records = log.offsets.local_log_start_offset, list[Record]()
    while offset < end_offset:
        found, offset = read_on(log, offset, isolation, max_bytes)
        records += found
    return records


def read_on(log: UnifiedLog, offset: int, isolation: Isolation, max_bytes: int) -> tuple[list[Record], int]:
    """Records that a consumer gets by one read from there, and the offset of its next read. With `LOG_END`
    it gets the markers, too."""
    data = log.reader.read(offset, max_bytes, isolation)
    assert data.next_offset > offset, "a reader would stand still"
    if isolation is not Isolation.LOG_END:
        return committed_records(data, offset), data.next_offset
    return [one for one in decode_with_markers(data.batches) if one.offset >= offset], data.next_offset


def decode_with_markers(data: bytes) -> list[Record]:
    """The records of all batches, those of control batches included."""
    return [record for position, _ in batches(data) for record in decode(data, position)]


def committed_records(data: FetchData, offset: int) -> list[Record]:
    """Records that a consumer takes from a read at `offset`: a producer's records are left out from where a
    transaction begins of which the read says that it was aborted, to the producer's next marker."""
    records: list[Record] = []
    begins = sorted(data.aborted_transactions, key=lambda aborted: aborted.first_offset)
    aborting: set[int] = set()
    for position, header in batches(data.batches):
        while begins and begins[0].first_offset <= header.last_offset:
            aborting.add(begins.pop(0).producer_id)
        if header.is_control:
            aborting.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborting):
            records += [one for one in decode(data.batches, position) if one.offset >= offset]
    return records
