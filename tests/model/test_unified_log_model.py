"""A log beside a plain list: any mixture of appends, reads, drops, moves, restarts and crashes leaves them
equal."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stratalog.base.errors import LogStoreError, OffsetOutOfRangeError, OutOfOrderSequenceError
from stratalog.base.types import Durability
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.moves.log_move import MoveState
from stratalog.record.record import Record
from stratalog.testing.memory_filesystem import MemoryFileSystem, Survival
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.stepped_throttler import SteppedThrottler
from tests.support.logs.crash_moments import ANY_SURVIVAL
from tests.support.logs.log_consumer import decode_with_markers
from tests.support.logs.log_ledger import LogLedger, read_local
from tests.support.logs.log_machine import DATA_DIR, OTHER_DIR, PARTITION, machine_on

COUNTS = st.integers(1, 6)
PRODUCERS = st.integers(1, 3)
FRACTIONS = st.floats(0, 1)
CONFIGS = st.builds(
    LogConfig,
    segment_bytes=st.sampled_from([1024, 2000, 10_000]),
    index_interval_bytes=st.sampled_from([0, 150, 4096]),
    segment_index_bytes=st.sampled_from([24, 48, 10_000]),
    segment_ms=st.sampled_from([500, 10**9]),
    segment_jitter_ms=st.sampled_from([0, 300, 10**12]),
    flush_messages=st.sampled_from([1, 4, 30, 2**63 - 1]),
    flush_ms=st.sampled_from([0, 700, 2**63 - 1]),
    preallocate=st.booleans(),
    min_durability=st.sampled_from([Durability.OS, Durability.DISK]),
    remote_storage_enable=st.booleans(),
    retention_bytes=st.sampled_from([-1, 3000]),
    retention_ms=st.just(-1),
)
TAIL_BYTES = st.sampled_from([0, 4_000, 1 << 20])


class UnifiedLogMachine(RuleBasedStateMachine):
    """`records` is the list: everything that was acknowledged, by offset, dropped or not."""

    @initialize(config=CONFIGS, start_offset=st.sampled_from([0, 5, 2**40]), tail_bytes=TAIL_BYTES)
    def begin(self, config: LogConfig, start_offset: int, tail_bytes: int) -> None:
        self.machine = machine_on(MemoryFileSystem(), config, SequentialIds(), tail_bytes=tail_bytes)
        self.ledger = LogLedger()
        self.log: UnifiedLog = self.machine.start(start_offset=start_offset)
        # The empty log is kept as a fact; without a record in it, a crash may take the fact away.
        self.log.flusher.flush()
        self.ledger.durable_end_offset = self.ledger.local_start_offset = start_offset
        self.ledger.log_start_offset = self.log.offsets.log_start_offset

    @property
    def records(self) -> list[Record]:
        start_offset = self.log.offsets.local_log_start_offset
        return [
            record for offset, record in sorted(self.ledger.acknowledged.items()) if offset >= start_offset
        ]

    @rule(counts=st.lists(COUNTS, min_size=1, max_size=4), garbage=st.sampled_from([None, b"", b"x" * 70]))
    def append(self, counts: list[int], garbage: bytes | None) -> None:
        requests = [self.ledger.batch(count) for count in counts]
        if garbage is not None:
            # A request that is refused takes no offset, and its neighbours do not notice.
            outcomes = self.log.appender.append_group([requests[0][:-1], garbage], leader_epoch=99)
            assert all(isinstance(outcome, LogStoreError) for outcome in outcomes)
        assert not any(
            isinstance(outcome, LogStoreError) for outcome in self.ledger.append(self.log, requests)
        )

    @rule(timestamp_ms=st.integers(0, 2_000_000))
    def append_at(self, timestamp_ms: int) -> None:
        self.ledger.append(self.log, [self.ledger.batch(2, timestamp_ms=timestamp_ms)])

    @rule(
        producers=st.lists(PRODUCERS, min_size=1, max_size=3, unique=True),
        count=COUNTS,
        is_transactional=st.booleans(),
        comes_twice=st.booleans(),
    )
    def append_idempotent(
        self, producers: list[int], count: int, is_transactional: bool, comes_twice: bool
    ) -> None:
        requests = [
            self.ledger.producer_batch(producer, count, is_transactional=is_transactional)
            for producer in producers
        ]
        stored = self.ledger.append(self.log, requests)
        assert not any(isinstance(outcome, LogStoreError) for outcome in stored)
        if comes_twice:
            self.send_again()

    @rule()
    def send_again(self) -> None:
        """The last batch of each producer is recognised, whatever has happened to the log since."""
        end_offset = self.log.offsets.log_end_offset
        for note, last_offset in self.ledger.view.newest.values():
            info = self.log.appender.append_as_leader(note.request, 99)
            assert info[:4] == (last_offset - note.record_count + 1, last_offset, 0, True)
            assert info.log_start_offset == self.log.offsets.log_start_offset
        assert self.log.offsets.log_end_offset == end_offset

    @rule(producer=PRODUCERS)
    def send_too_early(self, producer: int) -> None:
        is_known = producer in self.ledger.view.newest
        request = self.ledger.producer_batch(producer, 2, is_transactional=False, skipped_count=1)
        if is_known:
            [outcome] = self.ledger.append(self.log, [request])
            assert isinstance(outcome, OutOfOrderSequenceError)

    @rule(producer=PRODUCERS, committed=st.booleans())
    def end_transaction(self, producer: int, committed: bool) -> None:
        now_ms = self.machine.clock.now_ms()
        assert self.ledger.end_transaction(self.log, producer, committed=committed, now_ms=now_ms) is None

    @rule(step=st.integers(1, 3))
    def take_over(self, step: int) -> None:
        """Another owner appends from now on."""
        self.ledger.leader_epoch += step

    @rule(delta=st.integers(-1, 40))
    def truncate(self, delta: int) -> None:
        self.ledger.truncate_to(self.log, max(0, self.log.offsets.log_end_offset - delta))

    @rule()
    def flush(self) -> None:
        self.ledger.flush(self.log)
        assert self.log.offsets.recovery_point == self.log.offsets.log_end_offset

    @rule()
    def flush_old(self) -> None:
        """Flush as the server's task does."""
        self.machine.manager.tasks.flush_old()
        if self.machine.config.flush_ms == 0:
            assert self.log.offsets.recovery_point == self.log.offsets.log_end_offset
        self.ledger.durable_end_offset = max(self.ledger.durable_end_offset, self.log.offsets.recovery_point)

    @rule()
    def roll(self) -> None:
        self.log.roll()
        assert self.log.reader.segments()[-1].size_bytes == 0

    @rule(fraction=FRACTIONS, max_bytes=st.integers(0, 3000))
    def read(self, fraction: float, max_bytes: int) -> None:
        start_offset, end_offset = self.log.offsets.local_log_start_offset, self.log.offsets.high_watermark
        if end_offset < start_offset:
            return
        offset = start_offset + round(fraction * (end_offset - start_offset))
        data = self.log.reader.read(offset, max_bytes)
        found = [record for record in decode_with_markers(data.batches) if record.offset >= offset]
        assert found == [record for record in self.records if offset <= record.offset < data.next_offset]
        assert bool(found) == (offset < end_offset)
        # More than was asked for comes only where one batch alone is larger.
        assert len(data.batches) <= max_bytes or len({record.value for record in found}) <= 6
        assert data.next_offset <= end_offset
        limited = self.log.reader.read(offset, max_bytes, min_one_message=False)
        assert len(limited.batches) <= max_bytes

    @rule(timestamp_ms=st.integers(0, 1_100_000))
    def look_up(self, timestamp_ms: int) -> None:
        visible = [record for record in self.records if record.offset < self.log.offsets.high_watermark]
        expected = next((record for record in visible if record.timestamp_ms >= timestamp_ms), None)
        found = self.log.reader.offset_for_timestamp(timestamp_ms)
        assert found == ((expected.timestamp_ms, expected.offset) if expected else None)
        newest = max(visible, key=lambda record: (record.timestamp_ms, -record.offset), default=None)
        assert self.log.reader.max_timestamp() == ((newest.timestamp_ms, newest.offset) if newest else None)

    @rule()
    def read_outside(self) -> None:
        for offset in (self.log.offsets.log_end_offset + 1, self.log.offsets.local_log_start_offset - 1):
            with pytest.raises(OffsetOutOfRangeError):
                self.log.reader.read(offset, 100)

    @rule(fraction=FRACTIONS)
    def delete_records(self, fraction: float) -> None:
        start_offset, end_offset = self.log.offsets.log_start_offset, self.log.offsets.high_watermark
        self.log.increment_log_start_offset(start_offset + int(fraction * (end_offset - start_offset)))
        self.log.retention.delete_old_segments()
        self.ledger.note_starts(self.log)

    @rule()
    def tier_and_drop(self) -> None:
        candidates = self.log.reader.upload_candidates(self.log.offsets.earliest_pending_upload_offset)
        offset = max(self.log.offsets.earliest_pending_upload_offset, self.log.offsets.local_log_start_offset)
        for source in candidates:
            assert source.base_offset == offset
            offset = source.end_offset
            assert offset <= min(self.log.offsets.recovery_point, self.log.offsets.last_stable_offset)
            data = self.log.reader.read_segment(source, source.first_position, source.size_bytes)
            copied = [record for record in decode_with_markers(data) if record.offset >= source.base_offset]
            assert copied == [r for r in self.records if source.base_offset <= r.offset < source.end_offset]
        if self.machine.config.remote_storage_enable and candidates:
            self.log.update_tiered_end_offset(offset)
            self.log.retention.delete_local_segments(ignore_retention=True)
            assert self.log.offsets.local_log_start_offset >= offset
            self.ledger.note_starts(self.log)

    @rule(delta=st.integers(-20, 50))
    def restart_at(self, delta: int) -> None:
        self.ledger.restart_at(self.log, max(0, self.log.offsets.log_end_offset + delta))

    @rule(counts=st.lists(COUNTS, max_size=5))
    def move(self, counts: list[int]) -> None:
        """To the other log directory, with appends beside it."""
        manager, left = self.machine.manager, list(counts)

        def append(_: int) -> None:
            if left:
                self.ledger.append(self.log, [self.ledger.batch(left.pop())])

        manager.moves.throttler = SteppedThrottler(self.machine.clock, append)
        target = OTHER_DIR if manager.directory_of(PARTITION) == DATA_DIR else DATA_DIR
        assert manager.begin_move(PARTITION, target).run() is MoveState.DONE
        assert manager.directory_of(PARTITION) == target
        assert self.log.offsets.recovery_point == self.log.offsets.log_end_offset
        self.ledger.durable_end_offset = self.log.offsets.recovery_point

    @rule(duration_ms=st.sampled_from([1, 600, 60_000]))
    def pass_time(self, duration_ms: int) -> None:
        self.machine.clock.advance(duration_ms)
        assert not self.machine.scheduler.failures

    @rule()
    def stop_and_start(self) -> None:
        tiered_end_offset, end_offset = self.log.offsets.tiered_end_offset, self.log.offsets.log_end_offset
        self.machine.stop()
        self.log = self.machine.start()
        assert self.log.recovery_report.was_clean
        assert self.log.offsets.recovery_point == self.log.offsets.log_end_offset == end_offset
        self.ledger.durable_end_offset = end_offset
        self._tell_what_the_store_knows(tiered_end_offset)

    @rule(survival=ANY_SURVIVAL)
    def crash(self, survival: Survival) -> None:
        self.machine.crash(survival)
        self._start_after_crash()

    @rule()
    def kill(self) -> None:
        self.machine.kill()
        self._start_after_crash()

    def _start_after_crash(self) -> None:
        tiered_end_offset = self.log.offsets.tiered_end_offset
        self.log = self.machine.start()
        self._tell_what_the_store_knows(tiered_end_offset)
        self.ledger.verify(self.log, after_crash=True)

    def _tell_what_the_store_knows(self, tiered_end_offset: int) -> None:
        """Uploads never run ahead of fsync, so no crash takes back what was tiered; nor what was deleted."""
        self.log.update_tiered_end_offset(tiered_end_offset)
        if self.machine.config.remote_storage_enable:
            self.log.increment_log_start_offset(self.ledger.log_start_offset)

    @rule(position=FRACTIONS)
    def damage_an_index(self, position: float) -> None:
        """Index files of sealed segments are disposable: change one byte of each, and no reader notices."""
        tiered_end_offset = self.log.offsets.tiered_end_offset
        live = {info.base_offset for info in self.log.reader.segments() if not info.is_active}
        self.machine.stop()
        for path, data in self.machine.memory.contents().items():
            if (
                data
                and path.endswith((".index", ".timeindex"))
                and int(path.split("/")[-1].split(".")[0]) in live
            ):
                changed = bytearray(data)
                changed[round(position * (len(data) - 1))] ^= 0x55
                file = self.machine.memory.open_append(path)
                file.truncate(0)
                file.append([changed])
                file.close()
        self.log = self.machine.start()
        self._tell_what_the_store_knows(tiered_end_offset)
        self.ledger.durable_end_offset = self.log.offsets.log_end_offset

    @invariant()
    def equal(self) -> None:
        self.log.check()
        assert read_local(self.log, 1500) == self.records
        self.ledger.verify_producers(self.log)
        self.machine.manager.check()
        assert (
            self.log.offsets.log_end_offset - self.log.offsets.recovery_point
            < self.machine.config.flush_messages
        )
        self.check_reserved_space()

    def check_reserved_space(self) -> None:
        """Only the active segment has any, and only where the topic asks for it."""
        for info in self.log.reader.segments():
            spare_bytes = self.machine.memory.spare_bytes(
                f"{self.log.local_log.directory}/{info.base_offset:020d}.log"
            )
            limit_bytes = (
                self.machine.config.segment_bytes if info.is_active and self.machine.config.preallocate else 0
            )
            assert spare_bytes <= limit_bytes


UnifiedLogMachine.TestCase.settings = settings(stateful_step_count=25)
# With thousands of examples this takes longer than a test should.
TestUnifiedLog = pytest.mark.timeout(1800)(UnifiedLogMachine.TestCase)
