"""What a producer may append, rule by rule, for each origin."""

from __future__ import annotations

import pytest

from stratalog.base.errors import (
    CoordinatorFencedError,
    InvalidTxnStateError,
    LogStoreError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from stratalog.log.append.append_info import AppendInfo
from stratalog.log.producers.producer_append import AppendOrigin, ProducerAppend
from stratalog.log.producers.producer_batch import ProducerBatch
from stratalog.log.producers.producer_snapshot_files import ProducerSnapshotFiles
from stratalog.log.producers.producer_state_manager import ProducerStateManager
from stratalog.record.batch_producer import MAX_SEQUENCE
from stratalog.record.end_transaction_marker import ControlType
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.producer_batches import data_batch, marker_batch

CLIENT, COORDINATOR, REPLICATION = AppendOrigin
ABORT, COMMIT = ControlType


@pytest.fixture
def state() -> ProducerStateManager:
    filesystem = MemoryFileSystem()
    filesystem.make_directories("/log")
    return ProducerStateManager(ProducerSnapshotFiles(filesystem, "/log"), producer_id_expiration_ms=1000)


def duplicate(base_offset: int, last_offset: int) -> AppendInfo:
    return AppendInfo(base_offset, last_offset, 0, is_duplicate=True)


def store(
    state: ProducerStateManager, *batches: ProducerBatch, origin: AppendOrigin = REPLICATION
) -> ProducerAppend:
    append = ProducerAppend(state)
    append.stage(batches, origin)
    append.commit()
    state.check()
    return append


def refuse(
    state: ProducerStateManager,
    error: type[LogStoreError],
    *batches: ProducerBatch,
    origin: AppendOrigin = CLIENT,
) -> dict[str, object]:
    """The fields of the error that the request gets, of which nothing is staged or stored."""
    append, before = ProducerAppend(state), dict(state.producers)
    with pytest.raises(error) as caught:
        append.stage(batches, origin)
    assert append.commit() == []
    assert state.producers == before
    return caught.value.fields


@pytest.mark.parametrize("sequence", [0, 1, 77, MAX_SEQUENCE])
def test_a_producer_that_is_unknown_may_begin_anywhere(state: ProducerStateManager, sequence: int) -> None:
    store(state, data_batch(0, 7, 3, sequence), origin=CLIENT)
    assert state.entry(7).last_sequence == sequence


def test_the_next_batch_follows_the_last_one(state: ProducerStateManager) -> None:
    store(state, data_batch(0, 7, 0, 0, count=3))
    for sequence in (0, 2, 4):
        fields = refuse(state, OutOfOrderSequenceError, data_batch(3, 7, 0, sequence))
        assert fields == {"producer_id": 7, "epoch": 0, "sequence": sequence, "expected_sequence": 3}
    store(state, data_batch(3, 7, 0, 3), origin=CLIENT)


def test_batches_of_one_request_follow_each_other(state: ProducerStateManager) -> None:
    refuse(state, OutOfOrderSequenceError, data_batch(0, 7, 0, 5), data_batch(1, 7, 0, 7))
    store(state, data_batch(0, 7, 0, 5), data_batch(1, 8, 0, 0), data_batch(2, 7, 0, 6), origin=CLIENT)
    assert state.entry(7).last_sequence == 6


def test_sequences_go_on_from_their_end_at_0(state: ProducerStateManager) -> None:
    store(state, data_batch(0, 7, 0, MAX_SEQUENCE - 1, count=2))
    refuse(state, OutOfOrderSequenceError, data_batch(2, 7, 0, 1))
    store(state, data_batch(2, 7, 0, 0), origin=CLIENT)
    # A batch may lie across the end.
    store(state, data_batch(3, 8, 0, MAX_SEQUENCE - 1, count=4), origin=CLIENT)
    assert state.entry(8).last_sequence == 1
    assert state.entry(8).batches[0].first_sequence == MAX_SEQUENCE - 1
    store(state, data_batch(7, 8, 0, 2), origin=CLIENT)


def test_a_new_epoch_begins_at_0_and_shuts_out_the_former(state: ProducerStateManager) -> None:
    store(state, data_batch(0, 7, 0, 0, count=3))
    fields = refuse(state, OutOfOrderSequenceError, data_batch(3, 7, 1, 3))
    assert fields["expected_sequence"] == 0
    store(state, data_batch(3, 7, 1, 0), origin=CLIENT)
    for origin in (CLIENT, COORDINATOR):
        fields = refuse(state, ProducerFencedError, data_batch(4, 7, 0, 3), origin=origin)
        assert fields == {"producer_id": 7, "epoch": 0, "current_epoch": 1}
    store(state, data_batch(4, 7, 1, 1), origin=CLIENT)


def test_an_epoch_that_only_a_marker_has_shown_begins_at_0(state: ProducerStateManager) -> None:
    store(state, data_batch(0, 7, 0, 0, is_transactional=True), marker_batch(1, 7, 1, ABORT))
    refuse(state, OutOfOrderSequenceError, data_batch(2, 7, 1, 1))
    store(state, data_batch(2, 7, 1, 0), origin=CLIENT)


def test_a_marker_of_the_same_epoch_keeps_the_sequence(state: ProducerStateManager) -> None:
    store(state, data_batch(0, 7, 0, 0, is_transactional=True), marker_batch(1, 7, 0, COMMIT))
    refuse(state, OutOfOrderSequenceError, data_batch(2, 7, 0, 0))
    store(state, data_batch(2, 7, 0, 1), origin=CLIENT)


def test_a_coordinator_has_no_sequence(state: ProducerStateManager) -> None:
    store(state, data_batch(0, 7, 0, is_transactional=True), origin=COORDINATOR)
    store(state, data_batch(1, 7, 0, is_transactional=True), origin=COORDINATOR)
    assert ProducerAppend(state).duplicate_of([data_batch(2, 7, 0)]) is None
    # As the first sequence of the epoch: none is known.
    store(state, data_batch(2, 7, 0, 0, is_transactional=True), origin=CLIENT)


def test_replication_takes_what_is_in_the_log(state: ProducerStateManager) -> None:
    store(state, data_batch(0, 7, 5, 9, is_transactional=True), data_batch(1, 7, 4, 3), origin=REPLICATION)
    store(state, marker_batch(2, 7, 3, ABORT, coordinator_epoch=2), origin=REPLICATION)
    store(state, marker_batch(3, 7, 3, ABORT, coordinator_epoch=1), origin=REPLICATION)
    assert state.entry(7)[:3] == (7, 3, 1)


def test_a_transaction_takes_transactional_batches_only(state: ProducerStateManager) -> None:
    store(state, data_batch(0, 7, 0, 0, is_transactional=True))
    for origin in (CLIENT, COORDINATOR):
        fields = refuse(state, InvalidTxnStateError, data_batch(1, 7, 0, 1), origin=origin)
        assert fields == {"producer_id": 7, "epoch": 0, "current_txn_first_offset": 0}
    store(state, marker_batch(1, 7, 0, COMMIT), origin=COORDINATOR)
    store(state, data_batch(2, 7, 0, 1), origin=CLIENT)


def test_a_marker_comes_from_the_current_coordinator_and_epoch(state: ProducerStateManager) -> None:
    store(state, marker_batch(0, 7, 1, COMMIT, coordinator_epoch=4), origin=COORDINATOR)
    fields = refuse(
        state, CoordinatorFencedError, marker_batch(1, 7, 1, ABORT, coordinator_epoch=3), origin=COORDINATOR
    )
    assert fields == {"producer_id": 7, "coordinator_epoch": 3, "current_coordinator_epoch": 4}
    refuse(state, ProducerFencedError, marker_batch(1, 7, 0, ABORT, coordinator_epoch=4), origin=COORDINATOR)
    store(state, marker_batch(1, 7, 1, ABORT, coordinator_epoch=4), origin=COORDINATOR)


def test_the_last_five_batches_are_recognised(state: ProducerStateManager) -> None:
    for number in range(7):
        store(state, data_batch(10 * number, 7, 0, 2 * number, count=2, timestamp_ms=number))
    append = ProducerAppend(state)
    for number in range(2, 7):
        again = data_batch(99, 7, 0, 2 * number, count=2)
        assert append.duplicate_of([again]) == duplicate(10 * number, 10 * number + 1)
    for other in (
        data_batch(99, 7, 0, 2, count=2),
        data_batch(99, 7, 0, 4, count=3),
        data_batch(99, 7, 0, 5, count=1),
        data_batch(99, 7, 1, 4, count=2),
        data_batch(99, 8, 0, 4, count=2),
        data_batch(99),
    ):
        assert append.duplicate_of([other]) is None
    # A batch from too far back is refused, not stored twice.
    refuse(state, OutOfOrderSequenceError, data_batch(99, 7, 0, 2, count=2))


def test_a_batch_across_the_end_of_the_sequences_is_recognised(state: ProducerStateManager) -> None:
    store(state, data_batch(0, 7, 0, MAX_SEQUENCE, count=3))
    again = data_batch(9, 7, 0, MAX_SEQUENCE, count=3)
    assert ProducerAppend(state).duplicate_of([again]) == duplicate(0, 2)


def test_a_request_is_a_repetition_as_a_whole_or_not_at_all(state: ProducerStateManager) -> None:
    first, second, third = (data_batch(number, 7, 0, number, timestamp_ms=number) for number in range(3))
    store(state, first, second)
    append = ProducerAppend(state)
    assert append.duplicate_of([first, second]) == duplicate(0, 1)
    assert append.duplicate_of([second, third]) is None
    assert append.duplicate_of([]) is None
    refuse(state, OutOfOrderSequenceError, second, third)


def test_staged_requests_are_checked_against_each_other(state: ProducerStateManager) -> None:
    append = ProducerAppend(state)
    append.stage([data_batch(0, 7, 0, 0)], CLIENT)
    with pytest.raises(OutOfOrderSequenceError):
        append.stage([data_batch(1, 7, 0, 2)], CLIENT)
    append.stage([data_batch(1, 7, 0, 1)], CLIENT)
    assert append.duplicate_of([data_batch(2, 7, 0, 1)]) == duplicate(1, 1)
    assert not state.producers
    assert append.commit() == []
    assert state.entry(7).last_sequence == 1
    assert state.map_end_offset == 2


def test_what_was_discarded_never_happened(state: ProducerStateManager) -> None:
    append = ProducerAppend(state)
    append.stage([data_batch(0, 7, 0, 0, is_transactional=True)], CLIENT)
    append.discard()
    assert append.duplicate_of([data_batch(0, 7, 0, 0)]) is None
    append.stage([data_batch(0, 8, 0, 0, is_transactional=True)], CLIENT)
    append.commit()
    assert state.open_transactions == ((8, 0),)


def test_transactions_that_end_in_what_is_staged_are_told_in_order(state: ProducerStateManager) -> None:
    append = ProducerAppend(state)
    append.stage([data_batch(0, 7, 0, 0, is_transactional=True)], CLIENT)
    append.stage([data_batch(1, 8, 0, 0, is_transactional=True)], CLIENT)
    append.stage([marker_batch(2, 7, 0, ABORT)], COORDINATOR)
    append.stage([marker_batch(3, 8, 0, COMMIT)], COORDINATOR)
    assert append.commit() == [(7, 0, 2, True, 1), (8, 1, 3, False, 4)]
