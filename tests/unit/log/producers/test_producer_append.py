"""Batches as producer state sees them: fields of a refusal, origins, and requests that are staged together.

tests/property/test_producer_state.py has an oracle for which batches are accepted, refused or recognised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import (
    CoordinatorFencedError,
    CorruptRecordError,
    InvalidTxnStateError,
    LogStoreError,
    OutOfOrderSequenceError,
    ProducerFencedError,
)
from stratalog.log.append_info import AppendInfo
from stratalog.log.producers.producer_append import AppendOrigin, ProducerAppend
from stratalog.log.producers.producer_batch import ProducerBatch, producer_batches
from stratalog.log.producers.producer_snapshot_files import ProducerSnapshotFiles
from stratalog.log.producers.producer_state_manager import ProducerStateManager
from stratalog.record.batch import batches
from stratalog.record.batch_producer import MAX_SEQUENCE, add_to_sequence
from stratalog.record.end_transaction_marker import ControlType
from stratalog.segment.batch_walk import LocatedBatch, walk
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.producer_batches import data_batch, marker_batch
from tests.support.places import GOLDEN

CLIENT, COORDINATOR, REPLICATION = AppendOrigin
ABORT, COMMIT = ControlType
TRANSACTIONS = GOLDEN / "data" / "g1-txn-0" / f"{2:020d}.log"


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


def data(offset: int, sequence: int, *, epoch: int = 1, txn: bool = True) -> ProducerBatch:
    """A batch of producer 7."""
    return data_batch(offset, 7, epoch, sequence, is_transactional=txn)


@pytest.mark.parametrize(
    ("batch", "origin", "error", "fields"),
    [
        (data(2, 0), CLIENT, OutOfOrderSequenceError, {"sequence": 0, "expected_sequence": 1}),
        (data(2, 2), CLIENT, OutOfOrderSequenceError, {"sequence": 2, "expected_sequence": 1}),
        (data(2, 1, epoch=2), CLIENT, OutOfOrderSequenceError, {"sequence": 1, "expected_sequence": 0}),
        (data(2, 1, epoch=0), CLIENT, ProducerFencedError, {"current_epoch": 1}),
        (data(2, 1, epoch=0), COORDINATOR, ProducerFencedError, {"current_epoch": 1}),
        (data(2, 1, txn=False), CLIENT, InvalidTxnStateError, {"current_txn_first_offset": 1}),
        (data(2, 1, txn=False), COORDINATOR, InvalidTxnStateError, {"current_txn_first_offset": 1}),
    ],
)
def test_a_refused_batch_changes_nothing_and_its_error_names_producer_and_epoch(
    state: ProducerStateManager,
    batch: ProducerBatch,
    origin: AppendOrigin,
    error: type[LogStoreError],
    fields: dict[str, object],
) -> None:
    store(state, marker_batch(0, 7, 1, COMMIT), data(1, 0))
    assert refusal(state, error, batch, origin) == {
        "producer_id": 7,
        "epoch": batch.header.producer_epoch,
        **fields,
    }


def test_a_marker_of_an_old_coordinator_is_refused_with_both_epochs(state: ProducerStateManager) -> None:
    store(state, marker_batch(0, 7, 1, COMMIT, coordinator_epoch=4))
    marker = marker_batch(1, 7, 1, ABORT, coordinator_epoch=3)
    fields = {"producer_id": 7, "coordinator_epoch": 3, "current_coordinator_epoch": 4}
    assert refusal(state, CoordinatorFencedError, marker, COORDINATOR) == fields


def refusal(
    state: ProducerStateManager, error: type[LogStoreError], batch: ProducerBatch, origin: AppendOrigin
) -> dict[str, object]:
    """The fields of the error; nothing of the batch is staged or stored."""
    append, before = ProducerAppend(state), dict(state.producers)
    with pytest.raises(error) as caught:
        append.stage([batch], origin)
    assert append.commit() == []
    assert state.producers == before
    return caught.value.fields


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


def test_a_request_is_a_repetition_as_a_whole_or_not_at_all(state: ProducerStateManager) -> None:
    first, second, third = (data_batch(number, 7, 0, number, timestamp_ms=number) for number in range(3))
    store(state, first, second)
    append = ProducerAppend(state)
    assert append.duplicate_of([first, second]) == duplicate(0, 1)
    assert append.duplicate_of([second, third]) is None
    assert append.duplicate_of([]) is None
    with pytest.raises(OutOfOrderSequenceError):
        append.stage([second, third], CLIENT)


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


def test_transactions_that_end_in_what_is_staged_are_handed_out_in_order(state: ProducerStateManager) -> None:
    append = ProducerAppend(state)
    append.stage([data_batch(0, 7, 0, 0, is_transactional=True)], CLIENT)
    append.stage([data_batch(1, 8, 0, 0, is_transactional=True)], CLIENT)
    append.stage([marker_batch(2, 7, 0, ABORT)], COORDINATOR)
    append.stage([marker_batch(3, 8, 0, COMMIT)], COORDINATOR)
    assert append.commit() == [(7, 0, 2, True, 1), (8, 1, 3, False, 4)]


@given(sequence=st.integers(0, MAX_SEQUENCE), count=st.integers(0, MAX_SEQUENCE))
def test_sequences_go_round(sequence: int, count: int) -> None:
    assert add_to_sequence(sequence, count) == (sequence + count) % 2**31
    assert add_to_sequence(add_to_sequence(sequence, count), -count) == sequence


def test_a_batch_ends_with_the_sequence_of_its_last_record() -> None:
    assert data_batch(0, 7, 0, 5, count=3).last_sequence == 7
    assert data_batch(0, 7, 0, MAX_SEQUENCE, count=3).last_sequence == 1
    assert data_batch(0, 7, 0, count=3).last_sequence == -1


def test_what_the_log_gives_a_batch() -> None:
    batch = data_batch(0, 7, 0, 5, count=3, timestamp_ms=9)
    kept, replaced = batch.stamped(100, None), batch.stamped(100, 50)
    assert (kept.header.base_offset, kept.header.last_offset, kept.header.max_timestamp) == (100, 102, 9)
    assert (replaced.header.base_offset, replaced.header.max_timestamp) == (100, 50)
    assert kept.header._replace(base_offset=0) == batch.header


def test_a_file_gives_the_batches_with_their_markers() -> None:
    data = TRANSACTIONS.read_bytes()
    filesystem = MemoryFileSystem()
    file = filesystem.open_append("/txn.log")
    file.append([data])
    expected = [ProducerBatch.read(data, position, header) for position, header in batches(data)]
    found = list(producer_batches(file, walk(file, 0, len(data))))
    assert found == expected
    assert {batch.marker is not None for batch in found} == {False, True}
    position, header = next(item for item in batches(data) if item[1].is_control)
    file.truncate(position + header.size_in_bytes - 1)
    with pytest.raises(CorruptRecordError):
        list(producer_batches(file, [LocatedBatch(position, header)]))
