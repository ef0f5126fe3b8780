"""Which transactions were aborted, against a look at all entries of all segments and at every batch, whatever
is done to the log: its list of segments says where to look, and must never pass one by."""

from __future__ import annotations

from collections.abc import Collection
from itertools import combinations, pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stratalog.base.types import Durability
from stratalog.cleaner.clean.aborted_index import AbortedIndex
from stratalog.cleaner.clean.clean_result import CleanLimits
from stratalog.cleaner.clean.log_clean import LogClean
from stratalog.log.isolation import Isolation
from stratalog.log.log_config import UNLIMITED, LogConfig
from stratalog.log.log_segments import LogSegments
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.manager.moves.log_move import MoveState
from stratalog.record.batch import batches, decode
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import BatchHeader
from stratalog.record.record import Record
from stratalog.segment.file_names import (
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    segment_path,
)
from stratalog.segment.indexes.offset_index import MAX_RELATIVE_OFFSET
from stratalog.segment.indexes.transaction_index import AbortedTransaction, TransactionIndex
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.memory_filesystem import MemoryFileSystem, Survival
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.stepped_throttler import SteppedThrottler
from tests.support.logs.crash_moments import ANY_SURVIVAL
from tests.support.logs.log_consumer import read_as_consumer
from tests.support.logs.log_machine import (
    DATA_DIR,
    DATA_DIRS,
    NEVER_MS,
    OTHER_DIR,
    PARTITION,
    TOPIC_ID,
    machine_on,
)
from tests.support.logs.sampling import examples_of

PRODUCERS = st.integers(1, 3)
FRACTIONS = st.floats(0, 1)
FAR = MAX_RELATIVE_OFFSET - 20
LEADER_EPOCH = 1
CONFIGS = st.builds(
    LogConfig,
    cleanup_policy=st.just(frozenset({"compact"})),
    segment_bytes=st.sampled_from([300, 700, 3000]),
    index_interval_bytes=st.sampled_from([0, 150]),
    remote_storage_enable=st.just(False),
    retention_ms=st.just(UNLIMITED),
    min_cleanable_dirty_ratio=st.just(0.0),
    delete_retention_ms=st.just(1000),
    min_durability=st.sampled_from([Durability.OS, Durability.DISK]),
)


class AbortedLookupsMachine(RuleBasedStateMachine):
    """Nothing is written down beside the log: what it holds, read as it is, says what is to be found."""

    @initialize(
        config=CONFIGS,
        transactions=st.lists(st.tuples(PRODUCERS, st.booleans(), st.integers(0, 2)), max_size=12),
    )
    def begin(self, config: LogConfig, transactions: list[tuple[int, bool, int]]) -> None:
        self.ids = SequentialIds()
        self.machine = machine_on(MemoryFileSystem(), config, self.ids)
        self.log: UnifiedLog = self.machine.start()
        self.value_count = 0
        for producer_id, committed, plain_count in transactions:
            self.run_transaction(producer_id, committed=committed)
            self.append_plain([producer_id], plain_count)

    def records(self, keys: list[int]) -> list[Record]:
        records: list[Record] = []
        for key in keys:
            self.value_count += 1
            records.append(Record(0, self.machine.clock.now_ms(), b"k%d" % key, b"v%d" % self.value_count))
        return records

    @property
    def open_producers(self) -> list[int]:
        entries = self.log.producers()
        return [entry.producer_id for entry in entries if entry.current_txn_first_offset is not None]

    @rule(
        producer_id=PRODUCERS,
        keys=st.lists(st.integers(0, 3), min_size=1, max_size=4),
        is_transactional=st.sampled_from([True, True, True, False]),
    )
    def append(self, producer_id: int, keys: list[int], is_transactional: bool) -> None:
        sequences = {entry.producer_id: entry.next_sequence for entry in self.log.producers()}
        is_transactional = is_transactional or producer_id in self.open_producers
        producer = BatchProducer(producer_id, 0, sequences.get(producer_id, 0), is_transactional)
        self.log.appender.append_as_leader(encode_batch(self.records(keys), producer=producer), LEADER_EPOCH)

    @rule(producer_id=PRODUCERS, committed=st.sampled_from([False, False, True]))
    def end_transaction(self, producer_id: int, committed: bool) -> None:
        if producer_id in self.open_producers:
            self.log.appender.append_end_transaction_marker(
                producer_id, 0, 0, committed=committed, leader_epoch=LEADER_EPOCH
            )

    @rule(producer_id=PRODUCERS, committed=st.sampled_from([False, False, True]))
    def run_transaction(self, producer_id: int, committed: bool) -> None:
        """Its marker is in a segment of its own."""
        self.append(producer_id, [producer_id, 0], is_transactional=True)
        self.log.roll()
        self.end_transaction(producer_id, committed=committed)
        self.log.roll()

    @rule(keys=st.lists(st.integers(0, 3), min_size=1, max_size=4), count=st.integers(1, 4))
    def append_plain(self, keys: list[int], count: int) -> None:
        """Segments without an aborted transaction."""
        for _ in range(count):
            self.log.appender.append_as_leader(encode_batch(self.records(keys)), LEADER_EPOCH)
            self.log.roll()

    @rule()
    def append_far_behind(self) -> None:
        base_offset = self.log.offsets.log_end_offset + FAR
        batch = encode_batch(self.records([0]), base_offset=base_offset, leader_epoch=LEADER_EPOCH)
        self.log.appender.append_as_follower(batch)

    @rule()
    def roll(self) -> None:
        self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flusher.flush()

    @rule(fraction=FRACTIONS)
    def truncate(self, fraction: float) -> None:
        segments = self.log.local_log.segments
        self.log.truncation.truncate_to(
            max(self.log.offsets.local_log_start_offset, self.offset_in(segments, fraction))
        )

    def offset_in(self, segments: LogSegments, fraction: float) -> int:
        """One near records, wherever the holes are."""
        at = fraction * len(segments)
        segment = segments[min(int(at), len(segments) - 1)]
        end_offset = min(segment.end_offset, segment.base_offset + 20)
        return segment.base_offset + round((at - int(at)) * (end_offset - segment.base_offset))

    @rule(fraction=FRACTIONS)
    def delete_records(self, fraction: float) -> None:
        offset = min(self.offset_in(self.log.local_log.segments, fraction), self.log.offsets.high_watermark)
        self.log.increment_log_start_offset(max(offset, self.log.offsets.log_start_offset))
        self.log.retention.delete_old_segments()

    @rule(key_count=st.integers(1, 4))
    def clean(self, key_count: int) -> None:
        """Clean as often as something is due, with look-ups in between."""
        cleanings, log = self.machine.manager.cleaner, self.log
        for _ in range(100):
            chosen = cleanings.take_filthiest()
            if chosen is None:
                break
            limits = CleanLimits(24 * (key_count + 1), 1.0, 1, self.verify_everything, unthrottled)
            result = LogClean(self.machine.clock, self.ids).run(chosen, limits)
            cleanings.done(chosen, result.end_offset)
        log.check()

    @rule(producers=st.lists(PRODUCERS, max_size=3))
    def move(self, producers: list[int]) -> None:
        """To the other log directory, with aborted transactions and rolls beside it."""
        manager = self.machine.manager

        def work(_: int) -> None:
            if producers:
                producer_id = producers.pop()
                self.append(producer_id, [1], is_transactional=True)
                self.end_transaction(producer_id, committed=False)
                self.log.roll()

        manager.moves.throttler = SteppedThrottler(self.machine.clock, work)
        target = OTHER_DIR if manager.directory_of(PARTITION) == DATA_DIR else DATA_DIR
        assert manager.begin_move(PARTITION, target).run() is MoveState.DONE

    @rule(duration_ms=st.sampled_from([1, 1500, 60_000]))
    def pass_time(self, duration_ms: int) -> None:
        self.machine.clock.advance(duration_ms)
        assert not self.machine.scheduler.failures

    @rule(loses_indexes=st.booleans())
    def stop_and_start(self, loses_indexes: bool) -> None:
        """An index that is lost is made again when it is needed; that of aborted transactions is none of
        these."""
        directory, sealed = self.log.local_log.directory, self.log.local_log.segments.sealed
        self.machine.stop()
        for segment in sealed if loses_indexes else ():
            self.unlink(directory, segment.base_offset, {OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX})
        self.log = self.machine.start()
        assert self.log.recovery_report.was_clean

    def unlink(self, directory: str, base_offset: int, suffixes: Collection[str]) -> None:
        for suffix in suffixes:
            path = segment_path(directory, base_offset, suffix)
            if self.machine.memory.exists(path):
                self.machine.memory.unlink(path)

    @rule()
    def kill(self) -> None:
        self.machine.kill()
        self.log = self.machine.start()

    @rule(flushes=st.sampled_from([True, True, False]), survival=ANY_SURVIVAL)
    def crash(self, flushes: bool, survival: Survival) -> None:
        if flushes:
            self.log.flusher.flush()
        self.machine.crash(survival)
        self.log = self.machine.start()

    @rule(loses_transaction_indexes=st.booleans(), was_closed=st.booleans())
    def take_for_a_brokers(self, loses_transaction_indexes: bool, was_closed: bool) -> None:
        """Open the log as an import does, which believes less of what it finds."""
        directory = self.log.local_log.directory
        if was_closed:
            self.machine.stop()
        else:
            self.machine.kill()
        if loses_transaction_indexes:
            for path in self.machine.memory.contents():
                if path.startswith(directory + "/") and path.endswith(TRANSACTION_INDEX_SUFFIX):
                    self.machine.memory.unlink(path)
        self.open_as_brokers()

    def open_as_brokers(self) -> None:
        manager = LogManager.open(
            self.machine.memory,
            self.machine.clock,
            ManualScheduler(self.machine.clock),
            self.ids,
            LogManagerSettings(
                data_dirs=DATA_DIRS, producer_id_expiration_ms=NEVER_MS, written_by_broker=True
            ),
        )
        self.log = manager.open_log(PARTITION, TOPIC_ID, self.machine.config)
        self.verify_everything()
        manager.close()
        self.log = self.machine.start()

    def far_pair(self) -> int | None:
        """Which sealed segment is followed by one whose offsets are too far from its base, if any."""
        sealed = self.log.local_log.segments.sealed
        pairs = enumerate(pairwise(sealed))
        return next(
            (
                at
                for at, (one, other) in pairs
                if one.size_bytes and other.size_bytes and not one.fits(other.end_offset - 1)
            ),
            None,
        )

    @precondition(lambda self: self.far_pair() is not None)
    @rule()
    def merge_too_much(self) -> None:
        """Make one segment of two, as old brokers did; it has to be split."""
        at = self.far_pair()
        assert at is not None
        directory, segments = self.log.local_log.directory, self.log.local_log.segments
        bases = [segment.base_offset for segment in segments[at : at + 2]]
        self.machine.stop()
        for suffix in (LOG_SUFFIX, TRANSACTION_INDEX_SUFFIX):
            paths = [segment_path(directory, base_offset, suffix) for base_offset in bases]
            data = [self.machine.memory.read_file(path) for path in paths if self.machine.memory.exists(path)]
            if data:
                file = self.machine.memory.open_append(paths[0])
                file.truncate(0)
                file.append(data)
                file.close()
        self.unlink(directory, bases[0], {OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX})
        self.unlink(directory, bases[1], {LOG_SUFFIX, *INDEX_SUFFIXES})
        self.open_as_brokers()
        assert self.far_pair() is None or self.log.local_log.segments[at].fits(
            self.log.local_log.segments[at].end_offset - 1
        )

    @invariant()
    def equal(self) -> None:
        self.log.check()
        self.verify_everything()

    def verify_everything(self) -> None:
        segments, entries = self.log.local_log.segments, self.all_entries()
        offsets = sorted(
            {at for entry in entries for offset in entry[1:] for at in (offset, offset + 1)}
            | {at for segment in segments for at in (segment.base_offset, segment.end_offset)}
        )
        offsets = [at for at in offsets if segments.start_offset <= at <= segments.end_offset]
        for start_offset, end_offset in combinations(offsets[:: 1 + len(offsets) // 12], 2):
            expected = tuple(
                entry
                for entry in entries
                if entry.first_offset < end_offset and entry.last_offset >= start_offset
            )
            assert segments.aborted_in(start_offset, end_offset) == expected, (start_offset, end_offset)
        self.verify_readers(entries)

    def all_entries(self) -> list[AbortedTransaction]:
        """Out of the files of all sealed segments, and out of the active one's index."""
        directory, segments = self.log.local_log.directory, self.log.local_log.segments
        entries: list[AbortedTransaction] = []
        for segment in segments.sealed:
            entries += TransactionIndex.load(self.machine.memory, directory, segment.base_offset)
        return entries + list(segments.active.indexes().transaction_index)

    def verify_readers(self, entries: list[AbortedTransaction]) -> None:
        """Readers of committed records, and a clean, leave out what batches and markers say was aborted."""
        found: list[tuple[BatchHeader, list[Record]]] = []
        offset = self.log.offsets.local_log_start_offset
        while offset < self.log.offsets.log_end_offset:
            data = self.log.reader.read(offset, 1 << 20, Isolation.LOG_END)
            found += [(header, decode(data.batches, at)) for at, header in batches(data.batches)]
            offset = data.next_offset
        aborts: dict[int, bool] = {}
        committed: list[Record] = []
        segments = self.log.local_log.segments
        # As a clean has it, and with a reach that grows, or that all reach beyond.
        indexes = [
            AbortedIndex(segments, unthrottled),
            AbortedIndex(segments, unthrottled, least_reach=1, max_kept=1),
            AbortedIndex(segments, unthrottled, least_reach=0),
        ]
        for header, records in reversed(found):
            if header.is_control:
                if records:
                    marker = EndTransactionMarker.parse(records[0])
                    aborts[header.producer_id] = marker.control_type is ControlType.ABORT
                continue
            is_aborted = header.is_transactional and aborts.get(header.producer_id, False)
            for index in indexes:
                assert index.between(header.base_offset, header.next_offset).has(header) == is_aborted
            committed += [] if is_aborted else reversed(records)
        start_offset, end_offset = (
            self.log.offsets.local_log_start_offset,
            self.log.offsets.last_stable_offset,
        )
        expected = [one for one in reversed(committed) if start_offset <= one.offset < end_offset]
        for max_bytes in (1, 1 << 20):
            assert read_as_consumer(self.log, Isolation.TXN_COMMITTED, max_bytes) == expected


def unthrottled(size_bytes: int) -> None:
    assert size_bytes > 0


AbortedLookupsMachine.TestCase.settings = settings(stateful_step_count=20, max_examples=examples_of(4))
# With thousands of examples this takes longer than a test should.
TestAbortedLookups = pytest.mark.timeout(1800)(AbortedLookupsMachine.TestCase)
