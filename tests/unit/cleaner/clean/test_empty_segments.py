"""Sealed segments without a byte, as a broker's cleaner leaves them: no reader stumbles over one, they go."""

from __future__ import annotations

import dataclasses

import pytest

from stratalog.base.file_contents import write_file
from stratalog.cleaner.clean.log_clean import LogClean
from stratalog.cleaner.log_to_clean import LogToClean, first_ms_on, log_to_clean
from stratalog.log.directory_health import DirectoryHealth
from stratalog.log.exchange.log_copy import LogPlace
from stratalog.log.isolation import Isolation
from stratalog.log.log_config import UNLIMITED, LogConfig
from stratalog.log.retention.retention import newest_ms_on
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.segment.file_names import (
    LOG_SUFFIX,
    OFFSET_INDEX_SUFFIX,
    SEAL_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_path,
)
from stratalog.segment.indexes.index_file import IndexSeal
from stratalog.segment.segment_seal import SegmentSeal
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaning_history import limits
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import PARTITION_DIR, LogMachine

CONFIG = LogConfig(
    retention_ms=UNLIMITED,
    segment_bytes=4096,
    index_interval_bytes=100,
    remote_storage_enable=False,
    cleanup_policy=frozenset({"compact", "delete"}),
)
PER_SEGMENT = 3
DAY_MS = 24 * 60 * 60 * 1000


class Emptied:
    """A log of which some sealed segments have lost every byte. Used by one thread."""

    def __init__(
        self,
        empty: tuple[int, ...],
        count: int = 6,
        config: LogConfig = CONFIG,
        disk: MemoryFileSystem | FaultyFileSystem | None = None,
    ) -> None:
        """Empty those of `count` segments. Each had three records, of keys that the next one has, too; behind
        them is one that is active."""
        self.disk = MemoryFileSystem() if disk is None else disk
        self.machine = LogMachine(self.disk, config)
        self.log: UnifiedLog = self.machine.start()
        for number in range(count * PER_SEGMENT):
            record = Record(0, self.machine.clock.now_ms() + number, b"k%d" % (number % 4), b"%d" % number)
            # Epochs ascend with the segments.
            self.log.appender.append_as_leader(encode_batch([record]), number // PER_SEGMENT)
            if number % PER_SEGMENT == PER_SEGMENT - 1:
                self.log.roll()
        self.log.appender.append_as_leader(
            encode_batch([Record(0, self.machine.clock.now_ms(), b"z", b"end")]), count
        )
        self.machine.stop()
        for ordinal in empty:
            base_offset = ordinal * PER_SEGMENT
            seal = SegmentSeal.of(0, base_offset, bytes(4), IndexSeal(), IndexSeal(), IndexSeal()).to_bytes()
            for suffix in (LOG_SUFFIX, OFFSET_INDEX_SUFFIX, TIME_INDEX_SUFFIX, SEAL_SUFFIX):
                path = segment_path(PARTITION_DIR, base_offset, suffix)
                write_file(self.disk, path, [seal] if suffix == SEAL_SUFFIX else [])
        self.log = self.machine.start()
        assert [
            s.base_offset // PER_SEGMENT for s in self.log.local_log.segments if s.size_bytes == 0
        ] == list(empty)

    def clean(self, stop_offset: int | None = None) -> None:
        log = self.log
        stop_offset = log.local_log.segments.active.base_offset if stop_offset is None else stop_offset
        log_clean = LogClean(self.machine.clock, SequentialIds())
        assert (
            log_clean.run(
                LogToClean(
                    log=log,
                    first_dirty_offset=0,
                    first_uncleanable_offset=stop_offset,
                    clean_bytes=0,
                    cleanable_bytes=1,
                    compaction_delay_ms=0,
                ),
                limits(),
            ).end_offset
            == stop_offset
        )
        log.check()

    def offsets(self) -> list[int]:
        return [one.offset for one in read_local(self.log)]

    def bases(self) -> list[int]:
        return [segment.base_offset for segment in self.log.local_log.segments]


PLACES = [(0,), (1,), (5,), (1, 2), (0, 1, 2, 3, 4), (4, 5), (0, 2, 4), (0, 1, 2, 3, 4, 5)]


@pytest.mark.parametrize("empty", PLACES)
def test_such_a_log_is_opened_read_and_checked(empty: tuple[int, ...]) -> None:
    emptied = Emptied(empty)
    expected = [offset for offset in range(19) if offset // PER_SEGMENT not in empty]
    assert emptied.offsets() == expected
    emptied.log.check()
    emptied.machine.kill()
    emptied.log = emptied.machine.start()
    emptied.log.check()
    assert emptied.offsets() == expected
    assert [emptied.log.reader.read(offset, 1, Isolation.LOG_END).next_offset for offset in range(18)] == [
        next(found for found in expected if found >= offset) + 1 for offset in range(18)
    ]
    start_ms = emptied.machine.clock.now_ms()
    for offset in range(18):
        found = emptied.log.reader.offset_for_timestamp(start_ms + offset)
        # The last record is as old as the first.
        new_enough = [one for one in expected if offset <= one < 18 or offset == 0]
        assert (None if found is None else found.offset) == next(iter(new_enough), None)
    sealed = [offset for offset in expected if offset < 18]
    newest = emptied.log.reader.max_timestamp()
    assert newest is not None
    assert newest.offset == (sealed[-1] if sealed else 18)
    assert [info.max_timestamp_ms < 0 for info in emptied.log.reader.segments()] == [
        n in empty for n in range(7)
    ]


@pytest.mark.parametrize("empty", PLACES)
@pytest.mark.parametrize("segment_bytes", [1, 500, 4096])
def test_a_clean_takes_them_with_the_next_segment(empty: tuple[int, ...], segment_bytes: int) -> None:
    emptied = Emptied(empty)
    emptied.log.reconfigure(dataclasses.replace(CONFIG, segment_bytes=segment_bytes))
    kept = {number % 4: number for number in range(18) if number // PER_SEGMENT not in empty}
    emptied.clean()
    assert emptied.offsets() == sorted((*kept.values(), 18))
    # What is left of them is at the end: there is no next one yet.
    left = [
        segment.base_offset // PER_SEGMENT
        for segment in emptied.log.local_log.segments
        if not segment.size_bytes
    ]
    full = [number for number in range(6) if number not in empty]
    assert left == [number for number in range(6) if number > (full[-1] if full else -1)]
    emptied.log.flusher.flush()
    emptied.machine.kill()
    emptied.log = emptied.machine.start()
    emptied.log.check()
    assert emptied.offsets() == sorted((*kept.values(), 18))


@pytest.mark.parametrize("empty", PLACES)
def test_deleted_records_go_with_them(empty: tuple[int, ...]) -> None:
    emptied = Emptied(empty)
    emptied.log.increment_log_start_offset(10)
    assert emptied.log.retention.delete_old_segments() == 3
    assert emptied.bases()[0] == 9
    emptied.log.increment_log_start_offset(19)
    assert emptied.log.retention.delete_old_segments() == 4
    emptied.log.check()
    assert emptied.log.retention.delete_old_segments() == 0, "an empty active one stays"
    assert emptied.bases() == [19]


@pytest.mark.parametrize("empty", PLACES)
def test_size_and_age_count_them(empty: tuple[int, ...]) -> None:
    emptied = Emptied(empty)
    active_bytes = emptied.log.local_log.segments.active.size_bytes
    emptied.log.reconfigure(dataclasses.replace(CONFIG, retention_bytes=active_bytes))
    assert emptied.log.retention.delete_old_segments() == 6
    emptied = Emptied(empty)
    now_ms = emptied.machine.clock.now_ms()
    for ordinal, segment in enumerate(emptied.log.local_log.segments):
        # An empty one is as old as its file.
        emptied.disk.set_modified_ms(segment.path, now_ms if ordinal == 5 else now_ms - DAY_MS)
    emptied.machine.clock.advance(DAY_MS // 2)
    emptied.log.reconfigure(dataclasses.replace(CONFIG, retention_ms=DAY_MS))
    leading = next((number for number in range(6) if number not in empty), 5)
    assert emptied.log.retention.delete_old_segments() == leading
    emptied.machine.clock.advance(DAY_MS)
    assert emptied.log.retention.delete_old_segments() == 7 - leading


@pytest.mark.parametrize("empty", PLACES)
def test_epochs_are_learned_from_the_others(empty: tuple[int, ...]) -> None:
    emptied = Emptied(empty)
    emptied.machine.kill()
    emptied.disk.unlink(f"{PARTITION_DIR}/leader-epoch-checkpoint")
    emptied.log = emptied.machine.start()
    emptied.log.check()
    full = [number for number in range(7) if number not in empty]
    ends = [number * PER_SEGMENT for number in full[1:]] + [19]
    assert [emptied.log.end_offset_for(number) for number in full] == list(zip(full, ends, strict=True))


def test_a_truncation_may_end_with_one() -> None:
    emptied = Emptied((2, 3))
    for offset, expected in ((17, 17), (11, 11), (9, 9), (7, 7), (6, 6), (5, 5)):
        assert emptied.log.truncation.truncate_to(offset) == expected
        emptied.log.check()


class DyingClean:
    """A clean of such a log on a disk that can die. Used by one thread."""

    config = dataclasses.replace(CONFIG, segment_bytes=500)

    def __init__(self, empty: tuple[int, ...]) -> None:
        self.disk = FaultyFileSystem()
        self.emptied = Emptied(empty, config=self.config, disk=self.disk)
        self.emptied.log.flusher.flush()
        self.emptied.machine.checkpoint()

    def run(self) -> None:
        self.emptied.clean()


@pytest.mark.parametrize("empty", [(1, 2), (0, 2, 4), (4, 5)])
def test_a_power_loss_in_a_clean_leaves_old_segments_or_new_ones(empty: tuple[int, ...]) -> None:
    before = set(DyingClean(empty).emptied.offsets())
    sweep = CrashSweep(lambda: DyingClean(empty), DyingClean.run, count=6)
    least = set(sweep.whole.emptied.offsets())

    def verify(death: Death[DyingClean]) -> None:
        for disk in death.disks():
            log = LogMachine(disk, DyingClean.config).start()
            log.check()
            assert least <= {one.offset for one in read_local(log)} <= before

    sweep.at_deaths(verify, always=lambda name: name.startswith("rename "))


def test_they_wait_for_no_clean() -> None:
    emptied = Emptied((0, 1, 2))
    now_ms = emptied.machine.clock.now_ms()
    emptied.log.reconfigure(dataclasses.replace(CONFIG, max_compaction_lag_ms=1000, min_compaction_lag_ms=10))
    newest_ms, first_ms = newest_ms_on(emptied.disk), first_ms_on(emptied.disk)
    found = log_to_clean(emptied.log, 0, newest_ms, first_ms, now_ms + DAY_MS)
    assert found.compaction_delay_ms == DAY_MS - 1000 - 9, "since the first batch there is"
    assert found.first_uncleanable_offset == 18
    found = log_to_clean(Emptied((0, 1, 2, 3, 4, 5)).log, 0, newest_ms, first_ms, now_ms + DAY_MS)
    assert not found.is_due


def test_what_is_in_the_object_store_goes_with_them() -> None:
    emptied = Emptied((0, 2, 3), config=LogConfig(retention_ms=UNLIMITED, segment_bytes=4096))
    emptied.log.flusher.flush()
    sources = emptied.log.reader.upload_candidates(0)
    assert [(source.base_offset, source.end_offset) for source in sources] == [(3, 6), (12, 15), (15, 18)]
    emptied.log.update_tiered_end_offset(15)
    assert emptied.log.retention.delete_local_segments(ignore_retention=True) == 5
    assert emptied.bases() == [15, 18]


@pytest.mark.parametrize("empty", PLACES)
def test_a_move_takes_them_along(empty: tuple[int, ...]) -> None:
    emptied = Emptied(empty)
    before = emptied.offsets(), emptied.bases()
    emptied.disk.make_directories("/other/future")
    copy = emptied.log.copy_to("/other/future")
    while copy.advance(100):
        pass

    def commit() -> LogPlace:
        emptied.disk.rename("/other/future", "/other/orders-0")
        return LogPlace("/other/orders-0", DirectoryHealth("/other"))

    assert copy.relocate(commit)
    emptied.log.check()
    assert (emptied.offsets(), emptied.bases()) == before
