"""Holes that a compaction left, and a log whose recovery point is lost."""

from __future__ import annotations

import pytest

from stratalog.cleaner.cleaner_checkpoints import CLEANER_OFFSET_FILE
from stratalog.log.checkpoint import OffsetCheckpoint
from stratalog.log.log_config import UNLIMITED, LogConfig
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.segment.file_names import LOG_SUFFIX, segment_path
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import DATA_DIR, PARTITION, PARTITION_DIR, LogMachine

CONFIG = LogConfig(remote_storage_enable=False, retention_ms=UNLIMITED)
BASES = (0, 100, 200)


def with_holes() -> LogMachine:
    """Three segments of one record each, as a broker's cleaner leaves them, and no recovery point."""
    machine = LogMachine(MemoryFileSystem(), CONFIG)
    machine.start()
    machine.kill()
    for base_offset in BASES:
        file = machine.disk.open_append(segment_path(PARTITION_DIR, base_offset, LOG_SUFFIX))
        file.append([encode_batch([Record(0, 1, b"k%d" % base_offset, b"v")], base_offset=base_offset)])
        file.close()
    return machine


def cleaned_up_to(machine: LogMachine, offset: int) -> None:
    OffsetCheckpoint(machine.disk, f"{DATA_DIR}/{CLEANER_OFFSET_FILE}").write({PARTITION: offset})


@pytest.mark.parametrize(("cleaned_offset", "expected"), [(200, BASES), (199, (0, 100)), (99, (0,))])
def test_below_the_end_of_a_clean_a_hole_is_no_loss(cleaned_offset: int, expected: tuple[int, ...]) -> None:
    machine = with_holes()
    cleaned_up_to(machine, cleaned_offset)
    log = machine.start()
    assert tuple(record.offset for record in read_local(log)) == expected
    assert len(log.recovery_report.remains) == len(BASES) - len(expected), "what is cut is kept aside"


def test_holes_stay_known_where_the_end_of_the_clean_says_nothing_of_this_log() -> None:
    machine = with_holes()
    cleaned_up_to(machine, 1000)
    for _ in range(2):
        log = machine.start()
        assert tuple(record.offset for record in read_local(log)) == BASES
        assert OffsetCheckpoint(machine.disk, f"{DATA_DIR}/{CLEANER_OFFSET_FILE}").read() == {}
        machine.kill()


def test_what_is_damaged_below_it_is_cut_as_ever() -> None:
    machine = with_holes()
    cleaned_up_to(machine, 200)
    path = segment_path(PARTITION_DIR, 100, LOG_SUFFIX)
    data = bytearray(machine.disk.read_file(path))
    data[-1] ^= 1
    file = machine.disk.open_append(path)
    file.truncate(0)
    file.append([bytes(data)])
    file.close()
    log = machine.start()
    assert [record.offset for record in read_local(log)] == [0]
    assert len(log.recovery_report.remains) == 2
