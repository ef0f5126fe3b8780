"""What a log acknowledged, written down beside it, and the proof that a log found later keeps it.

A test appends through the ledger. Every record has a value that no other record ever has, so whatever is read
later is recognised: where it was to be, and whether it was acknowledged, refused, or cut off by a crash.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.errors import LogStoreError
from stratalog.log.append_info import AppendInfo
from stratalog.log.isolation import Isolation
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch import decode_all
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record

_READ_BYTES = 1 << 20


class LogLedger:
    """The oracle of one log. Used by one thread."""

    def __init__(self, *, value_bytes: int = 20) -> None:
        self.acknowledged: dict[int, Record] = {}
        """By offset: what an append returned an offset for."""
        self.attempted: dict[int, list[Record]] = {}
        """By offset: what may have been written there, acknowledged or not, refused excepted."""
        self.durable_end_offset = 0
        self.log_start_offset = 0
        self.local_start_offset = 0
        self._sequence = 0
        self._value_bytes = value_bytes

    def copy(self) -> LogLedger:
        """The same knowledge, to be compared with one of several possible futures."""
        copied = LogLedger(value_bytes=self._value_bytes)
        copied.acknowledged = dict(self.acknowledged)
        copied.attempted = {offset: list(records) for offset, records in self.attempted.items()}
        copied.durable_end_offset = self.durable_end_offset
        copied.log_start_offset = self.log_start_offset
        copied.local_start_offset = self.local_start_offset
        copied._sequence = self._sequence
        return copied

    def batch(self, count: int, *, timestamp_ms: int | None = None) -> bytes:
        """A producer's batch of new records. Timestamps go to and fro unless one is given for all."""
        records: list[Record] = []
        for _ in range(count):
            self._sequence += 1
            age_ms = (self._sequence * 7919) % 1000
            timestamp = 1_000_000 + 10 * self._sequence - age_ms if timestamp_ms is None else timestamp_ms
            value = f"{self._sequence}:".encode().ljust(self._value_bytes, b"x")
            records.append(Record(0, timestamp, b"key", value))
        return encode_batch(records)

    def append(
        self, log: UnifiedLog, requests: Sequence[bytes], leader_epoch: int = 1
    ) -> list[AppendInfo | LogStoreError]:
        """`append_group`, written down. Errors are returned, not raised."""
        next_offset = log.log_end_offset
        for request in requests:
            records = decode_all(request)
            for delta, record in enumerate(records):
                offset = next_offset + delta
                self.attempted.setdefault(offset, []).append(record._replace(offset=offset))
            next_offset += len(records)
        outcomes = log.append_group(requests, leader_epoch)
        for request, outcome in zip(requests, outcomes, strict=True):
            records = decode_all(request)
            if isinstance(outcome, LogStoreError):
                self._forget(records)
                continue
            assert outcome.size_bytes == len(request)
            assert outcome.last_offset - outcome.base_offset == len(records) - 1
            for delta, record in enumerate(records):
                placed = record._replace(offset=outcome.base_offset + delta)
                self.acknowledged[placed.offset] = placed
                self.attempted[placed.offset] = [placed]
        return outcomes

    def _forget(self, refused: Sequence[Record]) -> None:
        values = {record.value for record in refused}
        for offset, records in self.attempted.items():
            self.attempted[offset] = [record for record in records if record.value not in values]

    def flush(self, log: UnifiedLog) -> None:
        self.durable_end_offset = max(self.durable_end_offset, log.flush())

    def note_starts(self, log: UnifiedLog) -> None:
        """After a deletion that was acknowledged."""
        self.log_start_offset = max(self.log_start_offset, log.log_start_offset)
        self.local_start_offset = max(self.local_start_offset, log.local_log_start_offset)

    def restart_at(self, log: UnifiedLog, offset: int) -> None:
        """`truncate_fully_and_start_at`: until it returns, the log may still be the old one, or a beginning
        of it."""
        self.durable_end_offset = self.local_start_offset = 0
        self.log_start_offset = min(self.log_start_offset, offset)
        log.truncate_fully_and_start_at(offset)
        self.acknowledged = {}
        self.attempted = {}
        self.durable_end_offset = self.local_start_offset = offset
        self.log_start_offset = log.log_start_offset

    def verify(self, log: UnifiedLog, *, after_crash: bool) -> None:
        """The log holds what it must and nothing that it must not. Afterwards the ledger describes this very
        log."""
        log.check()
        start_offset, end_offset = log.local_log_start_offset, log.log_end_offset
        assert log.log_start_offset >= self.log_start_offset
        assert start_offset >= self.local_start_offset
        assert end_offset >= self.durable_end_offset, "what was flushed is lost"
        if not after_crash:
            assert end_offset == max(self.acknowledged, default=start_offset - 1) + 1
        records = read_local(log)
        assert [record.offset for record in records] == list(range(start_offset, end_offset)), (
            "offsets are not dense"
        )
        for record in records:
            assert record in self.attempted[record.offset], "somebody else's bytes"
            if record.offset < self.durable_end_offset or not after_crash:
                assert record == self.acknowledged[record.offset], "not what was acknowledged"
        self._verify_times(log, records)
        if after_crash:
            # What is served from now on must survive another crash.
            assert log.recovery_point == end_offset
            self.durable_end_offset = end_offset
            self.acknowledged = {record.offset: record for record in records}
            self.attempted = {record.offset: [record] for record in records}

    def _verify_times(self, log: UnifiedLog, records: Sequence[Record]) -> None:
        visible = [record for record in records if record.offset < log.high_watermark]
        found = log.max_timestamp()
        newest_ms = max((record.timestamp_ms for record in visible), default=None)
        assert (found.timestamp_ms if found else None) == newest_ms
        samples = visible[:1] + visible[len(visible) // 2 :][:1] + visible[-1:]
        for wanted in sorted({record.timestamp_ms + delta for record in samples for delta in (0, 1)}):
            expected = next((record for record in visible if record.timestamp_ms >= wanted), None)
            answer = log.offset_for_timestamp(wanted)
            assert (answer.offset if answer else None) == (expected.offset if expected else None)


def read_local(log: UnifiedLog, max_bytes: int = _READ_BYTES) -> list[Record]:
    """Every record from the local log start to the log end, in order, read as a consumer would."""
    offset = log.local_log_start_offset
    records: list[Record] = []
    while offset < log.log_end_offset:
        data = log.read(offset, max_bytes, Isolation.LOG_END)
        assert data.next_offset > offset, "a reader would stand still"
        records += [record for record in decode_all(data.batches) if record.offset >= offset]
        offset = data.next_offset
    return records
