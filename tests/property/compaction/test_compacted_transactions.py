"""Random lives of partitions with transactions, held against the oracle after every compaction."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.compaction.time_to_horizon import time_to_horizon_ms
from tests.support.compaction.transactional_history import DELETE_RETENTION_MS, TransactionalHistory
from tests.support.logs.sampling import examples_of

STEPS = 12


@settings(max_examples=examples_of(3))
@given(st.integers(0, 2**32))
def test_a_life_with_transactions_keeps_every_promise(seed: int) -> None:
    """And once all transactions have ended, a quiet shard has neither aborted records nor markers without
    data, and `compacted_upto` is at its end."""
    history = TransactionalHistory(seed)
    for _ in range(STEPS):
        history.step()
    history.settle()
    history.require_scans()
    history.upload(ends_all=True)
    history.settle()
    # One job finds no data of a transaction, and one drops its marker.
    for _ in range(4):
        history.clock.advance(2 * time_to_horizon_ms(DELETE_RETENTION_MS))
        history.settle()
    history.require_scans()
    for tip, written in history.written.items():
        partition = history.tiered.partition(tip)
        assert history.has_bound or partition.compacted_upto == partition.tiered_end_offset
        left = {record.offset for record in history.tiered.records(tip)}
        assert not any(written.is_aborted(offset) for offset in left if offset < partition.compacted_upto)
