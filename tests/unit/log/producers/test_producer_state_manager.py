"""Producer state beside its snapshots: when they are taken and loaded.

Transactions, sequences and expiry are tested against an oracle in tests/property/test_producer_state.py.
"""

from __future__ import annotations

import pytest

from stratalog.log.producers.producer_batch import ProducerBatch
from stratalog.log.producers.producer_snapshot_files import ProducerSnapshotFiles
from stratalog.log.producers.producer_state_manager import ProducerStateManager
from stratalog.record.end_transaction_marker import ControlType
from stratalog.testing.faulty_filesystem import ALL_SURVIVALS, FaultyFileSystem
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


def test_deleted_records_leave_their_producers(state: ProducerStateManager) -> None:
    state.append(transactional(0, 7))
    state.append(marker_batch(1, 7, 0, COMMIT))
    state.on_log_start_offset_incremented(2)
    assert state.first_unstable_offset is None
    assert state.entry(7).last_sequence == 0
    state.on_log_start_offset_incremented(10)
    assert state.map_end_offset == 10
    state.check()


def test_a_log_that_begins_anew_knows_no_producer(
    state: ProducerStateManager, disk: FaultyFileSystem
) -> None:
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
