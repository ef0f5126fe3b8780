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


@pytest.mark.parametrize(("base_offset", "known"), [(2**40, True), (2**40, False), (2**31, False)])
def test_a_batch_too_far_from_its_base_is_refused_with_what_is_known_of_it(
    base_offset: int, known: bool
) -> None:
    disk = filled([1, 1])
    overwrite(disk, LOG, disk.read_file(LOG) + batch(1, base_offset=base_offset, leader_epoch=1))
    if not known:
        disk.unlink(RECOVERY_POINTS)
    failure = require_refused(disk)
    assert failure.fields == {"path": LOG, "last_offset": base_offset, "segment_base_offset": 0}


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


@pytest.mark.parametrize(
    ("counts", "added", "recovery_point", "cleaned_offset"),
    [
        # The farthest batch that is not too far.
        ([1, 1], {2**31 - 1: 1}, 2, None),
        # Of a follower, whose recovery points are where a batch has ended.
        *(([3], {10: 2, 18: 1}, recovery_point, None) for recovery_point in (0, 3, 12, 19)),
        # Of a clean. The recovery point may have come from an older copy than the cleaner's checkpoint.
        *(([1] * 10, {14: 5}, 12, cleaned_offset) for cleaned_offset in (14, 19)),
        # Nothing is missing before the batch, so it is the checkpoint that is wrong, and it says too little.
        ([1] * 10, {10: 5}, 12, None),
    ],
)
def test_holes_that_a_log_may_have_are_none_of_that(
    counts: list[int], added: dict[int, int], recovery_point: int, cleaned_offset: int | None
) -> None:
    """`added`: the numbers of records of the batches at these offsets."""
    disk = filled(counts)
    placed = [batch(count, base_offset=offset, leader_epoch=1) for offset, count in added.items()]
    overwrite(disk, LOG, b"".join([disk.read_file(LOG), *placed]))
    overwrite(disk, RECOVERY_POINTS, checkpoint_of(recovery_point))
    if cleaned_offset is not None:
        overwrite(disk, CLEANED_OFFSETS, checkpoint_of(cleaned_offset))
    log = LogMachine(disk, CONFIG).start()
    log.check()
    assert log.offsets.log_end_offset == max(offset + count for offset, count in added.items())


@pytest.mark.parametrize("base_offset", [12, 14])
def test_a_segment_that_begins_behind_a_hole_is_none_of_that(base_offset: int) -> None:
    """So does a truncated log go on where compaction had left nothing."""
    disk = filled([1] * 10)
    overwrite(disk, f"{PARTITION_DIR}/{12:020d}.log", batch(5, base_offset=base_offset, leader_epoch=1))
    overwrite(disk, RECOVERY_POINTS, checkpoint_of(12))
    log = LogMachine(disk, CONFIG).start()
    log.check()
    assert log.offsets.log_end_offset == base_offset + 5
