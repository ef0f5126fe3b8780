"""Changed base offsets and leader epochs in sealed segments are refused by all that read a whole segment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from stratalog.base.errors import CorruptRecordError, LogStoreError
from stratalog.cleaner.clean.batch_window import BatchWindow
from stratalog.log.checkpoint import RECOVERY_POINT_FILE
from stratalog.log.leader_epoch_cache import LEADER_EPOCH_FILE
from stratalog.log.log_config import LogConfig
from stratalog.manager.directories.locked_directory import CLEAN_SHUTDOWN_FILE
from stratalog.record.batch import batches
from stratalog.record.header import LEADER_EPOCH_POSITION
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_copy import SegmentCopy
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.crash_moments import EVERYTHING_KEPT
from tests.support.logs.log_machine import DATA_DIR, PARTITION_DIR, LogMachine
from tests.support.logs.overwriting import flip, overwrite
from tests.support.logs.plain_batches import batch

CONFIG = LogConfig(remote_storage_enable=False, retention_ms=-1, segment_bytes=250)
EPOCHS = f"{PARTITION_DIR}/{LEADER_EPOCH_FILE}"


@pytest.fixture(scope="module", name="closed")
def _closed() -> MemoryFileSystem:
    """The disk of a closed log in which a changed number contradicts no neighbour: it has holes between the
    batches, and leader epochs without batches."""
    machine = LogMachine(MemoryFileSystem(), CONFIG)
    log = machine.start()
    for number in range(8):
        log.appender.append_as_follower(batch(2, base_offset=8 * number, leader_epoch=4 + 4 * number))
    machine.stop()
    return machine.memory


def altered(closed: MemoryFileSystem) -> Iterator[tuple[MemoryFileSystem, str]]:
    """The disk with each base offset and each leader epoch raised by one, and the path of the segment."""
    for path in segment_paths(closed):
        for position, _ in batches(closed.read_file(path)):
            for field_position in (7, LEADER_EPOCH_POSITION + 3):
                disk = closed.after_crash(EVERYTHING_KEPT)
                flip(disk, path, position + field_position)
                yield disk, path


def segment_paths(disk: MemoryFileSystem) -> list[str]:
    return sorted(path for path in disk.contents() if path.endswith(".log"))


def test_a_recovery_refuses_each_and_changes_nothing(closed: MemoryFileSystem) -> None:
    count = 0
    for disk, path in altered(closed):
        disk.unlink(f"{DATA_DIR}/{CLEAN_SHUTDOWN_FILE}")
        disk.unlink(f"{DATA_DIR}/{RECOVERY_POINT_FILE}")
        before = {name: data for name, data in disk.contents().items() if name.startswith(PARTITION_DIR)}
        with pytest.raises(LogStoreError) as refused:
            LogMachine(disk, CONFIG).start()
        assert refused.value.fields["path"] == path
        after = {name: data for name, data in disk.contents().items() if name.startswith(PARTITION_DIR)}
        assert after == before
        count += 1
    assert count == 16


def test_a_clean_and_a_copy_refuse_each(closed: MemoryFileSystem) -> None:
    *_, active = segment_paths(closed)
    for disk, path in altered(closed):
        if path == active:
            continue
        machine = LogMachine(disk, CONFIG)
        log = machine.start()
        (segment,) = [one for one in log.local_log.segments if one.path == path]
        with pytest.raises(CorruptRecordError):
            read_as_a_clean(segment)
        disk.make_directories("/copy")
        copy = SegmentCopy(log.local_log.resources, segment, "/copy", 0)
        copy.write(copy.next_portion(1 << 20))
        with pytest.raises(CorruptRecordError):
            copy.seal(0)
        machine.kill()


def read_as_a_clean(segment: LogSegment) -> None:
    with segment.lend() as file:
        window = BatchWindow(segment, file, 0, lambda _: None, bytearray(150))
        while window.has_batch():
            window.pass_by(window.header())


def test_an_unchanged_segment_is_read_to_its_end(closed: MemoryFileSystem) -> None:
    log = LogMachine(closed.after_crash(EVERYTHING_KEPT), CONFIG).start()
    for segment in log.local_log.segments.sealed:
        read_as_a_clean(segment)


def test_indexes_are_not_made_again_from_altered_headers(closed: MemoryFileSystem) -> None:
    path, *_ = segment_paths(closed)
    disk = closed.after_crash(EVERYTHING_KEPT)
    flip(disk, path, 7)
    disk.unlink(path.replace(".log", ".index"))
    log = LogMachine(disk, CONFIG).start()
    with pytest.raises(CorruptRecordError):
        log.local_log.segments[0].indexes()


@pytest.mark.parametrize("damage", ["missing", "garbage", "empty", "shifted", "old"])
@pytest.mark.parametrize("was_clean", [True, False])
def test_the_file_of_leader_epochs_is_made_again(
    closed: MemoryFileSystem, damage: str, *, was_clean: bool
) -> None:
    whole = closed.read_file(EPOCHS)
    disk = closed.after_crash(EVERYTHING_KEPT)
    if not was_clean:
        disk.unlink(f"{DATA_DIR}/{CLEAN_SHUTDOWN_FILE}")
    changed = {
        "garbage": b"?",
        "empty": b"0\n0\n",
        "shifted": whole.replace(b"\n8 8\n", b"\n8 1\n"),
        "old": b"0\n1\n4 0\n",
    }
    with suppress(KeyError):
        overwrite(disk, EPOCHS, changed[damage])
    if damage == "missing":
        disk.unlink(EPOCHS)
    log = LogMachine(disk, CONFIG).start()
    log.check()
    assert disk.read_file(EPOCHS) == whole


def test_a_seal_of_a_segment_that_became_shorter_is_gone(closed: MemoryFileSystem) -> None:
    """The segment grows back to the sealed size, with another base offset in its last batch."""
    machine = LogMachine(closed.after_crash(EVERYTHING_KEPT), CONFIG)
    log = machine.start()
    log.truncation.truncate_to(2)
    log.appender.append_as_follower(batch(2, base_offset=10, leader_epoch=8))
    assert log.local_log.segments.active.size_bytes == len(closed.read_file(segment_paths(closed)[0]))
    machine.kill()
    machine.start().check()
