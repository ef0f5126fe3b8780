"""Reads a partition in every way that there is, and compares it with the ledger."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random

from stratalog.log.isolation import Isolation
from stratalog.record.record import Record
from stratalog.server.fetch.fetch_cursor import FetchCursor
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.rpc.position import NO_OFFSET, at_once, find
from stratalog.v1 import log_pb2
from tests.support.decoded_records import decode_all
from tests.support.tier_model.partition_ledger import PartitionLedger, require_same

HIGH = Isolation.HIGH_WATERMARK
LARGE = 1 << 20


class TierReadings:
    """The readings of one partition at one moment. Not thread-safe: nothing changes meanwhile."""

    def __init__(self, partition: HostedPartition, ledger: PartitionLedger) -> None:
        self._partition = partition
        self._ledger = ledger

    def require(self, random: Random, now_ms: int, *, offset_count: int) -> None:
        """Check offsets, all records, records of each tier alone, reads from `offset_count` offsets, and
        searches by time. Raises AssertionError, LogStoreError."""
        partition, ledger = self._partition, self._ledger
        self._require_offsets(now_ms)
        end_offset = partition.watermarks().high_watermark
        found = read_all(partition, ledger.log_start_offset)
        ledger.require_readable(found, end_offset, partition.compacted_upto)
        self._require_local()
        if partition.is_tiered:
            self._require_tiered(found)
        offsets = range(ledger.log_start_offset, end_offset)
        chosen = random.sample(offsets, min(offset_count, len(offsets)))
        self._require_each(chosen, found, random)
        self._require_times(found, random)

    def _require_offsets(self, now_ms: int) -> None:
        partition, ledger = self._partition, self._ledger
        marks = partition.watermarks()
        ledger.require_start(partition.log_start_offset, now_ms)
        assert partition.log_end_offset == ledger.end_offset, f"the log ends at {partition.log_end_offset}"
        tiered_end_offset = partition.tiered_end_offset
        assert tiered_end_offset >= ledger.tiered_end_offset, f"the tiered end {tiered_end_offset} went back"
        ledger.note_durable(min(tiered_end_offset, ledger.end_offset), is_tiered=True)
        assert marks.high_watermark >= ledger.durable_end_offset or partition.is_tiered, (
            "acknowledged, unseen"
        )
        names = {
            log_pb2.OFFSET_SPEC_EARLIEST: ledger.log_start_offset,
            log_pb2.OFFSET_SPEC_LATEST: marks.high_watermark,
            log_pb2.OFFSET_SPEC_EARLIEST_LOCAL: marks.local_log_start_offset,
            log_pb2.OFFSET_SPEC_LATEST_TIERED: tiered_end_offset - 1,
        }
        for spec, wanted in names.items():
            assert self._find(log_pb2.Position(spec=spec)) == wanted, log_pb2.OffsetSpec.Name(spec)
        assert ledger.log_start_offset <= marks.local_log_start_offset <= marks.high_watermark
        assert marks.high_watermark <= ledger.end_offset
        if partition.is_tiered:
            assert tiered_end_offset <= marks.high_watermark, "tiered beyond the high watermark"
            assert marks.local_log_start_offset <= max(tiered_end_offset, ledger.log_start_offset), "a hole"
        partition.log.check()

    def _find(self, position: log_pb2.Position) -> int:
        return at_once(find(self._partition, position, HIGH)).offset

    def _require_local(self) -> None:
        """The local log alone, which is not compacted where the topic is tiered."""
        partition, ledger = self._partition, self._ledger
        marks = partition.watermarks()
        offset, found = marks.local_log_start_offset, list[Record]()
        while offset < marks.high_watermark:
            data = partition.log.reader.read(offset, LARGE, HIGH, min_one_message=True)
            found += [one for one in decode_all(data.batches) if one.offset >= marks.local_log_start_offset]
            assert data.next_offset > offset
            offset = data.next_offset
        if partition.is_tiered or not ledger.topic.is_compacted:
            require_same(found, ledger.records[marks.local_log_start_offset : marks.high_watermark])

    def _require_tiered(self, across: Sequence[Record]) -> None:
        """The object store alone."""
        partition, ledger = self._partition, self._ledger
        offset, found = ledger.log_start_offset, list[Record]()
        end_offset = partition.tiered_end_offset
        while offset < end_offset:
            data = partition.read_tiered(offset, LARGE, HIGH)
            found += [one for one in decode_all(data.batches) if one.offset >= ledger.log_start_offset]
            assert data.next_offset > offset
            offset = data.next_offset
        if ledger.topic.is_compacted:
            # The local part is read from the local log otherwise, which is not compacted.
            kept = {record.offset for record in found}
            local_offset = partition.local_log_start_offset
            assert all(one.offset in kept for one in across if one.offset < min(local_offset, end_offset))
            require_same(found, [ledger.records[offset] for offset in sorted(kept)])
            return
        require_same(found, ledger.records[ledger.log_start_offset : end_offset])

    def _require_each(self, offsets: Iterable[int], across: Sequence[Record], random: Random) -> None:
        """One read from each of the offsets, mostly a small one."""
        for offset in offsets:
            cursor = _cursor(self._partition, offset)
            found = _read(cursor, random.choice((1, 300, LARGE)))
            assert cursor.position > offset, f"a read at {offset} does not go on"
            if self._ledger.topic.is_compacted:
                # A read that begins in the local log gets what one from below may get compacted.
                end_offset = self._partition.watermarks().high_watermark
                self._ledger.require_survivors(found, offset, cursor.position, end_offset)
                continue
            require_same(found, [one for one in across if offset <= one.offset < cursor.position])

    def _require_times(self, found: Sequence[Record], random: Random) -> None:
        times = sorted({record.timestamp_ms for record in found})
        for time_ms in [*random.sample(times, min(3, len(times))), 0, times[-1] + 1 if times else 1]:
            wanted = next((one.offset for one in found if one.timestamp_ms >= time_ms), NO_OFFSET)
            answer = self._find(log_pb2.Position(timestamp_ms=time_ms))
            if answer != wanted and self._ledger.topic.is_compacted:
                # The local log has records that compaction has removed from the store.
                wanted = self._first_local(time_ms)
            assert answer == wanted, f"time {time_ms} is at {answer}, wanted {wanted}"

    def _first_local(self, time_ms: int) -> int:
        marks = self._partition.watermarks()
        local = self._ledger.records[marks.local_log_start_offset : marks.high_watermark]
        return next((one.offset for one in local if one.timestamp_ms >= time_ms), NO_OFFSET)


def read_all(partition: HostedPartition, offset: int) -> list[Record]:
    """Read up to the high watermark as a consumer that begins at the offset. Raises LogStoreError."""
    cursor = _cursor(partition, offset)
    found: list[Record] = []
    end_offset = partition.watermarks().high_watermark
    while cursor.position < end_offset:
        position = cursor.position
        found += _read(cursor, LARGE)
        assert cursor.position > position, f"a read at {position} does not go on"
    return found


def _cursor(partition: HostedPartition, offset: int) -> FetchCursor:
    return FetchCursor(partition.topic_partition, partition, offset, LARGE)


def _read(cursor: FetchCursor, budget_bytes: int) -> list[Record]:
    """One read; the records from the position on."""
    position = cursor.position
    cursor.read(budget_bytes, is_first=True)
    if cursor.error is not None:
        raise cursor.error
    chunks = cursor.take().chunks
    return [one for chunk in chunks for one in decode_all(chunk) if position <= one.offset < cursor.position]
