"""A follower's log beside a plain list: batches come at the offsets and in the epochs that they have, with
holes between them. Any mixture with cuts, rolls, deletions, restarts and crashes leaves them equal."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from stratalog.base.errors import CorruptRecordError
from stratalog.base.types import Durability
from stratalog.log.append_info import AppendInfo
from stratalog.log.isolation import Isolation
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.memory_filesystem import Survival
from tests.support.logs.crash_moments import ANY_SURVIVAL
from tests.support.logs.log_consumer import decode_with_markers
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import PARTITION, LogMachine

FRACTIONS = st.floats(0, 1)
HOLES = st.sampled_from([0, 0, 0, 1, 2, 70, 1000, 4000])
STEPS = st.sampled_from([0, 0, 0, 1, 3])
CONFIGS = st.builds(
    LogConfig,
    segment_bytes=st.sampled_from([400, 1024, 10_000]),
    index_interval_bytes=st.sampled_from([0, 150, 4096]),
    segment_index_bytes=st.sampled_from([24, 48, 10_000]),
    segment_ms=st.sampled_from([500, 10**9]),
    flush_messages=st.sampled_from([1, 30, 2**63 - 1]),
    preallocate=st.booleans(),
    min_durability=st.sampled_from([Durability.OS, Durability.DISK]),
    remote_storage_enable=st.just(False),
    retention_ms=st.just(-1),
)


class Batch(NamedTuple):
    """A batch that was acknowledged, with its offsets."""

    records: tuple[Record, ...]
    epoch: int

    @property
    def base_offset(self) -> int:
        return self.records[0].offset

    @property
    def last_offset(self) -> int:
        return self.records[-1].offset

    @property
    def data(self) -> bytes:
        return encode_batch(self.records, base_offset=self.base_offset, leader_epoch=self.epoch)


class FollowerLogMachine(RuleBasedStateMachine):
    """`batches` is the list: everything that was acknowledged and not cut, in order, dropped or not."""

    @initialize(config=CONFIGS)
    def begin(self, config: LogConfig) -> None:
        self.machine = LogMachine(config=config)
        self.log: UnifiedLog = self.machine.start()
        # The empty log is kept as a fact; without a record in it, a crash may take the fact away.
        self.log.flusher.flush()
        self.batches: list[Batch] = []
        self.epoch = self.sequence = self.end_offset = self.durable_end_offset = self.start_offset = 0

    def batch(self, offset: int, count: int) -> Batch:
        records: list[Record] = []
        for delta in range(count):
            self.sequence += 1
            # To and fro, so that the newest record is anywhere.
            time_ms = 1_000_000 + 10 * self.sequence - self.sequence * 7919 % 1000
            records.append(Record(offset + delta, time_ms, b"key", b"%d:" % self.sequence + bytes(20)))
        return Batch(tuple(records), self.epoch)

    @property
    def records(self) -> list[Record]:
        start_offset = self.log.offsets.local_log_start_offset
        return [one for batch in self.batches for one in batch.records if one.offset >= start_offset]

    @rule(sizes=st.lists(st.tuples(st.integers(1, 5), HOLES, STEPS), min_size=1, max_size=4))
    def append_as_follower(self, sizes: list[tuple[int, int, int]]) -> None:
        batches: list[Batch] = []
        offset = self.end_offset
        for count, hole, step in sizes:
            self.epoch += step
            batches.append(self.batch(offset + hole, count))
            offset = batches[-1].last_offset + 1
        request = b"".join(batch.data for batch in batches)
        info = self.log.appender.append_as_follower(request)
        log_start_offset = self.log.offsets.log_start_offset
        expected = AppendInfo(
            batches[0].base_offset, offset - 1, len(request), log_start_offset=log_start_offset
        )
        assert info == expected
        self.batches += batches
        self.end_offset = offset

    @rule(count=st.integers(1, 5), step=STEPS)
    def append_as_leader(self, count: int, step: int) -> None:
        """Its owner has gone, and it is the leader for now."""
        self.epoch += step
        batch = self.batch(self.end_offset, count)
        info = self.log.appender.append_as_leader(encode_batch(batch.records), self.epoch)
        assert (info.base_offset, info.last_offset) == (batch.base_offset, batch.last_offset)
        self.batches.append(batch)
        self.end_offset = batch.last_offset + 1

    @rule(hole=HOLES)
    def append_what_is_refused(self, hole: int) -> None:
        """Below the end, or in a lower epoch than the last: nothing of it is stored."""
        offset = self.end_offset + hole
        refused = [self.batch(offset, 1).data, self.batch(offset, 1).data]
        if self.end_offset > 0:
            with pytest.raises(CorruptRecordError):
                self.log.appender.append_as_follower(self.batch(self.end_offset - 1, 2).data)
        with pytest.raises(CorruptRecordError):
            self.log.appender.append_as_follower(b"".join(refused))
        if self.batches and self.batches[-1].epoch > 0 and self.log.local_log.segments.size_bytes > 0:
            with pytest.raises(CorruptRecordError):
                self.log.appender.append_as_follower(
                    self.batch(offset, 1)._replace(epoch=self.batches[-1].epoch - 1).data
                )

    @rule(delta=st.integers(0, 40) | st.integers(0, 6000))
    def truncate(self, delta: int) -> None:
        offset = max(0, self.end_offset - delta)
        expected = offset
        if offset >= self.log.offsets.local_log_start_offset:
            cut = next((batch for batch in self.batches if batch.last_offset >= offset), None)
            # Batches go as a whole; in a hole the log ends at the given offset.
            expected = offset if cut is None else min(offset, cut.base_offset)
        assert self.machine.manager.truncate_to(PARTITION, offset) == expected
        self.cut_to(expected)
        if self.log.offsets.log_start_offset != self.start_offset:
            # Nothing is left: it begins where it goes on.
            assert (self.log.local_log.segments.size_bytes, self.log.offsets.log_start_offset) == (
                0,
                expected,
            )
        self.start_offset = self.log.offsets.log_start_offset

    @rule(delta=st.integers(-3000, 3000))
    def restart_at(self, delta: int) -> None:
        self.end_offset = max(0, self.end_offset + delta)
        self.machine.manager.truncate_fully_and_start_at(PARTITION, self.end_offset)
        self.batches.clear()
        self.durable_end_offset = self.start_offset = self.end_offset

    def cut_to(self, end_offset: int) -> None:
        self.batches = [batch for batch in self.batches if batch.last_offset < end_offset]
        self.end_offset = end_offset
        self.durable_end_offset = min(self.durable_end_offset, end_offset)
        self.start_offset = min(self.start_offset, end_offset)

    @rule()
    def flush(self) -> None:
        assert self.log.flusher.flush() == self.end_offset
        self.durable_end_offset = self.end_offset

    @rule()
    def checkpoint(self) -> None:
        self.machine.checkpoint()

    @rule()
    def roll(self) -> None:
        self.log.roll()
        assert self.log.reader.segments()[-1].size_bytes == 0

    @rule(fraction=FRACTIONS)
    def delete_records(self, fraction: float) -> None:
        start_offset, end_offset = self.log.offsets.log_start_offset, self.log.offsets.high_watermark
        self.log.increment_log_start_offset(start_offset + int(fraction * (end_offset - start_offset)))
        self.log.retention.delete_old_segments()
        self.start_offset = self.log.offsets.log_start_offset

    @rule(fraction=FRACTIONS, max_bytes=st.integers(0, 3000))
    def read(self, fraction: float, max_bytes: int) -> None:
        start_offset, end_offset = self.log.offsets.local_log_start_offset, self.end_offset
        offset = start_offset + int(fraction * (end_offset - start_offset))
        if offset == end_offset:
            return
        data = self.log.reader.read(offset, max_bytes, Isolation.LOG_END)
        assert offset < data.next_offset <= end_offset
        found = [record for record in decode_with_markers(data.batches) if record.offset >= offset]
        assert found == [record for record in self.records if offset <= record.offset < data.next_offset]

    @rule(timestamp_ms=st.integers(999_000, 1_002_000))
    def look_up(self, timestamp_ms: int) -> None:
        expected = next((record for record in self.records if record.timestamp_ms >= timestamp_ms), None)
        found = self.log.reader.offset_for_timestamp(timestamp_ms, Isolation.LOG_END)
        assert found == ((expected.timestamp_ms, expected.offset) if expected else None)
        newest = max(self.records, key=lambda record: (record.timestamp_ms, -record.offset), default=None)
        newest_found = self.log.reader.max_timestamp(Isolation.LOG_END)
        assert newest_found == ((newest.timestamp_ms, newest.offset) if newest else None)

    @rule(duration_ms=st.sampled_from([1, 600, 60_000]))
    def pass_time(self, duration_ms: int) -> None:
        self.machine.clock.advance(duration_ms)
        assert not self.machine.scheduler.failures

    @rule()
    def stop_and_start(self) -> None:
        self.machine.stop()
        self.log = self.machine.start()
        assert self.log.recovery_report.was_clean
        assert self.log.offsets.log_end_offset == self.end_offset
        self.durable_end_offset = self.end_offset

    @rule(survival=ANY_SURVIVAL)
    def crash(self, survival: Survival) -> None:
        self.machine.crash(survival)
        self.start_after_crash()

    @rule()
    def kill(self) -> None:
        self.machine.kill()
        self.start_after_crash()
        assert self.log.offsets.log_end_offset >= max(
            (batch.last_offset + 1 for batch in self.batches), default=0
        )

    def start_after_crash(self) -> None:
        self.log = self.machine.start()
        found_end_offset = self.log.offsets.log_end_offset
        assert self.durable_end_offset <= found_end_offset <= self.end_offset
        assert self.log.offsets.recovery_point == found_end_offset, (
            "what is served must survive the next crash"
        )
        # Of no batch is a half left, unless the log has lost all up to its start, and begins anew there.
        assert found_end_offset == self.start_offset or not any(
            batch.base_offset < found_end_offset <= batch.last_offset for batch in self.batches
        )
        self.cut_to(found_end_offset)
        self.durable_end_offset = found_end_offset

    @invariant()
    def equal(self) -> None:
        self.log.check()
        assert self.log.offsets.log_end_offset == self.end_offset
        assert self.log.offsets.log_start_offset == self.start_offset
        assert self.log.offsets.recovery_point >= self.durable_end_offset
        self.durable_end_offset = self.log.offsets.recovery_point
        assert read_local(self.log, 1500) == self.records
        self.verify_epochs()
        self.machine.manager.check()

    def verify_epochs(self) -> None:
        """Those of the batches that can be read: which one has an epoch last, and where the next begins."""
        live = [batch for batch in self.batches if batch.last_offset >= self.start_offset]
        for epoch in range(live[0].epoch, live[-1].epoch + 1) if live else ():
            known = max(batch.epoch for batch in live if batch.epoch <= epoch)
            end_offset = next((batch.base_offset for batch in live if batch.epoch > epoch), self.end_offset)
            assert self.log.end_offset_for(epoch) == (known, end_offset)
        if live:
            assert self.log.end_offset_for(live[-1].epoch + 1) is None


FollowerLogMachine.TestCase.settings = settings(stateful_step_count=25)
# With thousands of examples this takes longer than a test should.
TestFollowerLog = pytest.mark.timeout(1800)(FollowerLogMachine.TestCase)
