"""Producer state against an oracle that scans the whole log, over random histories of a few producers.

Actions are drawn close to what is allowed: the next epoch and sequence, give or take a little, so that about
half of them are accepted and every refusal happens.
"""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import event, given
from hypothesis import strategies as st

from stratalog.base.errors import LogStoreError
from stratalog.log.producers.producer_append import AppendOrigin, ProducerAppend
from stratalog.log.producers.producer_batch import ProducerBatch
from stratalog.log.producers.producer_snapshot import ProducerSnapshot
from stratalog.log.producers.producer_snapshot_files import ProducerSnapshotFiles
from stratalog.log.producers.producer_state_manager import ProducerStateManager
from stratalog.record.end_transaction_marker import ControlType
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.producer_batches import data_batch, marker_batch
from tests.support.logs.producer_oracle import SEQUENCES, ProducerOracle, Row

EXPIRATION_MS = 50


class Action(NamedTuple):
    """The next step of a producer, or of the coordinator for it. `back`: sequences before the expected
    one."""

    producer_id: int
    kind: str
    epoch_step: int
    back: int
    record_count: int
    coordinator_epoch: int


ACTIONS = st.builds(
    Action,
    producer_id=st.integers(0, 3),
    kind=st.sampled_from(["plain", "txn", "txn", "commit", "abort"]),
    epoch_step=st.sampled_from([0, 0, 0, 0, 0, 1, -1]),
    back=st.sampled_from([0, 0, 0, 0, 1, 2, 6, -1]),
    record_count=st.integers(1, 3),
    coordinator_epoch=st.sampled_from([0, 0, 1]),
)
HISTORIES = st.lists(ACTIONS, max_size=40)
FIRST_SEQUENCES = st.sampled_from([0, 5, SEQUENCES - 2, SEQUENCES - 7])


def batch_of(action: Action, oracle: ProducerOracle, first_sequence: int) -> ProducerBatch:
    """The action as a batch at the log's end. Its timestamp is the offset, so producers age at their pace."""
    row = oracle.rows().get(action.producer_id)
    epoch = max(0, (row.epoch if row else 0) + action.epoch_step)
    base_offset = oracle.end_offset
    if action.kind in ("commit", "abort"):
        control_type = ControlType[action.kind.upper()]
        return marker_batch(
            base_offset,
            action.producer_id,
            epoch,
            control_type,
            coordinator_epoch=action.coordinator_epoch,
            timestamp_ms=base_offset,
        )
    expected = first_sequence if row is None else row.last_sequence + 1
    if row is not None and epoch != row.epoch:
        expected = 0
    return data_batch(
        base_offset,
        action.producer_id,
        epoch,
        (expected - action.back) % SEQUENCES,
        count=action.record_count,
        is_transactional=action.kind == "txn",
        timestamp_ms=base_offset,
    )


def new_state() -> ProducerStateManager:
    filesystem = MemoryFileSystem()
    filesystem.make_directories("/log")
    files = ProducerSnapshotFiles(filesystem, "/log")
    return ProducerStateManager(files, producer_id_expiration_ms=EXPIRATION_MS)


def reopened(state: ProducerStateManager) -> ProducerStateManager:
    """Another process's, on the same snapshots."""
    return ProducerStateManager(state.snapshot_files, producer_id_expiration_ms=EXPIRATION_MS)


def answer_of(
    append: ProducerAppend, batch: ProducerBatch, aborted: list[AbortedTransaction]
) -> str | tuple[int, int]:
    """The answer of a leader to the batch."""
    origin = AppendOrigin.CLIENT if batch.marker is None else AppendOrigin.COORDINATOR
    duplicate = append.duplicate_of([batch])
    if duplicate is not None:
        return duplicate.base_offset, duplicate.last_offset
    try:
        append.stage([batch], origin)
    except LogStoreError as error:
        return error.code
    aborted += [txn.index_entry for txn in append.commit() if txn.is_aborted]
    return batch.header.base_offset, batch.header.last_offset


def rows_of(state: ProducerStateManager) -> dict[int, Row]:
    rows: dict[int, Row] = {}
    for entry in state.snapshot().entries:
        last = entry.batches[-1] if entry.batches else None
        rows[entry.producer_id] = Row(
            epoch=entry.epoch,
            coordinator_epoch=entry.coordinator_epoch,
            last_sequence=last.last_sequence if last else -1,
            last_offset=last.last_offset if last else -1,
            offset_delta=last.offset_delta if last else 0,
            timestamp_ms=entry.last_timestamp_ms,
            txn_first_offset=-1 if entry.current_txn_first_offset is None else entry.current_txn_first_offset,
        )
    return rows


def accepted_log(history: list[Action], first_sequence: int) -> ProducerOracle:
    oracle = ProducerOracle()
    for action in history:
        batch = batch_of(action, oracle, first_sequence)
        if oracle.answer(batch) == (batch.header.base_offset, batch.header.last_offset):
            oracle.log.append(batch)
    return oracle


@given(
    history=HISTORIES,
    first_sequence=FIRST_SEQUENCES,
    lag=st.integers(0, 12),
    expiry=st.none() | st.integers(1, 5),
)
def test_a_leaders_state_is_what_the_log_says(
    history: list[Action], first_sequence: int, lag: int, expiry: int | None
) -> None:
    oracle, state = ProducerOracle(), new_state()
    append, aborted = ProducerAppend(state), list[AbortedTransaction]()
    for number, action in enumerate(history):
        batch = batch_of(action, oracle, first_sequence)
        expected = oracle.answer(batch)
        assert answer_of(append, batch, aborted) == expected
        if expected == (batch.header.base_offset, batch.header.last_offset):
            oracle.log.append(batch)
        event(expected if isinstance(expected, str) else "an answer with offsets")
        high_watermark = max(0, oracle.end_offset - lag)
        state.on_high_watermark_updated(high_watermark)
        if expiry is not None and number % expiry == 0:
            now_ms = oracle.end_offset + EXPIRATION_MS - 8
            for producer_id, row in oracle.rows().items():
                if row.txn_first_offset < 0 and now_ms - row.timestamp_ms >= EXPIRATION_MS:
                    oracle.forget(producer_id)
            state.remove_expired_producers(now_ms)
        state.check()
        assert rows_of(state) == oracle.rows()
        assert state.map_end_offset == oracle.end_offset
        assert state.first_unstable_offset == oracle.first_unstable_offset(high_watermark)
        assert state.open_transactions == tuple(
            txn[:2] for txn in oracle.transactions() if txn.marker_offset is None
        )
    assert aborted == oracle.aborted()


def signed(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-2, 2) | st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


@st.composite
def odd_batches(draw: st.DrawFn) -> ProducerBatch:
    """Any header that a log may have, with any marker."""
    kind = draw(st.sampled_from(["data", "marker", "removed marker"]))
    if kind == "data":
        batch = data_batch(0, count=draw(st.integers(1, 2**31 - 1)), is_transactional=draw(st.booleans()))
    else:
        control_type = draw(st.sampled_from(ControlType))
        batch = marker_batch(0, 0, 0, control_type, coordinator_epoch=draw(signed(32)))
    if kind == "removed marker":
        batch = batch._replace(marker=None)
    header = batch.header._replace(
        producer_id=draw(signed(64)),
        producer_epoch=draw(signed(16)),
        base_sequence=draw(signed(32)),
        max_timestamp=draw(signed(64)),
    )
    return batch._replace(header=header)


@given(log=st.lists(odd_batches(), max_size=12))
def test_whatever_is_in_a_log_can_be_replayed_and_kept(log: list[ProducerBatch]) -> None:
    state = new_state()
    for batch in log:
        state.append(batch.stamped(state.map_end_offset, None))
        state.check()
    snapshot = state.snapshot()
    again = ProducerSnapshot.from_bytes(snapshot.end_offset, snapshot.to_bytes())
    assert again.to_bytes() == snapshot.to_bytes()


@given(
    history=HISTORIES,
    first_sequence=FIRST_SEQUENCES,
    snapshot_every=st.integers(1, 9),
    cut=st.integers(0, 40),
    lag=st.integers(0, 12),
    data=st.data(),
)
def test_a_reload_at_any_point_gives_what_a_replay_from_0_gives(
    history: list[Action], first_sequence: int, snapshot_every: int, cut: int, lag: int, data: st.DataObject
) -> None:
    oracle, state = accepted_log(history, first_sequence), new_state()
    for number, batch in enumerate(oracle.log):
        state.append(batch)
        if number % snapshot_every == 0:
            state.take_snapshot()
    del oracle.log[min(cut, len(oracle.log)) :]
    high_watermark = max(0, oracle.end_offset - lag)
    loaded = reopened(state) if data.draw(st.booleans()) else state
    loaded.truncate_and_reload(0, oracle.end_offset, now_ms=0, high_watermark=high_watermark)
    loaded.check()
    assert all(offset <= oracle.end_offset for offset in loaded.snapshot_files.offsets)
    for batch in oracle.log:
        if batch.header.base_offset >= loaded.map_end_offset:
            loaded.append(batch)
    loaded.on_high_watermark_updated(high_watermark)
    loaded.check()
    assert rows_of(loaded) == oracle.rows()
    assert loaded.map_end_offset == oracle.end_offset
    assert loaded.first_unstable_offset == oracle.first_unstable_offset(high_watermark)
    # Producers go on where they were, whether or not the process did.
    append = ProducerAppend(loaded)
    for row_id, row in oracle.rows().items():
        batch = data_batch(
            oracle.end_offset,
            row_id,
            row.epoch,
            (row.last_sequence + 1) % SEQUENCES,
            is_transactional=row.txn_first_offset >= 0,
        )
        assert answer_of(append, batch, []) == oracle.answer(batch) == (oracle.end_offset, oracle.end_offset)
        oracle.log.append(batch)
        assert answer_of(append, batch, []) == oracle.answer(batch)
