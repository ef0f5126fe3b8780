"""A log that is written to, cleaned, stopped and started again, step by step, with an oracle beside it."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from stratalog.base.filesystem import FileSystem
from stratalog.cleaner.clean.clean_result import CleanLimits, CleanResult
from stratalog.cleaner.clean.log_clean import LogClean
from stratalog.cleaner.cleaner_checkpoints import CleanerCheckpoints
from stratalog.cleaner.cleaner_manager import CleanerManager
from stratalog.cleaner.cleaning_state import CleaningAbortedError
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.checkpoint import RECOVERY_POINT_FILE
from stratalog.log.config_key import LONG_MAX
from stratalog.log.log_config import UNLIMITED, LogConfig
from stratalog.log.producers.producer_state_entry import ProducerStateEntry
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaning_oracle import CleaningOracle
from tests.support.cleaner.noted_horizons import NotedHorizons
from tests.support.logs.log_consumer import Consumer, table_of
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import DATA_DIR, NEVER_MS, PARTITION_DIR, LogMachine

DELETE_RETENTION_MS = 50_000
# Not compacted, as long as it is written to, so that records may lack a key: as in a topic whose policy was
# altered.
CONFIG = LogConfig(
    retention_ms=UNLIMITED,
    segment_bytes=1024,
    index_interval_bytes=120,
    remote_storage_enable=False,
    delete_retention_ms=DELETE_RETENTION_MS,
)
LOSABLE = (".snapshot", ".index", ".timeindex", "leader-epoch-checkpoint")
PRODUCER_COUNT = 3
KEY_COUNT = 6


def limits(
    entry_count: int = 1000,
    on_step: Callable[[], None] = lambda: None,
    *,
    load_factor: float = 0.9,
    io_buffer_bytes: int = 1,
) -> CleanLimits:
    """Room for so many keys, about, and a small window. `on_step` is called before each read and write."""
    map_bytes = 24 * (round(entry_count / load_factor) + 1)
    return CleanLimits(map_bytes, load_factor, io_buffer_bytes, on_step, _unthrottled)


def _unthrottled(size_bytes: int) -> None:
    assert size_bytes > 0


class CleaningHistory:
    """A log that is written and cleaned at random. Used by one thread. `chance` chooses what is not given."""

    def __init__(self, chance: random.Random, disk: FileSystem | None = None) -> None:
        self.chance = chance
        self.machine = LogMachine(disk, CONFIG, producer_id_expiration_ms=NEVER_MS)
        self.oracle = CleaningOracle(DELETE_RETENTION_MS)
        self.log: UnifiedLog = self.machine.start()
        self.machine_ids = SequentialIds()
        self.clean_log = LogClean(self.machine.clock, self.machine_ids)
        self.first_dirty_offset = 0
        self._sequences: dict[int, int] = {}
        self._epochs: dict[int, int] = {}
        self._open: set[int] = set()
        # By producer and epoch: where its last marker is.
        self._fences: dict[tuple[int, int], int] = {}
        self._number = 0
        # The segment that was begun because nothing was appended, and when.
        self._idle_roll: tuple[int, int] | None = None

    def write(self, count: int = 0, codec: Codec | None = None) -> None:
        """A batch without a producer."""
        self._append(self._records(count, may_lack_keys=True), codec)

    def write_as(self, producer_id: int, count: int = 0, *, is_transactional: bool = True) -> None:
        """The producer's next batch; in its transaction, where one is open in any case."""
        is_transactional = is_transactional or producer_id in self._open
        records = self._records(count)
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + len(records)
        producer = BatchProducer(producer_id, self._epochs.get(producer_id, 0), sequence, is_transactional)
        if is_transactional:
            self._open.add(producer_id)
        self._append(records, None, producer)

    def end_transaction(self, producer_id: int, *, committed: bool) -> None:
        """Nothing where none is open."""
        if producer_id in self._open:
            self._open.discard(producer_id)
            epoch = self._epochs.get(producer_id, 0)
            info = self.log.appender.append_end_transaction_marker(
                producer_id, epoch, 1, committed=committed, leader_epoch=1
            )
            self._fences[producer_id, epoch] = info.last_offset
            self.oracle.end_transaction(producer_id, committed=committed)

    def bump(self, producer_id: int) -> None:
        """The producer's next epoch begins; a transaction that is open ends with it, by a marker of it."""
        self._epochs[producer_id] = self._epochs.get(producer_id, 0) + 1
        self._sequences[producer_id] = 0
        self.end_transaction(producer_id, committed=self.chance.random() < 0.5)

    def _records(self, count: int, *, may_lack_keys: bool = False) -> list[Record]:
        chance, now_ms = self.chance, self.machine.clock.now_ms()
        records: list[Record] = []
        for _ in range(count or chance.randrange(1, 6)):
            self._number += 1
            key = b"k%d" % chance.randrange(KEY_COUNT)
            value = b"v%d" % self._number if chance.random() < 0.7 else None
            headers = (("h", b"x"),) if chance.random() < 0.2 else ()
            if may_lack_keys and chance.random() < 0.05:
                records.append(Record(0, now_ms, None, b"v%d" % self._number))
            else:
                records.append(Record(0, now_ms - chance.randrange(5000), key, value, headers))
        return records

    def _append(
        self, records: list[Record], codec: Codec | None, producer: BatchProducer | None = None
    ) -> None:
        codec = self.chance.choice([Codec.NONE] * 6 + list(Codec)) if codec is None else codec
        producer = BatchProducer() if producer is None else producer
        info = self.log.appender.append_as_leader(encode_batch(records, codec=codec, producer=producer), 1)
        self.oracle.write(
            (one._replace(offset=info.base_offset + delta) for delta, one in enumerate(records)),
            producer.producer_id if producer.is_transactional else -1,
        )

    def delete_records(self, part: float) -> None:
        """Up to somewhere below the last stable offset; retention drops the segments at once, or later."""
        start_offset = self.log.offsets.log_start_offset
        wanted = start_offset + int(part * (self.log.offsets.last_stable_offset - start_offset))
        self.log.increment_log_start_offset(wanted)
        if self.chance.random() < 0.5:
            self.log.retention.delete_old_segments()
        self.first_dirty_offset = max(self.first_dirty_offset, self.log.offsets.log_start_offset)

    def stop_offsets(self) -> list[int]:
        """Where a clean may end: at segments, below what is undecided or written to."""
        log = self.log
        limit = min(log.offsets.last_stable_offset, log.local_log.segments.active.base_offset)
        ends = [segment.end_offset for segment in log.local_log.segments.sealed]
        return [end for end in ends if self.first_dirty_offset < end <= limit]

    def to_clean(self, stop_offset: int) -> LogToClean:
        return LogToClean(
            log=self.log,
            first_dirty_offset=self.first_dirty_offset,
            first_uncleanable_offset=stop_offset,
            clean_bytes=0,
            cleanable_bytes=1,
            compaction_delay_ms=0,
        )

    def clean(self, entry_count: int = 1000, *, break_off_after: int | None = None) -> CleanResult | None:
        """Clean up to where it may end, or before that, and verify; None where there was nothing to do or
        where it was broken off, after so many steps. A reader goes on meanwhile."""
        stops = self.stop_offsets()
        if not stops:
            return None
        stop_offset = self.chance.choice([stops[-1], stops[-1], self.chance.choice(stops)])
        return self._clean(self.to_clean(stop_offset), entry_count, break_off_after)

    def clean_found(self, found: LogToClean) -> CleanResult:
        """Clean what a cleaner's manager has found, and verify."""
        result = self._clean(found, self.chance.choice([2, 1000]), None)
        assert result is not None
        return result

    def clean_if_due(self, *, min_lag_ms: int, max_lag_ms: int, min_ratio: float) -> CleanResult | None:
        """Clean what a worker would under that configuration, and verify; None where the log is not due."""
        config = dataclasses.replace(
            CONFIG,
            cleanup_policy=frozenset({"compact"}),
            min_compaction_lag_ms=min_lag_ms,
            max_compaction_lag_ms=max_lag_ms,
            min_cleanable_dirty_ratio=min_ratio,
        )
        expected = self._expected_stop_offset(config)
        former_base_offset = self.log.local_log.segments.active.base_offset
        active_base_offset = self._expected_active_base_offset(config)
        disk, clock = self.machine.disk, self.machine.clock
        checkpoints = CleanerCheckpoints(disk)
        checkpoints.add_directory(DATA_DIR, NotedHorizons())
        checkpoints.put(self.log.topic_partition, DATA_DIR, self.first_dirty_offset)
        manager = CleanerManager(disk, clock, self.chance, lambda: [self.log])
        manager.add_directory(DATA_DIR, NotedHorizons())
        self.log.reconfigure(config)
        try:
            found = manager.take_filthiest()
            assert (None if found is None else found.first_uncleanable_offset) == expected
            assert self.log.local_log.segments.active.base_offset == active_base_offset
            if active_base_offset != former_base_offset:
                self._idle_roll = (active_base_offset, clock.now_ms())
            if found is None:
                return None
            assert found.first_dirty_offset == self.first_dirty_offset
            result = self.clean_found(found)
            manager.done(found, result.end_offset, result.next_clean_ms)
            manager.check()
            return result
        finally:
            self.log.reconfigure(CONFIG)
            manager.forget(self.log.topic_partition)

    def _expected_stop_offset(self, config: LogConfig) -> int | None:
        """Where a clean ends that begins now; None where none is due. By the batches, without an index."""
        log, now_ms = self.log, self.machine.clock.now_ms()
        clean_bytes = cleanable_bytes = 0
        stop_offset: int | None = None
        is_forced = is_young = False
        active_base_offset = self._expected_active_base_offset(config)
        for segment in log.local_log.segments:
            is_active = segment.base_offset >= active_base_offset
            if is_active or segment.end_offset > log.offsets.last_stable_offset:
                break
            if segment.end_offset <= self.first_dirty_offset:
                clean_bytes += segment.size_bytes
                continue
            times_ms = [located.header.max_timestamp for located in segment.batches()]
            is_young |= (
                config.min_compaction_lag_ms > 0 and now_ms - max(times_ms) < config.min_compaction_lag_ms
            )
            is_forced |= now_ms - times_ms[0] > config.max_compaction_lag_ms
            if not is_young:
                cleanable_bytes += segment.size_bytes
                stop_offset = segment.end_offset
        if stop_offset is None:
            return None
        is_dirty = cleanable_bytes > config.min_cleanable_dirty_ratio * (clean_bytes + cleanable_bytes)
        return stop_offset if is_forced or is_dirty else None

    def _expected_active_base_offset(self, config: LogConfig) -> int:
        """The base offset of the active segment after a long time without an append."""
        active, now_ms = self.log.local_log.segments.active, self.machine.clock.now_ms()
        times_ms = [located.header.max_timestamp for located in active.batches()]
        limit_ms = min(config.segment_ms, config.max_compaction_lag_ms)
        is_too_old = bool(times_ms) and now_ms - times_ms[0] > limit_ms
        if self._idle_roll is not None and self._idle_roll[0] == active.base_offset:
            is_too_old &= not 0 <= now_ms - self._idle_roll[1] <= limit_ms
        is_bounded = config.max_compaction_lag_ms < LONG_MAX
        return active.end_offset if is_too_old and is_bounded else active.base_offset

    def _clean(
        self, to_clean: LogToClean, entry_count: int, break_off_after: int | None
    ) -> CleanResult | None:
        stop_offset = to_clean.first_uncleanable_offset
        before, reader, now_ms = read_local(self.log), Consumer(self.log), self.machine.clock.now_ms()
        step_count = 0

        def on_step() -> None:
            nonlocal step_count
            step_count += 1
            if break_off_after is not None and step_count > break_off_after:
                raise CleaningAbortedError
            if self.chance.random() < 0.3:
                reader.poll()

        made = limits(entry_count, on_step, load_factor=self.chance.choice([0.5, 0.9, 1.0]))
        result: CleanResult | None = None
        try:
            result = self.clean_log.run(to_clean, made)
        except CleaningAbortedError:
            assert break_off_after is not None
        end_offset = None if result is None else result.end_offset
        self.oracle.note_clean(stop_offset, now_ms, end_offset)
        if end_offset is not None:
            is_recopy = to_clean.first_dirty_offset == stop_offset and to_clean.is_next_clean_due
            assert is_recopy or self.first_dirty_offset < end_offset, "no progress"
            assert self.first_dirty_offset <= end_offset <= stop_offset
            self.first_dirty_offset = end_offset
        self.oracle.verify(self.log, before, is_finished=end_offset is not None)
        self._require_reader(reader)
        self._require_look_ups()
        return result

    def _require_look_ups(self) -> None:
        """By time the first record is found that is as new and visible, whatever was cleaned before it."""
        log, now_ms = self.log, self.machine.clock.now_ms()
        visible = [
            one
            for one in read_local(log)
            if log.offsets.log_start_offset <= one.offset < log.offsets.high_watermark
        ]
        wanted_ms = [one.timestamp_ms for one in self.chance.sample(visible, min(3, len(visible)))]
        for timestamp_ms in (
            0,
            now_ms - self.chance.randrange(100_000),
            *wanted_ms,
            *(t + 1 for t in wanted_ms),
        ):
            found = log.reader.offset_for_timestamp(timestamp_ms)
            expected = next((one for one in visible if one.timestamp_ms >= timestamp_ms), None)
            assert found == (None if expected is None else (expected.timestamp_ms, expected.offset))
        newest = log.reader.max_timestamp()
        expected = max(visible, key=lambda one: (one.timestamp_ms, -one.offset), default=None)
        assert newest == (None if expected is None else (expected.timestamp_ms, expected.offset))

    def _require_reader(self, reader: Consumer) -> None:
        """It has seen the last value of every key, whatever was cleaned under its hands."""
        known = table_of(one for one in reader.catch_up() if one.key is not None)
        assert known == self.oracle.final_values(reader.start_offset, self.log.offsets.last_stable_offset)

    def restart(self, *, is_clean: bool, loses_files: bool = False) -> None:
        """End the process, in order or not, and find the same; also where the files are lost that only say
        what follows from the batches, or what was known to be durable."""
        records = read_local(self.log)
        start_offset = self.log.offsets.log_start_offset
        producers = self._producers_since(start_offset)
        stable_offset = self.log.offsets.last_stable_offset
        self.log.flusher.flush()
        if is_clean:
            self.machine.stop()
        else:
            self.machine.kill()
        if loses_files:
            disk = self.machine.disk
            names = disk.list_directory(PARTITION_DIR)
            lost = [f"{PARTITION_DIR}/{name}" for name in names if name.endswith(LOSABLE)]
            for path in (*lost, f"{DATA_DIR}/{RECOVERY_POINT_FILE}"):
                if disk.exists(path):
                    disk.unlink(path)
        self.log = self.machine.start()
        self._idle_roll = None
        self.log.check()
        assert read_local(self.log) == records
        known = {producer_id for producer_id, *_ in producers}
        # Of the others all data lay below the log's start: of them it knows an epoch at most, by a marker.
        assert [entry for entry in self._producers_since(start_offset) if entry[0] in known] == producers
        assert self.log.offsets.last_stable_offset == stable_offset
        for entry in self.log.producers():
            # Its batches lay below the log's start, and only a snapshot knew of them.
            self._sequences[entry.producer_id] = entry.next_sequence
            self._epochs[entry.producer_id] = entry.epoch

    def _producers_since(self, offset: int) -> list[tuple[int, int, int, int | None]]:
        """Facts about producers that a log keeps through a restart, and when their older batches have
        gone."""
        return [
            (entry.producer_id, entry.epoch, entry.last_sequence, entry.current_txn_first_offset)
            for entry in self.log.producers()
            if self._last_offset_of(entry) >= offset
        ]

    def _last_offset_of(self, entry: ProducerStateEntry) -> int:
        """The last offset of the batch that has its epoch."""
        if entry.batches:
            return entry.batches[-1].last_offset
        return self._fences.get((entry.producer_id, entry.epoch), -1)
