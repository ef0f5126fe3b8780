"""The last batch of a log that was killed: where its base offset was altered it has lost its place, and the
log is refused as it is; holes that a log may have are none of that."""

from __future__ import annotations

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.log.checkpoint import RECOVERY_POINT_FILE
from stratalog.log.log_config import LogConfig
from stratalog.record.batch import batches
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.crash_moments import EVERYTHING_KEPT
from tests.support.logs.log_machine import DATA_DIR, PARTITION, PARTITION_DIR, LogMachine
from tests.support.logs.overwriting import flip, overwrite
from tests.support.logs.plain_batches import batch
from tests.support.logs.sampling import Sampling

CONFIG = LogConfig(remote_storage_enable=False, retention_ms=-1)
LOG = f"{PARTITION_DIR}/{0:020d}.log"
RECOVERY_POINTS = f"{DATA_DIR}/{RECOVERY_POINT_FILE}"
CLEANED_OFFSETS = f"{DATA_DIR}/cleaner-offset-checkpoint"


def checkpoint_of(offset: int) -> bytes:
    return f"0\n1\n{PARTITION.topic} {PARTITION.partition} {offset}\n".encode()


def filled(counts: list[int]) -> MemoryFileSystem:
    """The disk of a machine that was killed when all of its log was durable, and known to be."""
    disk = MemoryFileSystem()
    machine = LogMachine(disk, CONFIG)
    log = machine.start()
    for count in counts:
        log.appender.append_as_leader(batch(count), 1)
    log.flusher.flush()
    machine.checkpoint()
    machine.kill()
    return disk


def require_refused(disk: MemoryFileSystem) -> DataDirectoryError:
    """And nothing of the partition is another thing than it was."""
    before = {path: data for path, data in disk.contents().items() if path.startswith(PARTITION_DIR)}
    with pytest.raises(DataDirectoryError) as refused:
        LogMachine(disk, CONFIG).start()
    after = {path: data for path, data in disk.contents().items() if path.startswith(PARTITION_DIR)}
    assert after == before
    return refused.value


@pytest.mark.parametrize("counts", [[1] * 28, [1] * 29, [3] * 10, [40]], ids=str)
def test_no_bit_of_the_last_base_offset_is_taken_for_another(counts: list[int]) -> None:
    whole = filled(counts)
    *_, (position, _) = batches(whole.read_file(LOG))
    for bit in Sampling().at_most(range(64), 24):
        disk = whole.after_crash(EVERYTHING_KEPT)
        flip(disk, LOG, position + 7 - bit // 8, bit % 8)
        require_refused(disk)


@pytest.mark.parametrize("known", [True, False])
def test_a_batch_too_far_from_its_base_is_refused_with_what_is_known_of_it(known: bool) -> None:
    disk = filled([1, 1])
    overwrite(disk, LOG, disk.read_file(LOG) + batch(1, base_offset=2**40, leader_epoch=1))
    if not known:
        disk.unlink(RECOVERY_POINTS)
    failure = require_refused(disk)
    assert failure.fields == {"path": LOG, "last_offset": 2**40, "segment_base_offset": 0}


def test_the_nearest_batch_that_is_too_far_is_none_and_the_one_before_it_is_one() -> None:
    disk = filled([1, 1])
    data = disk.read_file(LOG)
    overwrite(disk, LOG, data + batch(1, base_offset=2**31 - 1, leader_epoch=1))
    machine = LogMachine(disk, CONFIG)
    log = machine.start()
    log.check()
    assert log.offsets.log_end_offset == 2**31
    machine.kill()
    overwrite(disk, LOG, data + batch(1, base_offset=2**31, leader_epoch=1))
    disk.unlink(RECOVERY_POINTS)
    require_refused(disk)


def test_a_hole_over_the_recovery_point_is_refused_and_says_how_to_accept_it() -> None:
    disk = filled([1] * 10)
    overwrite(disk, LOG, disk.read_file(LOG) + batch(5, base_offset=14, leader_epoch=1))
    overwrite(disk, RECOVERY_POINTS, checkpoint_of(12))
    failure = require_refused(disk)
    assert (failure.fields["end_before"], failure.fields["base_offset"]) == (10, 14)
    assert failure.fields["recovery_point"] == 12
    disk.release_locks()
    overwrite(disk, RECOVERY_POINTS, checkpoint_of(0))
    assert LogMachine(disk, CONFIG).start().offsets.log_end_offset == 19


@pytest.mark.parametrize("recovery_point", [0, 3, 12, 19])
def test_holes_that_a_follower_leaves_are_none_of_that(recovery_point: int) -> None:
    """Its checkpoints are where a batch has ended."""
    disk = filled([])
    overwrite(
        disk,
        LOG,
        batch(3, leader_epoch=1)
        + batch(2, base_offset=10, leader_epoch=1)
        + batch(1, base_offset=18, leader_epoch=1),
    )
    overwrite(disk, RECOVERY_POINTS, checkpoint_of(recovery_point))
    log = LogMachine(disk, CONFIG).start()
    log.check()
    assert log.offsets.log_end_offset == 19


@pytest.mark.parametrize("cleaned_offset", [14, 19])
def test_a_hole_that_a_clean_has_left_is_none_of_that(cleaned_offset: int) -> None:
    """The recovery points may have come from an older copy than the cleaner's checkpoint."""
    disk = filled([1] * 10)
    overwrite(disk, LOG, disk.read_file(LOG) + batch(5, base_offset=14, leader_epoch=1))
    overwrite(disk, RECOVERY_POINTS, checkpoint_of(12))
    overwrite(disk, CLEANED_OFFSETS, checkpoint_of(cleaned_offset))
    log = LogMachine(disk, CONFIG).start()
    log.check()
    assert log.offsets.log_end_offset == 19


def test_a_batch_over_a_wrong_recovery_point_has_not_lost_its_place() -> None:
    """Nothing is missing before it, so it is the checkpoint that is wrong, and it says too little."""
    disk = filled([1] * 10)
    overwrite(disk, LOG, disk.read_file(LOG) + batch(5, base_offset=10, leader_epoch=1))
    overwrite(disk, RECOVERY_POINTS, checkpoint_of(12))
    assert LogMachine(disk, CONFIG).start().offsets.log_end_offset == 15


@pytest.mark.parametrize("base_offset", [12, 14])
def test_a_segment_that_begins_behind_a_hole_is_none_of_that(base_offset: int) -> None:
    """So does a truncated log go on where compaction had left nothing."""
    disk = filled([1] * 10)
    overwrite(disk, f"{PARTITION_DIR}/{12:020d}.log", batch(5, base_offset=base_offset, leader_epoch=1))
    overwrite(disk, RECOVERY_POINTS, checkpoint_of(12))
    log = LogMachine(disk, CONFIG).start()
    log.check()
    assert log.offsets.log_end_offset == base_offset + 5
