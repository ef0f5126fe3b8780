"""Records that were deleted stay deleted, whichever of the two files that say so is damaged, and however."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from stratalog.base.atomic_file import replace_file
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import LOG_START_OFFSET_FILE, OffsetCheckpoint
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.start_checkpoint import (
    LOG_START_COPY_FILE,
    StartCheckpoint,
    parse_start_copy,
)
from stratalog.manager.log_manager import LogManager
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import ALL_SURVIVALS, FaultyFileSystem, SimulatedCrash
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.log_machine import DATA_DIR, PARTITION, TOPIC_ID, LogMachine

UNTIERED = LogConfig(remote_storage_enable=False, retention_ms=-1)
SECOND = TopicPartition("orders", 1)
FILES = (LOG_START_OFFSET_FILE, LOG_START_COPY_FILE)


def without_a_line(data: bytes) -> bytes:
    *kept, _ = data.splitlines(keepends=True)
    return b"".join(kept)


def without_a_line_and_its_count(data: bytes) -> bytes:
    return without_a_line(data).replace(b"\n2\n", b"\n1\n")


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "garbage": lambda data: bytes(byte ^ 0xA5 for byte in data),
    "zeros": lambda data: bytes(len(data)),
    "truncated": lambda data: data[: len(data) // 2],
    "one byte short": lambda data: data[:-1],
    "a digit short": lambda data: data[:-2] + b"\n",
    "one line lost": without_a_line,
    "one line lost, and counted so": without_a_line_and_its_count,
    "another digit": lambda data: data.replace(b"orders 0 4", b"orders 0 1"),
}


def filled(manager: LogManager, partition: TopicPartition, start_offset: int) -> UnifiedLog:
    log = manager.open_log(partition, TOPIC_ID, UNTIERED)
    for _ in range(16):
        log.append_as_leader(encode_batch([Record(0, 1000, b"k", b"v")]), 1)
    log.flush()
    log.increment_log_start_offset(start_offset)
    return log


@pytest.fixture
def machine() -> LogMachine:
    """Where records of two logs were deleted, and which was killed right after."""
    machine = LogMachine(config=UNTIERED)
    manager = machine.open()
    filled(manager, PARTITION, 4)
    filled(manager, SECOND, 12)
    machine.kill()
    return machine


def starts(machine: LogMachine) -> tuple[int, int]:
    manager = machine.open()
    first, second = (manager.open_log(one, TOPIC_ID, UNTIERED) for one in (PARTITION, SECOND))
    assert first.log_end_offset == second.log_end_offset == 16
    return first.log_start_offset, second.log_start_offset


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_of_one_file_shows_no_deleted_record(machine: LogMachine, name: str, damage: str) -> None:
    path = f"{DATA_DIR}/{name}"
    whole = machine.disk.read_file(path)
    damaged = DAMAGES[damage](whole)
    assert damaged != whole
    replace_file(machine.disk, path, damaged)
    assert starts(machine) == (4, 12)
    # Whoever writes next has mended it, and the other one may be damaged.
    machine.stop()
    assert machine.disk.read_file(path) == whole
    for other in set(FILES) - {name}:
        replace_file(machine.disk, f"{DATA_DIR}/{other}", b"")
    assert starts(machine) == (4, 12)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_lost_shows_no_deleted_record(machine: LogMachine, name: str) -> None:
    machine.disk.unlink(f"{DATA_DIR}/{name}")
    assert starts(machine) == (4, 12)


def test_damage_is_told(machine: LogMachine, caplog: pytest.LogCaptureFixture) -> None:
    for name in FILES:
        replace_file(machine.disk, f"{DATA_DIR}/{name}", b"")
        starts(machine)
        assert sum(f"path=`{DATA_DIR}/{name}`" in one.getMessage() for one in caplog.records) == 1
        machine.stop()


def test_a_new_log_of_the_name_starts_at_its_own_start(machine: LogMachine) -> None:
    manager = machine.open()
    manager.delete_log(SECOND)
    machine.kill()
    for name in FILES:
        assert b"orders 1" not in machine.disk.read_file(f"{DATA_DIR}/{name}")
        replace_file(machine.disk, f"{DATA_DIR}/{name}", b"")
        assert machine.open().open_log(SECOND, TOPIC_ID, UNTIERED).log_start_offset == 0
        machine.stop()


def test_every_single_flip_of_a_bit_leaves_the_other_file() -> None:
    disk = MemoryFileSystem()
    disk.make_directories("/d")
    checkpoint = StartCheckpoint(disk, "/d")
    offsets = {PARTITION: 4, SECOND: 12}
    checkpoint.write(offsets)
    for name in FILES:
        whole = disk.read_file(f"/d/{name}")
        for bit in range(len(whole) * 8):
            flipped = bytearray(whole)
            flipped[bit // 8] ^= 1 << bit % 8
            replace_file(disk, f"/d/{name}", bytes(flipped))
            assert checkpoint.read() == offsets, (name, bit)
        replace_file(disk, f"/d/{name}", whole)


def test_the_copy_is_the_text_below_its_checksum() -> None:
    disk = MemoryFileSystem()
    disk.make_directories("/d")
    StartCheckpoint(disk, "/d").write({PARTITION: 4})
    assert disk.read_file(f"/d/{LOG_START_OFFSET_FILE}") == b"0\n1\norders 0 4\n"
    assert disk.read_file(f"/d/{LOG_START_COPY_FILE}").partition(b"\n")[2] == b"0\n1\norders 0 4\n"
    assert parse_start_copy(disk.read_file(f"/d/{LOG_START_COPY_FILE}")) == {PARTITION: 4}


def test_a_crash_within_a_write_leaves_what_was_or_what_is_to_be() -> None:
    old, new = {PARTITION: 4}, {PARTITION: 9, SECOND: 2}
    rehearsal = FaultyFileSystem()
    prepare(rehearsal).write(old)
    checkpoint = StartCheckpoint(rehearsal, "/d")
    checkpoint.read()
    first = rehearsal.operation_count + 1
    checkpoint.write(new)
    for operation in range(first, rehearsal.operation_count + 1):
        disk = FaultyFileSystem()
        prepare(disk).write(old)
        checkpoint = StartCheckpoint(disk, "/d")
        checkpoint.read()
        disk.crash_at(operation, part=0.5)
        with pytest.raises(SimulatedCrash):
            checkpoint.write(new)
        for survival in ALL_SURVIVALS:
            assert StartCheckpoint(disk.reopened(survival), "/d").read() in (old, new)
    for survival in ALL_SURVIVALS:
        assert StartCheckpoint(rehearsal.reopened(survival), "/d").read() == new


@pytest.mark.parametrize("left", [None, b"", b"damaged"], ids=["no copy", "empty", "damaged"])
@pytest.mark.parametrize("old", [{}, {PARTITION: 4}], ids=["new", "not new"])
def test_what_is_refused_where_there_is_no_copy_does_not_come_back(
    left: bytes | None, old: dict[TopicPartition, int]
) -> None:
    """A directory whose first checkpoint it is, one of a broker, and one whose copy was damaged."""
    new = {PARTITION: 9, SECOND: 2}

    def found(disk: FaultyFileSystem) -> StartCheckpoint:
        prepare(disk)
        if old:
            OffsetCheckpoint(disk, f"/d/{LOG_START_OFFSET_FILE}").write(old)
        if left is not None:
            replace_file(disk, f"/d/{LOG_START_COPY_FILE}", left)
        checkpoint = StartCheckpoint(disk, "/d")
        assert checkpoint.read() == old
        return checkpoint

    rehearsal = FaultyFileSystem()
    checkpoint = found(rehearsal)
    first = rehearsal.operation_count + 1
    checkpoint.write(new)
    names = [one.split(" ")[0] for one in rehearsal.trace[first - 1 :]]
    assert names.count("rename") == 3, "the old one is copied, and then both are written"
    *_, last = [at for at, name in enumerate(names, first) if name == "rename"]
    for operation in range(first, rehearsal.operation_count + 1):
        for does_crash in (False, True):
            disk = FaultyFileSystem()
            checkpoint = found(disk)
            if does_crash:
                disk.crash_at(operation, part=0.5)
            else:
                disk.fail_at(operation, number=errno.ENOSPC, part=0.5)
            with pytest.raises(SimulatedCrash if does_crash else OSError):
                checkpoint.write(new)
            for survival in ALL_SURVIVALS:
                counts = StartCheckpoint(disk.reopened(survival), "/d").read()
                assert counts == old or (operation > last and counts == new), (operation, survival)
            if not does_crash:
                # Whoever takes it back, and writes something else, is believed.
                checkpoint.write({SECOND: 3})
                assert StartCheckpoint(disk.killed(), "/d").read() == {SECOND: 3}


def prepare(disk: FaultyFileSystem) -> StartCheckpoint:
    disk.make_directories("/d")
    disk.sync_directory("/")
    return StartCheckpoint(disk, "/d")
