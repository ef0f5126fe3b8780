"""Producer state by rule: transactions, offsets, expiry, snapshots."""

from __future__ import annotations

import contextlib

import pytest

from stratalog.log.producers.producer_batch import ProducerBatch
from stratalog.log.producers.producer_snapshot_files import ProducerSnapshotFiles
from stratalog.log.producers.producer_state_manager import ProducerStateManager
from stratalog.record.end_transaction_marker import ControlType
from stratalog.testing.faulty_filesystem import ALL_SURVIVALS, FaultyFileSystem, SimulatedCrash
from tests.support.logs.producer_batches import data_batch, marker_batch

ABORT, COMMIT = ControlType


def transactional(base_offset: int, producer_id: int, sequence: int = 0) -> ProducerBatch:
    return data_batch(base_offset, producer_id, 0, sequence, is_transactional=True)


@pytest.fixture
def disk() -> FaultyFileSystem:
    disk = FaultyFileSystem()
    disk.make_directories("/log")
    disk.sync_directory("/")
    return disk


@pytest.fixture
def state(disk: FaultyFileSystem) -> ProducerStateManager:
    return opened(disk)


def opened(disk: FaultyFileSystem) -> ProducerStateManager:
    return ProducerStateManager(ProducerSnapshotFiles(disk, "/log"), producer_id_expiration_ms=1000)


def unstable(state: ProducerStateManager) -> tuple[int | None, int | None]:
    """The first offsets of a transaction that is open, and of one that is open or may be lost."""
    return state.first_undecided_offset, state.first_unstable_offset


def test_a_transaction_is_unstable_until_its_marker_cannot_be_lost(state: ProducerStateManager) -> None:
    state.append(data_batch(0))
    assert unstable(state) == (None, None)
    state.append(transactional(1, 7))
    state.append(transactional(2, 8))
    assert unstable(state) == (1, 1)
    assert state.open_transactions == ((7, 1), (8, 2))
    assert state.append(marker_batch(3, 7, 0, COMMIT)) == (7, 1, 3, False, 2)
    assert unstable(state) == (2, 1)
    state.on_high_watermark_updated(3)
    assert unstable(state) == (2, 1)
    state.on_high_watermark_updated(4)
    assert unstable(state) == (2, 2)
    assert state.append(marker_batch(4, 8, 0, ABORT)) == (8, 2, 4, True, 5)
    state.on_high_watermark_updated(4)
    assert unstable(state) == (None, 2)
    state.on_high_watermark_updated(5)
    assert unstable(state) == (None, None)
    state.check()


def test_a_marker_without_a_transaction_completes_none(state: ProducerStateManager) -> None:
    assert state.append(marker_batch(0, 7, 2, ABORT, coordinator_epoch=5, timestamp_ms=9)) is None
    assert state.entry(7)[:4] == (7, 2, 5, 9)
    assert state.first_unstable_offset is None


def test_a_marker_that_compaction_has_removed_changes_nothing(state: ProducerStateManager) -> None:
    state.append(transactional(0, 7))
    before = dict(state.producers)
    assert state.append(marker_batch(1, 7, 0, ABORT)._replace(marker=None)) is None
    assert state.append(marker_batch(2, 8, 0, ABORT)._replace(marker=None)) is None
    assert state.producers == before
    assert state.map_end_offset == 3


def test_the_end_moves_with_batches_that_no_producer_has_numbered(state: ProducerStateManager) -> None:
    state.append(data_batch(0, count=4))
    assert state.map_end_offset == 4
    state.update_map_end_offset(9)
    assert state.map_end_offset == 9
    assert not state.producers


def test_an_idle_producer_is_forgotten_unless_its_transaction_is_open(state: ProducerStateManager) -> None:
    state.append(data_batch(0, 7, 0, 0, timestamp_ms=500))
    state.append(data_batch(1, 8, 0, 0, timestamp_ms=500, is_transactional=True))
    state.append(data_batch(2, 9, 0, 0, timestamp_ms=501))
    state.remove_expired_producers(1499)
    assert set(state.producers) == {7, 8, 9}
    state.remove_expired_producers(1500)
    assert set(state.producers) == {8, 9}
    assert state.entry(7).is_unknown
    state.append(marker_batch(3, 8, 0, COMMIT, timestamp_ms=502))
    state.remove_expired_producers(1502)
    assert set(state.producers) == set()
    state.check()


def test_a_snapshot_is_taken_once_for_an_offset(state: ProducerStateManager, disk: FaultyFileSystem) -> None:
    state.take_snapshot()
    assert list(state.snapshot_files.offsets) == []
    state.append(data_batch(0, 7, 0, 0))
    state.take_snapshot()
    before = disk.operation_count
    state.take_snapshot()
    assert disk.operation_count == before
    state.append(data_batch(1))
    state.take_snapshot()
    assert list(state.snapshot_files.offsets) == [1, 2]


def test_a_snapshot_of_another_end_is_not_loaded_again(state: ProducerStateManager) -> None:
    state.append(data_batch(0, 7, 0, 0))
    state.append(data_batch(1, 7, 0, 1))
    state.take_snapshot()
    state.truncate_and_reload(0, 2, now_ms=0)
    # The end is where it was: all five batches are still known, not only the last.
    assert len(state.entry(7).batches) == 2


def test_expired_producers_are_not_loaded(state: ProducerStateManager, disk: FaultyFileSystem) -> None:
    state.append(data_batch(0, 7, 0, 0, timestamp_ms=0))
    state.append(data_batch(1, 8, 0, 0, timestamp_ms=0, is_transactional=True))
    state.append(data_batch(2, 9, 0, 0, timestamp_ms=1))
    state.take_snapshot()
    loaded = opened(disk)
    loaded.truncate_and_reload(0, 3, now_ms=1000)
    assert set(loaded.producers) == {8, 9}
    assert loaded.open_transactions == ((8, 1),)
    loaded.check()


def test_a_marker_that_may_be_lost_is_found_again_below_the_high_watermark(
    state: ProducerStateManager, disk: FaultyFileSystem
) -> None:
    state.append(transactional(0, 7))
    state.take_snapshot()
    marker = marker_batch(1, 7, 0, COMMIT)
    state.append(marker)
    state.take_snapshot()
    loaded = opened(disk)
    loaded.truncate_and_reload(0, 2, now_ms=0, high_watermark=1)
    assert loaded.map_end_offset == 1
    loaded.append(marker)
    loaded.on_high_watermark_updated(1)
    assert loaded.first_unstable_offset == 0
    assert list(loaded.snapshot_files.offsets) == [1, 2]


def test_without_a_snapshot_the_state_begins_with_the_local_log(state: ProducerStateManager) -> None:
    state.append(data_batch(0, 7, 0, 0))
    state.take_snapshot()
    state.append(data_batch(1, 7, 0, 1))
    state.truncate_and_reload(5, 9, now_ms=0)
    assert state.map_end_offset == 5
    assert not state.producers
    assert list(state.snapshot_files.offsets) == []
    state.take_snapshot()
    assert list(state.snapshot_files.offsets) == []


def test_a_snapshot_at_the_local_start_stays(state: ProducerStateManager, disk: FaultyFileSystem) -> None:
    state.append(data_batch(0, 7, 0, 0))
    state.take_snapshot()
    loaded = opened(disk)
    loaded.truncate_and_reload(1, 1, now_ms=0)
    assert set(loaded.producers) == {7}


def test_a_damaged_snapshot_is_passed_over(state: ProducerStateManager, disk: FaultyFileSystem) -> None:
    for number in range(3):
        state.append(data_batch(number, 7, 0, number))
        state.take_snapshot()
    file = disk.open_append("/log/00000000000000000003.snapshot")
    file.truncate(9)
    loaded = opened(disk)
    loaded.truncate_and_reload(0, 3, now_ms=0)
    assert loaded.map_end_offset == 2
    assert loaded.entry(7).last_sequence == 1
    loaded.append(data_batch(2, 7, 0, 2))
    loaded.take_snapshot()
    assert list(loaded.snapshot_files.offsets) == [1, 2, 3]


def test_deleted_records_leave_their_producers(state: ProducerStateManager) -> None:
    state.append(transactional(0, 7))
    state.append(marker_batch(1, 7, 0, COMMIT))
    state.on_log_start_offset_incremented(2)
    assert state.first_unstable_offset is None
    assert state.entry(7).last_sequence == 0
    state.on_log_start_offset_incremented(10)
    assert state.map_end_offset == 10
    state.check()


def test_a_log_that_begins_anew_knows_nobody(state: ProducerStateManager, disk: FaultyFileSystem) -> None:
    state.append(transactional(59, 7))
    state.take_snapshot()
    state.truncate_fully_and_start_at(40)
    assert state.map_end_offset == 40
    assert not state.producers
    assert state.first_unstable_offset is None
    for survival in ALL_SURVIVALS:
        assert ProducerSnapshotFiles(disk.reopened(survival), "/log").offsets == ()
    state.append(data_batch(40, 7, 0, 0))
    state.take_snapshot()
    assert list(state.snapshot_files.offsets) == [41]
    state.check()


def sealed(batch: ProducerBatch, log: list[ProducerBatch], state: ProducerStateManager) -> None:
    """Append and keep a snapshot, as a roll behind the batch does."""
    log.append(batch)
    state.append(batch)
    state.take_snapshot()


def truncated(end_offset: int, log: list[ProducerBatch], state: ProducerStateManager) -> None:
    """Truncate the log, durably, and the state with it."""
    del log[end_offset:]
    replayed(log, state)


def replayed(log: list[ProducerBatch], state: ProducerStateManager) -> None:
    state.truncate_and_reload(0, len(log), now_ms=0)
    for batch in log[state.map_end_offset :]:
        state.append(batch)


def work(disk: FaultyFileSystem, log: list[ProducerBatch]) -> None:
    """Every offset is a batch of its own."""
    state = opened(disk)
    for number in range(4):
        sealed(transactional(number, 7 + number % 2, number // 2), log, state)
    truncated(2, log, state)
    # The same offsets again, with another history: an old snapshot would tell the former.
    sealed(marker_batch(2, 7, 0, ABORT), log, state)
    sealed(data_batch(3, 9, 0, 0), log, state)
    log.clear()
    state.truncate_fully_and_start_at(0)
    sealed(data_batch(0, 9, 1, 5), log, state)


def test_a_crash_at_any_moment_leaves_what_the_log_says(disk: FaultyFileSystem) -> None:
    prepared = disk.operation_count
    work(disk, [])
    for operation in range(prepared + 1, disk.operation_count + 2):
        for part in (0.0, 1.0):
            crashed, log = FaultyFileSystem(), list[ProducerBatch]()
            crashed.make_directories("/log")
            crashed.sync_directory("/")
            crashed.crash_at(operation, part=part)
            with contextlib.suppress(SimulatedCrash):
                work(crashed, log)
            expected = opened(disk)
            expected.snapshot_files.remove_outside(-1, -1)
            replayed(log, expected)
            for survival in ALL_SURVIVALS:
                found = opened(crashed.reopened(survival))
                replayed(log, found)
                found.check()
                assert found.snapshot().to_bytes() == expected.snapshot().to_bytes()
                assert found.open_transactions == expected.open_transactions
