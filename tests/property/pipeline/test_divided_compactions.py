"""A job that is divided among the tasks of a cluster makes the slices that it would make alone, byte for
byte, in random lives of shards, and each promise of compaction holds."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.compaction.both_ways import BothWays
from tests.support.compaction.transactional_history import TransactionalHistory
from tests.support.logs.sampling import examples_of
from tests.support.tiered.compaction_history import CompactionHistory

STEPS = 12


def _both_ways(history: CompactionHistory | TransactionalHistory, seed: int) -> BothWays:
    both = BothWays(Random(seed), history.store, history.clock)
    history.tiered.execution_elsewhere = both.execution
    return both


@settings(max_examples=examples_of(16))
@given(st.integers(0, 2**32))
def test_a_random_life_with_tombstones_and_plain_topics(seed: int) -> None:
    history = CompactionHistory(seed)
    both = _both_ways(history, seed)
    for _ in range(STEPS):
        history.step()
    history.bounds = {"max_inputs_per_job": 64, "max_job_bytes": 1 << 30}
    history.settle()
    assert both.cluster.task_count


@settings(max_examples=examples_of(16))
@given(st.integers(0, 2**32))
def test_a_random_life_with_transactions(seed: int) -> None:
    history = TransactionalHistory(seed)
    both = _both_ways(history, seed)
    for _ in range(STEPS):
        history.step()
    history.upload(ends_all=True)
    history.settle()
    assert both.cluster.task_count


def test_the_lives_divide_jobs_and_cut_outputs() -> None:
    """So the tests above speak of divided jobs."""
    divided_count = part_count = 0
    for seed in range(3):
        history = TransactionalHistory(seed)
        both = _both_ways(history, seed)
        for _ in range(STEPS):
            history.step()
        divided_count += both.divided_count
        part_count += both.part_count
    assert divided_count > 3
    assert part_count > divided_count
