"""The data directory: who has it, whose it is, and which logs are in it."""

from __future__ import annotations

import errno
from uuid import UUID

import pytest

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import (
    DataDirectoryError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import parse_checkpoint
from stratalog.log.log_config import LogConfig
from stratalog.manager.directories.manifest import parse_partition_name
from stratalog.manager.directories.partition_metadata import format_topic_id, write_partition_metadata
from stratalog.manager.log_manager import LogManager
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from tests.support.logs.log_machine import (
    DATA_DIR,
    PARTITION,
    PARTITION_DIR,
    TOPIC_ID,
    LogMachine,
    checkpoint,
)

BATCH = encode_batch([Record(0, 1000, b"k", b"v")])
CONFIG = LogConfig()
UNTIERED = LogConfig(remote_storage_enable=False, retention_ms=-1)
SECOND = TopicPartition("orders", 1)
METADATA = f"{PARTITION_DIR}/partition.metadata"


def append(manager: LogManager, partition: TopicPartition, count: int = 1, topic_id: UUID = TOPIC_ID) -> None:
    log = manager.open_log(partition, topic_id, CONFIG)
    for _ in range(count):
        log.appender.append_as_leader(BATCH, 1)


def test_checkpoints_are_kafkas_and_carry_over_what_was_not_opened() -> None:
    machine = LogMachine()
    manager = machine.open()
    append(manager, PARTITION, 2)
    append(manager, SECOND, 3)
    machine.stop()
    manager = machine.open()
    append(manager, SECOND, 1)
    manager.log(SECOND).flusher.flush()
    checkpoint(manager)
    text = machine.disk.read_file(f"{DATA_DIR}/recovery-point-offset-checkpoint").decode()
    assert text == "0\n2\norders 0 2\norders 1 4\n"
    assert machine.disk.read_file(f"{DATA_DIR}/log-start-offset-checkpoint") == b"0\n0\n"
    assert parse_checkpoint(text) == {PARTITION: 2, SECOND: 4}


@pytest.mark.parametrize("contents", [b"", b"0\n9\norders 0 2\n", b"\xff", b"0\n1\norders 0 two\n"])
def test_a_damaged_checkpoint_counts_as_empty_and_is_logged(
    contents: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    machine = LogMachine()
    append(machine.open(), PARTITION, 2)
    machine.stop()
    path = f"{DATA_DIR}/recovery-point-offset-checkpoint"
    replace_file(machine.disk, path, contents)
    manager = machine.open()
    assert [path in record.getMessage() for record in caplog.records] == [True]
    assert manager.open_log(PARTITION, TOPIC_ID, CONFIG).offsets.log_end_offset == 2
    machine.stop()
    assert parse_checkpoint(machine.disk.read_file(path).decode()) == {PARTITION: 2}


@pytest.mark.parametrize("changes", ["append", "truncate", "roll", "drop"])
def test_a_log_that_was_changed_before_it_was_let_go_is_not_clean(changes: str) -> None:
    machine = LogMachine(config=UNTIERED)
    manager = machine.open()
    for _ in range(3):
        append(manager, PARTITION, 3)
        manager.log(PARTITION).roll()
        manager.let_go(PARTITION)
    manager.open_log(PARTITION, TOPIC_ID, UNTIERED)
    append(manager, SECOND, 3)
    machine.stop()
    manager = machine.open()
    log = manager.open_log(PARTITION, TOPIC_ID, UNTIERED)
    if changes == "append":
        log.appender.append_as_leader(BATCH, 1)
    elif changes == "truncate":
        log.truncation.truncate_to(7)
    elif changes == "roll":
        log.appender.append_as_leader(BATCH, 1)
        log.roll()
    else:
        log.increment_log_start_offset(5)
        assert log.retention.delete_old_segments() == 1
    end_offset = log.offsets.log_end_offset
    manager.let_go(PARTITION)
    # Neither for this process, nor for the next.
    log = manager.open_log(PARTITION, TOPIC_ID, UNTIERED)
    assert not log.recovery_report.was_clean
    assert log.offsets.log_end_offset == end_offset
    log.appender.append_as_leader(BATCH, 1)
    manager.let_go(PARTITION)
    machine.stop()
    manager = machine.open()
    assert not manager.was_clean
    assert manager.open_log(PARTITION, TOPIC_ID, UNTIERED).offsets.log_end_offset == end_offset + 1


def test_the_marker_is_there_only_if_every_log_is_clean() -> None:
    machine = LogMachine()
    manager = machine.open()
    append(manager, PARTITION)
    append(manager, SECOND)
    machine.kill()
    # Unclean, and only one of the two is recovered.
    machine.start()
    machine.stop()
    assert not machine.open().was_clean
    machine.stop()
    manager = machine.open()
    append(manager, PARTITION)
    append(manager, SECOND)
    machine.stop()
    assert machine.open().was_clean
    machine.kill()
    assert not machine.open().was_clean


@pytest.mark.parametrize("contents", [None, b"", b"\xff", b"version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAA!w"])
def test_metadata_that_are_lost_or_damaged_are_written_again(contents: bytes | None) -> None:
    """The manifest says which topic's the directory is."""
    disk = MemoryFileSystem()
    machine = LogMachine(disk)
    append(machine.open(), PARTITION, 5)
    machine.stop()
    whole = disk.read_file(METADATA)
    assert whole == f"version: 0\ntopic_id: {format_topic_id(TOPIC_ID)}".encode()
    if contents is None:
        disk.unlink(METADATA)
    else:
        replace_file(disk, METADATA, contents)
    manager = machine.open()
    assert manager.found.with_topics() == ((PARTITION, TOPIC_ID),)
    assert manager.open_log(PARTITION, TOPIC_ID, CONFIG).offsets.log_end_offset == 5
    assert disk.read_file(METADATA) == whole


def test_metadata_of_another_topic_than_the_manifest_says_are_a_matter_for_an_operator() -> None:
    disk = MemoryFileSystem()
    machine = LogMachine(disk)
    append(machine.open(), PARTITION, 5)
    machine.stop()
    write_partition_metadata(disk, PARTITION_DIR, UUID(int=8))
    with pytest.raises(DataDirectoryError) as failure:
        machine.start()
    assert failure.value.fields == {
        "path": METADATA,
        "topic_id": format_topic_id(UUID(int=8)),
        "expected_topic_id": format_topic_id(TOPIC_ID),
    }
    machine.stop()
    assert disk.exists(PARTITION_DIR)
    disk.unlink(METADATA)
    assert machine.start().offsets.log_end_offset == 5


def test_a_deleted_log_is_gone_at_once_and_its_bytes_later() -> None:
    machine = LogMachine()
    manager = machine.open()
    append(manager, PARTITION, 5)
    old = manager.log(PARTITION)
    manager.delete_log(PARTITION)
    with pytest.raises(UnknownTopicOrPartitionError):
        manager.log(PARTITION)
    with pytest.raises(UnknownTopicOrPartitionError):
        old.reader.read(0, 100)
    append(manager, PARTITION, 1, UUID(int=9))
    assert manager.log(PARTITION).offsets.log_end_offset == 1
    assert any(name.endswith("-delete") for name in machine.disk.list_directory(DATA_DIR))
    machine.clock.advance(1000)
    assert not any(name.endswith("-delete") for name in machine.disk.list_directory(DATA_DIR))
    assert manager.log(PARTITION).offsets.log_end_offset == 1
    manager.delete_log(TopicPartition("nothing", 0))


def test_setting_aside_keeps_everything() -> None:
    machine = LogMachine()
    manager = machine.open()
    append(manager, PARTITION, 5)
    path = manager.set_aside(PARTITION, "fenced")
    assert path is not None
    assert path.startswith(f"{PARTITION_DIR}.")
    assert path.endswith("-fenced")
    assert machine.disk.file_size(f"{path}/{0:020d}.log") == 5 * len(BATCH)
    assert manager.set_aside(PARTITION, "fenced") is None
    assert manager.open_log(PARTITION, TOPIC_ID, CONFIG, start_offset=40).offsets.log_end_offset == 40
    machine.stop()
    machine.clock.advance(10**9)
    assert machine.disk.exists(path)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-0", PARTITION),
        ("a-b.c_d-12", TopicPartition("a-b.c_d", 12)),
        ("orders", None),
        ("-1", None),
        ("orders-01", None),
        ("orders--1", TopicPartition("orders-", 1)),
        ("orders-٣", None),
        ("orders-0.00000000000000000000000000000000-delete", None),
    ],
)
def test_partitions_are_known_by_the_names_of_their_directories(
    name: str, expected: TopicPartition | None
) -> None:
    assert parse_partition_name(name) == expected


def test_a_checkpoint_that_overtakes_a_deletion_says_nothing_about_the_next_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = LogMachine()
    manager = machine.open()
    append(manager, PARTITION, 9)
    manager.log(PARTITION).flusher.flush()
    seen = manager.logs()
    manager.delete_log(PARTITION)
    append(manager, PARTITION, 1, UUID(int=9))
    # As if the deletion came between the checkpoint's look at the logs and its writing.
    monkeypatch.setattr(manager, "logs", lambda: seen)
    checkpoint(manager)
    text = machine.disk.read_file(f"{DATA_DIR}/recovery-point-offset-checkpoint").decode()
    assert parse_checkpoint(text).get(PARTITION, 0) == 0


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOSPC])
def test_a_log_that_cannot_be_closed_leaves_no_marker(number: int) -> None:
    """The disk has not failed, so the directory stays in use, and the other log is closed."""

    def with_two_logs() -> tuple[FaultyFileSystem, LogMachine]:
        disk = FaultyFileSystem()
        machine = LogMachine(disk)
        manager = machine.open()
        for partition in (PARTITION, SECOND):
            append(manager, partition)
        return disk, machine

    disk, machine = with_two_logs()
    first = disk.operation_count + 1
    machine.stop()
    at = disk.trace.index(f"sync {PARTITION_DIR}/{0:020d}.log", first - 1) + 1
    disk, machine = with_two_logs()
    disk.fail_at(at, number=number)
    with pytest.raises(DataDirectoryError):
        machine.stop()
    manager = LogMachine(disk.killed()).open()
    assert not manager.was_clean
    assert not manager.open_log(PARTITION, TOPIC_ID, CONFIG).recovery_report.was_clean


@pytest.mark.parametrize("contents", [b"", b"version=9\ndirectory.id=x\n", b"version=1\n", b"\xff\xff"])
def test_damaged_properties_are_a_matter_for_a_human(contents: bytes) -> None:
    disk = MemoryFileSystem()
    machine = LogMachine(disk)
    machine.open()
    machine.stop()
    file = disk.open_append(f"{DATA_DIR}/meta.properties")
    file.truncate(0)
    file.append([contents])
    file.close()
    for _ in range(2):
        with pytest.raises(DataDirectoryError) as failure:
            machine.open()
        # The lock is given back: the same error again, not "in use".
        assert (type(failure.value), failure.value.fields) == (DataDirectoryError, {"path": DATA_DIR})


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_that_is_let_go_is_left_to_the_next_process(is_clean: bool) -> None:
    machine = LogMachine()
    manager = machine.open()
    for partition in (PARTITION, SECOND):
        append(manager, partition, 3)
    if is_clean:
        machine.stop()
    else:
        machine.kill()
    manager = machine.open()
    for partition in (PARTITION, SECOND):
        manager.open_log(partition, TOPIC_ID, CONFIG)
    log = manager.log(PARTITION)
    manager.let_go(PARTITION)
    manager.let_go(PARTITION)
    assert log.availability.is_closed
    assert [str(one.topic_partition) for one in manager.logs()] == ["orders-1"]
    machine.stop()
    manager = machine.open()
    assert manager.was_clean == is_clean
    assert manager.open_log(PARTITION, TOPIC_ID, CONFIG).offsets.log_end_offset == 3


def test_the_marker_does_not_come_back() -> None:
    """A crash right after a start is a crash, whatever the disk remembers of the stop before it."""
    disk = MemoryFileSystem()
    machine = LogMachine(disk)
    machine.start()
    machine.stop()
    assert LogMachine(disk.after_crash(Survival(Kept.NONE, Kept.NONE))).open().was_clean
    machine.open()
    assert not LogMachine(disk.after_crash(Survival(Kept.NONE, Kept.NONE))).open().was_clean
