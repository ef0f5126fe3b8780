"""A copy of a log, step by step, and the exchange of the two. Moves between log directories are tested with
the log manager."""

from __future__ import annotations

import pytest

from stratalog.base.errors import (
    CorruptRecordError,
    UnsupportedOperationError,
)
from stratalog.log.directory_health import DirectoryHealth
from stratalog.log.exchange.log_copy import LogCopy, LogPlace
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.filled_log import CONFIG
from tests.support.logs.log_ledger import LogLedger
from tests.support.logs.log_machine import PARTITION_DIR, LogMachine
from tests.support.logs.overwriting import flip

FUTURE_DIR, NEW_DIR = "/other/future", "/other/orders-0"


class Copying:
    """A log with some records, and a copy that has nothing yet. Used by one thread."""

    def __init__(self, config: LogConfig = CONFIG, batch_count: int = 12) -> None:
        self.disk = MemoryFileSystem()
        self.machine = LogMachine(self.disk, config)
        self.log = self.machine.start()
        self.ledger = LogLedger()
        for _ in range(batch_count):
            self.append()
        self.disk.make_directories(FUTURE_DIR)
        self.copy = self.log.copy_to(FUTURE_DIR)

    def append(self, count: int = 5) -> None:
        self.ledger.append(self.log, [self.ledger.batch(count)])

    def commit(self) -> LogPlace:
        self.disk.rename(FUTURE_DIR, NEW_DIR)
        self.disk.rename(PARTITION_DIR, "/data/left")
        return LogPlace(NEW_DIR, DirectoryHealth("/other"))

    def catch_up(self, max_bytes: int = 1 << 20) -> int:
        """The number of steps."""
        count = 0
        while self.copy.advance(max_bytes):
            count += 1
        return count

    def relocate(self) -> bool:
        return self.copy.relocate(self.commit)

    def verify(self) -> None:
        assert self.log.local_log.directory == NEW_DIR
        self.ledger.verify(self.log, after_crash=False)
        self.append()
        self.ledger.verify(self.log, after_crash=False)


@pytest.mark.parametrize("max_bytes", [1, 100, 700, 1 << 20])
def test_steps_are_bounded_and_add_up(max_bytes: int) -> None:
    copying = Copying()
    size_bytes, largest_bytes = copying.log.local_log.segments.size_bytes, 0
    copied_bytes = 0
    batch_bytes = len(copying.ledger.batch(5))
    while step_bytes := copying.copy.advance(max_bytes):
        largest_bytes = max(largest_bytes, step_bytes)
        copied_bytes += step_bytes
        assert copying.copy.copied_bytes == copied_bytes
        assert copying.copy.remaining_bytes == size_bytes - copied_bytes
    assert copied_bytes == size_bytes
    # A batch goes as a whole, and a step ends where a segment does.
    assert batch_bytes <= largest_bytes <= max(max_bytes, batch_bytes + 3)
    assert copying.relocate()
    copying.verify()


def test_a_log_that_has_grown_too_much_stays_for_now() -> None:
    copying = Copying()
    copying.catch_up()
    copying.log.roll()
    copying.log.roll()
    for _ in range(20):
        copying.append(18)
    assert not copying.copy.is_close
    assert not copying.relocate()
    assert copying.log.local_log.directory == PARTITION_DIR
    copying.append()
    copying.catch_up()
    assert copying.relocate()
    copying.verify()


@pytest.mark.parametrize("offset", [3, 20, 55, 500])
def test_a_log_that_was_cut_cannot_be_followed(offset: int) -> None:
    copying = Copying()
    copying.catch_up()
    if offset == 500:
        copying.ledger.restart_at(copying.log, offset)
    else:
        copying.ledger.truncate_to(copying.log, offset)
    for follow in (lambda: copying.copy.advance(1000), copying.copy.prepare, copying.relocate):
        with pytest.raises(UnsupportedOperationError) as failure:
            follow()
        assert failure.value.fields == {"path": PARTITION_DIR}
    copying.append()
    copying.ledger.verify(copying.log, after_crash=False)


def test_the_checksum_of_every_batch_is_proved() -> None:
    copying = Copying()
    path = copying.log.local_log.segments[1].path
    for position in range(0, copying.disk.file_size(path), 97):
        flip(copying.disk, path, position)
        copying.copy = fresh_copy(copying)
        with pytest.raises(CorruptRecordError) as failure:
            copying.catch_up()
        assert failure.value.fields["path"] == path
        flip(copying.disk, path, position)


def fresh_copy(copying: Copying) -> LogCopy:
    copying.disk.remove_tree(FUTURE_DIR)
    copying.disk.make_directories(FUTURE_DIR)
    return copying.log.copy_to(FUTURE_DIR)


def test_all_that_was_copied_may_go() -> None:
    copying = Copying()
    copying.catch_up()
    copying.log.increment_log_start_offset(copying.log.offsets.log_end_offset)
    copying.log.retention.delete_old_segments()
    copying.ledger.note_starts(copying.log)
    copying.append()
    assert copying.relocate()
    copying.verify()


def test_who_reads_old_segments_finds_no_files_of_a_later_log() -> None:
    """A reader may still have the segments of before when the log is back where it was."""
    copying = Copying()
    old: UnifiedLog = copying.log
    segments = old.local_log.segments
    copying.catch_up()
    assert copying.relocate()
    copying.disk.make_directories(PARTITION_DIR)
    for segment in segments:
        copying.disk.open_append(segment.path).append([b"another log's"])
        with pytest.raises(FileNotFoundError):
            segment.read_bytes(0, 10)
