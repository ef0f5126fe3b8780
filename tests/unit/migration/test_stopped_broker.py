"""Statements of a broker's log directories about partitions, and when they cannot be believed."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from stratalog.base.atomic_file import replace_file
from stratalog.base.errors import DataDirectoryError, DataDirectoryInUseError
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import (
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    format_checkpoint,
    parse_broker_checkpoint,
    parse_checkpoint,
)
from stratalog.manager.directories.locked_directory import CLEAN_SHUTDOWN_FILE, LOCK_FILE
from stratalog.manager.directories.manifest import parse_partition_name
from stratalog.manager.directories.partition_metadata import write_partition_metadata
from stratalog.migration.kafka_log_directory import PassedOver, SourcePartition
from stratalog.migration.stopped_broker import StoppedBroker
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.segment.file_names import segment_path
from stratalog.testing.memory_filesystem import MemoryFileSystem

TOPIC_ID = UUID(int=7)
FIRST, SECOND = TopicPartition("trim", 0), TopicPartition("trim", 1)
PATHS = ("/disk1", "/disk2")
Files = dict[str, str | None]
"""Contents of files in `/disk1` by name, None for a file that is gone."""
KILLED: Files = {CLEAN_SHUTDOWN_FILE: None}
FIRST_MINUTE: Files = {RECOVERY_POINT_FILE: "", LOG_START_OFFSET_FILE: ""}
"""High watermarks are the first that a broker writes."""


class Broker:
    """Two disks with a partition on each, of ten records; of each the broker has deleted some."""

    def __init__(self) -> None:
        self.disk = MemoryFileSystem()
        for path, partition, start_offset in zip(PATHS, (FIRST, SECOND), (4, 6), strict=True):
            self.write_log(f"{path}/{partition}", 0)
            for name, offset in (
                (RECOVERY_POINT_FILE, 10),
                (LOG_START_OFFSET_FILE, start_offset),
                (HIGH_WATERMARK_FILE, 10),
            ):
                self.write(f"{path}/{name}", format_checkpoint({partition: offset}))
            self.write(f"{path}/{CLEAN_SHUTDOWN_FILE}", "")

    def write_log(self, directory: str, base_offset: int) -> None:
        self.disk.make_directories(directory)
        write_partition_metadata(self.disk, directory, TOPIC_ID)
        records = [Record(0, 5, b"k", b"v") for _ in range(10)]
        batch = encode_batch(records, base_offset=base_offset, leader_epoch=0)
        replace_file(self.disk, segment_path(directory, base_offset, ".log"), batch)

    def write(self, path: str, text: str) -> None:
        replace_file(self.disk, path, text.encode())

    def put(self, files: Files) -> None:
        for name, text in files.items():
            if text is None:
                self.disk.unlink(f"/disk1/{name}")
            else:
                self.write(f"/disk1/{name}", text)

    def read(self, *paths: str, allows_missing_checkpoints: bool = False) -> tuple[SourcePartition, ...]:
        source = StoppedBroker(
            self.disk, paths or PATHS, allows_missing_checkpoints=allows_missing_checkpoints
        )
        try:
            return source.topic("trim").partitions
        finally:
            source.release()

    def refuse(self, fields: dict[str, object], *paths: str) -> None:
        before = self.disk.contents()
        with pytest.raises(DataDirectoryError) as refusal:
            self.read(*paths)
        assert refusal.value.fields == fields
        assert self.disk.contents() == before


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_each_directory_speaks_of_its_own_partitions(broker: Broker) -> None:
    broker.disk.unlink(f"/disk2/{CLEAN_SHUTDOWN_FILE}")
    # The other directory's checkpoints say something of it as well, of a time when it was there.
    broker.write(f"/disk1/{LOG_START_OFFSET_FILE}", format_checkpoint({FIRST: 4, SECOND: 2}))
    found = broker.read()
    assert [(one.topic_partition, one.log_start_offset, one.was_clean) for one in found] == [
        (FIRST, 4, True),
        (SECOND, 6, False),
    ]
    assert [one.path for one in found] == [f"/disk1/{FIRST}", f"/disk2/{SECOND}"]
    assert [(one.recovery_point, one.high_watermark) for one in found] == [(10, 10)] * 2
    assert not any(one.lacks_checkpoints for one in found)
    assert broker.read(*reversed(PATHS)) == found
    assert broker.read(*PATHS, *PATHS) == found


def test_a_partition_that_was_brought_without_its_lines_is_refused(broker: Broker) -> None:
    broker.disk.rename(f"/disk2/{SECOND}", f"/disk1/{SECOND}")
    broker.refuse({"topic": "trim", "partitions": "1", "path": "/disk1"}, "/disk1")
    [first, second] = broker.read("/disk1", allows_missing_checkpoints=True)
    assert (first.lacks_checkpoints, second.lacks_checkpoints) == (False, True)
    assert second.log_start_offset == 0
    # With its lines it is as it was.
    for name, offsets in (
        (RECOVERY_POINT_FILE, {FIRST: 10, SECOND: 10}),
        (LOG_START_OFFSET_FILE, {FIRST: 4, SECOND: 6}),
    ):
        broker.write(f"/disk1/{name}", format_checkpoint(offsets))
    assert [one.log_start_offset for one in broker.read("/disk1")] == [4, 6]


TORN = "0\n2\ntrim 0 10\n"
OF_NONE = format_checkpoint({})
OF_OTHERS = format_checkpoint({SECOND: 10})
NOT_ITS_OWN: dict[str, Files] = {
    "recovery points are gone": {RECOVERY_POINT_FILE: None},
    "recovery points are damaged": {RECOVERY_POINT_FILE: TORN},
    "there was no log when they were written": {RECOVERY_POINT_FILE: OF_NONE},
    "log starts are gone": {LOG_START_OFFSET_FILE: None},
    "it was stopped and yet wrote nothing": {CLEAN_SHUTDOWN_FILE: "", RECOVERY_POINT_FILE: ""},
    "recovery points alone are empty": {RECOVERY_POINT_FILE: ""},
    "log starts alone are written": {RECOVERY_POINT_FILE: "", HIGH_WATERMARK_FILE: ""},
    "log starts alone are empty": {LOG_START_OFFSET_FILE: ""},
    "it was stopped and log starts are empty": {CLEAN_SHUTDOWN_FILE: "", LOG_START_OFFSET_FILE: ""},
    "it had others only in its first minute": FIRST_MINUTE | {HIGH_WATERMARK_FILE: OF_OTHERS},
    "high watermarks of its first minute are damaged": FIRST_MINUTE | {HIGH_WATERMARK_FILE: TORN},
}


@pytest.mark.parametrize("files", NOT_ITS_OWN.values(), ids=NOT_ITS_OWN)
def test_a_directory_whose_checkpoints_cannot_be_its_own_is_refused(broker: Broker, files: Files) -> None:
    broker.put(KILLED | files)
    broker.refuse({"topic": "trim", "partitions": "0", "path": "/disk1"})
    assert [one.lacks_checkpoints for one in broker.read(allows_missing_checkpoints=True)] == [True, False]


def test_damaged_log_starts_are_refused_whatever_is_allowed(broker: Broker) -> None:
    broker.write(f"/disk1/{LOG_START_OFFSET_FILE}", "0\n1\ntrim")
    with pytest.raises(DataDirectoryError):
        broker.read(allows_missing_checkpoints=True)


@pytest.mark.parametrize(
    ("files", "high_watermark"),
    [
        (FIRST_MINUTE | {HIGH_WATERMARK_FILE: ""}, None),
        (FIRST_MINUTE | {HIGH_WATERMARK_FILE: None}, None),
        (FIRST_MINUTE, 10),
    ],
    ids=["nothing is written", "high watermarks are gone", "high watermarks are written"],
)
def test_checkpoints_that_were_not_written_yet_are_no_damage(
    broker: Broker, files: Files, high_watermark: int | None
) -> None:
    """A broker that was killed before its first checkpoint leaves them so."""
    broker.put(KILLED | files)
    [first, second] = broker.read()
    assert (first.log_start_offset, first.recovery_point, first.high_watermark) == (0, 0, high_watermark)
    assert not first.lacks_checkpoints
    assert second.log_start_offset == 6


def test_of_our_own_checkpoints_an_empty_one_is_damaged() -> None:
    assert parse_broker_checkpoint("") == {}
    for parse in (parse_checkpoint, parse_broker_checkpoint):
        assert parse("0\n1\ntrim 0 4\n") == {FIRST: 4}
        for text in ("\n", "0\n", "0\n1\n", "0\n1\ntrim 0 4"):
            with pytest.RaisesExc(ValueError):
                parse(text)
    with pytest.RaisesExc(ValueError):
        parse_checkpoint("")


def test_log_starts_without_a_line_say_that_nothing_was_deleted(broker: Broker) -> None:
    broker.write(f"/disk1/{LOG_START_OFFSET_FILE}", format_checkpoint({}))
    assert [one.log_start_offset for one in broker.read()] == [0, 6]


def test_a_partition_that_is_in_two_directories_is_refused(broker: Broker) -> None:
    broker.write_log(f"/disk2/{FIRST}", 0)
    broker.refuse({"path": f"/disk1/{FIRST}", "other_path": f"/disk2/{FIRST}"})
    # One that was on its way, or was deleted behind itself, is none.
    for reason in ("future", "delete", "stray"):
        broker.disk.rename(f"/disk2/{FIRST}", f"/disk2/{FIRST}.{UUID(int=5).hex}-{reason}")
        assert [one.path for one in broker.read()] == [f"/disk1/{FIRST}", f"/disk2/{SECOND}"]
        broker.disk.rename(f"/disk2/{FIRST}.{UUID(int=5).hex}-{reason}", f"/disk2/{FIRST}")


def test_what_one_directory_lacks_the_others_may_have(broker: Broker) -> None:
    missing: dict[str, object] = {
        "missing_partitions": "0",
        "missing_count": 1,
        "last_path": f"/disk2/{SECOND}",
    }
    broker.refuse({"topic": "trim", "path": "/disk2"} | missing, "/disk2")
    assert len(broker.read()) == 2


def test_what_is_missing_is_reported_in_a_line_however_much_it_is(broker: Broker) -> None:
    """A human has made a copy with a date behind its name; no line, and nothing in memory, grows with it."""
    for number in (3, 20_261_122):
        broker.disk.make_directories(f"/disk2/trim-{number}")
    told: dict[str, object] = {
        "topic": "trim",
        "missing_partitions": "2,4-20261121",
        "missing_count": 20_261_119,
        "last_path": "/disk2/trim-20261122",
        "path": "/disk1,/disk2",
    }
    broker.refuse(told)
    for number in range(5, 100, 2):
        broker.disk.make_directories(f"/disk2/trim-{number}")
    broker.refuse(told | {"missing_partitions": "2,4,6,8,10", "missing_count": 20_261_119 - 48})


def test_a_number_that_no_partition_has_is_part_of_a_foreign_name(broker: Broker) -> None:
    assert parse_partition_name("trim-2147483647") == TopicPartition("trim", 2**31 - 1)
    for number in (2**31, 99_999_999_999, 10**240):
        assert parse_partition_name(f"trim-{number}") is None
    broker.disk.make_directories("/disk1/trim-99999999999")
    assert [one.topic_partition for one in broker.read()] == [FIRST, SECOND]
    source = StoppedBroker(broker.disk, PATHS)
    assert source.passed_over == (PassedOver("trim-99999999999", "it is not a partition's", "/disk1"),)


def test_a_broker_that_runs_holds_all_of_them(broker: Broker) -> None:
    lock = broker.disk.try_lock("/disk2/.lock")
    assert lock is not None
    with pytest.raises(DataDirectoryInUseError) as refusal:
        broker.read()
    assert refusal.value.fields["path"] == "/disk2"
    # And what was refused holds none.
    first = broker.disk.try_lock("/disk1/.lock")
    assert first is not None


def test_no_broker_starts_on_any_of_them(tmp_path: Path) -> None:
    disk, paths = PosixFileSystem(), [f"{tmp_path}/disk{number}" for number in range(2)]
    for path in paths:
        disk.make_directories(path)
        replace_file(disk, f"{path}/{LOCK_FILE}", b"")
    source = StoppedBroker(disk, paths)
    assert [disk.try_lock(f"{path}/{LOCK_FILE}") for path in paths] == [None, None]
    source.release()
    for path in paths:
        lock = disk.try_lock(f"{path}/{LOCK_FILE}")
        assert lock is not None
        lock.release()


@pytest.mark.parametrize("is_swap_first", [True, False])
def test_a_log_begins_where_its_first_segment_does_even_if_that_is_to_be_swapped_in(
    broker: Broker, *, is_swap_first: bool
) -> None:
    """Retention has dropped what lies below, and the broker was killed before it wrote that down."""
    broker.disk.remove_tree(f"/disk1/{FIRST}")
    for base_offset in (20, 30):
        broker.write_log(f"/disk1/{FIRST}", base_offset)
    swapped = segment_path(f"/disk1/{FIRST}", 20 if is_swap_first else 30, ".log")
    broker.disk.rename(swapped, f"{swapped}.swap")
    assert broker.read()[0].log_start_offset == 20
    # A copy that was not finished stands for no segment.
    broker.disk.rename(f"{swapped}.swap", f"{swapped}.cleaned")
    assert broker.read()[0].log_start_offset == (30 if is_swap_first else 20)


def test_a_file_whose_name_is_above_all_offsets_is_no_segment() -> None:
    broker = Broker()
    [known, _] = broker.read()
    for offset in (2**63, 10**20 - 1):
        broker.write(f"{PATHS[0]}/{FIRST}/{offset:020d}.log", "a stranger's")
    [found, _] = broker.read()
    assert found.files == known.files
