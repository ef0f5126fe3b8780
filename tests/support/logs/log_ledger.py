"""The acknowledged records of a log, noted beside it, and the proof that a log found later keeps them.

A test appends through the ledger. Every record has a value that no other record ever has, so whatever is read
later is recognised: where it was to be, and whether it was acknowledged, refused, or cut off by a crash.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.errors import LogStoreError
from stratalog.log.append_info import AppendInfo
from stratalog.log.isolation import Isolation
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch import decode
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.record import Record
from tests.support.decoded_records import decode_all
from tests.support.logs.log_consumer import read_as_consumer, read_up_to
from tests.support.logs.log_machine import LogMachine
from tests.support.logs.producer_ledger import BatchNote, ProducerLedger, ProducerView

_READ_BYTES = 1 << 20


class LogLedger:
    """The oracle of one log. Used by one thread."""

    def __init__(self, *, value_bytes: int = 20) -> None:
        self.acknowledged: dict[int, Record] = {}
        """By offset: what an append returned an offset for."""
        self.attempted: dict[int, list[Record]] = {}
        """By offset: what may have been written there, acknowledged or not, refused excepted."""
        self.durable_end_offset = 0
        self.leader_epoch = 1
        """The epoch of the next append. The log takes no lower one than its last."""
        self.log_start_offset = 0
        self.local_start_offset = 0
        self.producers = ProducerLedger()
        self._dropped: dict[int, Record] = {}
        # By value: the how manyth of its batch.
        self._indexes: dict[bytes | None, int] = {}
        self._sequence = 0
        self._value_bytes = value_bytes

    def copy(self) -> LogLedger:
        """The same knowledge, to be compared with one of several possible futures."""
        copied = LogLedger(value_bytes=self._value_bytes)
        copied.acknowledged = dict(self.acknowledged)
        copied.attempted = {offset: list(records) for offset, records in self.attempted.items()}
        copied.durable_end_offset = self.durable_end_offset
        copied.leader_epoch = self.leader_epoch
        copied.log_start_offset = self.log_start_offset
        copied.local_start_offset = self.local_start_offset
        copied.producers.notes = dict(self.producers.notes)
        copied._dropped = dict(self._dropped)
        copied._indexes = dict(self._indexes)
        copied._sequence = self._sequence
        return copied

    def batch(self, count: int, *, timestamp_ms: int | None = None) -> bytes:
        """A batch of new records. Timestamps go to and fro unless one is given for all."""
        return encode_batch(self._records(count, timestamp_ms=timestamp_ms))

    def _records(self, count: int, *, timestamp_ms: int | None = None) -> list[Record]:
        records: list[Record] = []
        for index in range(count):
            self._sequence += 1
            age_ms = (self._sequence * 7919) % 1000
            timestamp = 1_000_000 + 10 * self._sequence - age_ms if timestamp_ms is None else timestamp_ms
            value = f"{self._sequence}:".encode().ljust(self._value_bytes, b"x")
            self._indexes[value] = index
            records.append(Record(0, timestamp, b"key", value))
        return records

    @property
    def view(self) -> ProducerView:
        """The facts that the log must know about its producers."""
        everything = self._dropped | self.acknowledged
        return self.producers.view(record for _, record in sorted(everything.items()))

    def producer_batch(
        self, producer_id: int, count: int, *, is_transactional: bool, skipped_count: int = 0
    ) -> bytes:
        """The producer's next batch; one that comes too early where some records before it are skipped."""
        view = self.view
        sequence = skipped_count
        if producer_id in view.newest:
            sequence += view.newest[producer_id][0].last_sequence + 1
        is_transactional = is_transactional or producer_id in view.open_transactions
        records = self._records(count)
        request = encode_batch(records, producer=BatchProducer(producer_id, 0, sequence, is_transactional))
        note = BatchNote(producer_id, request, sequence + count - 1, count, is_transactional)
        self.producers.notes |= {record.value: note for record in records}
        return request

    def end_transaction(
        self, log: UnifiedLog, producer_id: int, *, committed: bool, now_ms: int
    ) -> LogStoreError | None:
        """Append the marker. The error is returned, not raised."""
        self._sequence += 1
        # Coordinators come and go, so that every marker is another one.
        control_type = ControlType.COMMIT if committed else ControlType.ABORT
        marker = EndTransactionMarker(control_type, self._sequence)
        [record] = decode(marker.to_batch(producer_id, 0, 0))
        self.producers.notes[record.value] = BatchNote(producer_id, is_abort=not committed)
        offset = log.offsets.log_end_offset
        marked = record._replace(offset=offset, timestamp_ms=now_ms)
        self.attempted.setdefault(offset, []).append(marked)
        was_offline = log.availability.is_offline
        try:
            info = log.appender.append_end_transaction_marker(
                producer_id, 0, self._sequence, committed=committed, leader_epoch=self.leader_epoch
            )
        except LogStoreError as failure:
            if was_offline or not log.availability.is_offline:
                self._forget([record])
            return failure
        assert info.base_offset == info.last_offset == offset
        self.acknowledged[offset] = marked
        self.attempted[offset] = [marked]
        return None

    def append(self, log: UnifiedLog, requests: Sequence[bytes]) -> list[AppendInfo | LogStoreError]:
        """`append_group`, written down. Errors are returned, not raised."""
        next_offset = log.offsets.log_end_offset
        for request in requests:
            records = decode_all(request)
            for delta, record in enumerate(records):
                offset = next_offset + delta
                self.attempted.setdefault(offset, []).append(record._replace(offset=offset))
            next_offset += len(records)
        was_offline = log.availability.is_offline
        outcomes = log.appender.append_group(requests, self.leader_epoch)
        # An acknowledgement also says that fewer records than that wait for a sync.
        promised_offset = log.offsets.log_end_offset - log.local_log.config.flush_messages + 1
        has_acknowledged = any(not isinstance(outcome, LogStoreError) for outcome in outcomes)
        if has_acknowledged:
            self.durable_end_offset = max(self.durable_end_offset, promised_offset)
        for request, outcome in zip(requests, outcomes, strict=True):
            records = decode_all(request)
            if isinstance(outcome, LogStoreError):
                # Where a sync failed that the append was to wait for, it is unknown what is stored of it.
                if was_offline or not log.availability.is_offline:
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
        self.durable_end_offset = max(self.durable_end_offset, log.flusher.flush())

    def flush_rolled(self, machine: LogMachine, log: UnifiedLog) -> None:
        """Run the task that makes rolled segments durable."""
        machine.manager.tasks.flush_rolled()
        self.durable_end_offset = max(self.durable_end_offset, log.local_log.segments.active.base_offset)

    def note_starts(self, log: UnifiedLog) -> None:
        """After a deletion that was acknowledged."""
        self.log_start_offset = max(self.log_start_offset, log.offsets.log_start_offset)
        self.local_start_offset = max(self.local_start_offset, log.offsets.local_log_start_offset)

    def restart_at(self, log: UnifiedLog, offset: int) -> None:
        """`truncate_fully_and_start_at`: until it returns, the log may still be the old one, or a beginning
        of it."""
        self.durable_end_offset = self.local_start_offset = 0
        self.log_start_offset = min(self.log_start_offset, offset)
        log.truncation.truncate_fully_and_start_at(offset)
        self._dropped = {}
        self.acknowledged = {}
        self.attempted = {}
        self.durable_end_offset = self.local_start_offset = offset
        self.log_start_offset = log.offsets.log_start_offset

    def truncate_to(self, log: UnifiedLog, offset: int) -> None:
        """Until it returns, the log may still be what it was, or a beginning of it."""
        if offset < log.offsets.local_log_start_offset:
            # Nothing local is left; the log begins anew.
            self.restart_at(log, offset)
            return
        end_offset = min(offset, log.offsets.log_end_offset)
        if end_offset < log.offsets.log_end_offset:
            # Batches go as a whole.
            end_offset -= self._indexes.get(self.acknowledged[end_offset].value, 0)
        self.durable_end_offset = min(self.durable_end_offset, end_offset)
        self.log_start_offset = min(self.log_start_offset, end_offset)
        self.local_start_offset = min(self.local_start_offset, end_offset)
        assert log.truncation.truncate_to(offset) == end_offset
        self.acknowledged = {at: record for at, record in self.acknowledged.items() if at < end_offset}
        self.attempted = {at: records for at, records in self.attempted.items() if at < end_offset}

    def verify(self, log: UnifiedLog, *, after_crash: bool) -> None:
        """The log holds what it must and nothing that it must not. Afterwards the ledger describes this very
        log."""
        log.check()
        start_offset, end_offset = log.offsets.local_log_start_offset, log.offsets.log_end_offset
        assert log.offsets.log_start_offset >= self.log_start_offset
        assert start_offset >= self.local_start_offset
        assert end_offset >= self.durable_end_offset, "what was flushed is lost"
        if not after_crash:
            assert end_offset == max(self.acknowledged, default=start_offset - 1) + 1
        records = read_local(log)
        self._dropped |= {at: one for at, one in self.acknowledged.items() if at < start_offset}
        assert [record.offset for record in records] == list(range(start_offset, end_offset)), (
            "offsets are not dense"
        )
        for record in records:
            assert record in self.attempted[record.offset], "bytes of another log"
            if record.offset < self.durable_end_offset or not after_crash:
                assert record == self.acknowledged[record.offset], "not what was acknowledged"
        self._verify_times(log, records)
        if after_crash:
            # What is served from now on must survive another crash.
            assert log.offsets.recovery_point == end_offset
            self.durable_end_offset = end_offset
            self.acknowledged = {record.offset: record for record in records}
            self.attempted = {record.offset: [record] for record in records}
            if self._begins_anew(log):
                self._dropped = {}
        self.verify_producers(log)

    def _begins_anew(self, log: UnifiedLog) -> bool:
        """Whether the crash took all records up to a log start that was durable.

        Such a log begins there, empty, and knows no producer any more, as Kafka's.
        """
        segments = log.reader.segments()
        return (
            len(segments) == 1
            and segments[0].base_offset == log.offsets.log_end_offset
            and not log.producers()
        )

    def verify_producers(self, log: UnifiedLog) -> None:
        """The log knows of its producers what follows from its records, and readers of committed records get
        these."""
        view = self.view
        entries = {entry.producer_id: entry for entry in log.producers()}
        assert {
            producer_id: (entry.batches[-1].last_sequence, entry.batches[-1].last_offset)
            for producer_id, entry in entries.items()
            if entry.batches
        } == {
            producer_id: (note.last_sequence, offset) for producer_id, (note, offset) in view.newest.items()
        }
        opened = {
            producer_id: entry.current_txn_first_offset
            for producer_id, entry in entries.items()
            if entry.current_txn_first_offset is not None
        }
        assert opened == view.open_transactions
        stable_offset = view.last_stable_offset(log.offsets.log_start_offset, log.offsets.high_watermark)
        assert log.offsets.last_stable_offset == stable_offset
        everything = (self._dropped | self.acknowledged).items()
        committed = self.producers.committed([record for _, record in sorted(everything)], stable_offset)
        start_offset = log.offsets.local_log_start_offset
        expected = [record for record in committed if record.offset >= start_offset]
        for max_bytes in (1, _READ_BYTES):
            assert read_as_consumer(log, Isolation.TXN_COMMITTED, max_bytes) == expected

    def _verify_times(self, log: UnifiedLog, records: Sequence[Record]) -> None:
        visible = [record for record in records if record.offset < log.offsets.high_watermark]
        found = log.reader.max_timestamp()
        newest_ms = max((record.timestamp_ms for record in visible), default=None)
        assert (found.timestamp_ms if found else None) == newest_ms
        samples = visible[:1] + visible[len(visible) // 2 :][:1] + visible[-1:]
        for wanted in sorted({record.timestamp_ms + delta for record in samples for delta in (0, 1)}):
            expected = next((record for record in visible if record.timestamp_ms >= wanted), None)
            answer = log.reader.offset_for_timestamp(wanted)
            assert (answer.offset if answer else None) == (expected.offset if expected else None)


def read_local(log: UnifiedLog, max_bytes: int = _READ_BYTES) -> list[Record]:
    """Every record from the local log start to the log end, markers included, in order, read as a consumer
    would."""
    return read_up_to(log.offsets.log_end_offset, log, Isolation.LOG_END, max_bytes)
