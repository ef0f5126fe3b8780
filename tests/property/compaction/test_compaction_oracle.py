"""Random lives of a shard, held against the oracle after every compaction."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.compaction.time_to_horizon import time_to_horizon_ms
from tests.support.logs.sampling import examples_of
from tests.support.tiered.compaction_history import CompactionHistory

STEPS = 14


@settings(max_examples=examples_of(3))
@given(st.integers(0, 2**32))
def test_a_random_life_keeps_every_promise(seed: int) -> None:
    """And a shard that has become quiet ends without tombstones whose time is over."""
    history = CompactionHistory(seed)
    for _ in range(STEPS):
        history.step()
    history.settle()
    # Longer than every retention and lag: after one more pass that stamps, the next one removes.
    for _ in range(2):
        history.clock.advance(time_to_horizon_ms(10_000))
        history.settle()
    for tip, oracle in history.oracles.items():
        if oracle.is_compacted:
            records = history.tiered.records(tip)
            assert not oracle.overdue_tombstones(records, history.clock.now_ms())
