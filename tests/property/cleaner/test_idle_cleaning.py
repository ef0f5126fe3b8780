"""A log without writers: in the end no tombstone is left that a clean has met, no value is lost, and it
is not cleaned for ever."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tests.support.cleaner.cleaning_history import DELETE_RETENTION_MS, PRODUCER_COUNT, CleaningHistory
from tests.support.cleaner.idle_log import IdleLog

STEPS = (
    ["write"] * 6
    + ["transact"] * 6
    + ["produce"]
    + ["end"] * 3
    + ["roll"] * 3
    + ["clean"] * 3
    + ["advance", "advance", "delete", "restart"]
)


def play(history: CleaningHistory, step: str) -> None:
    chance = history.chance
    producer_id = chance.randrange(PRODUCER_COUNT)
    if step == "write":
        history.write()
    elif step == "transact":
        history.write_as(producer_id)
    elif step == "produce":
        history.write_as(producer_id, is_transactional=False)
    elif step == "end":
        history.end_transaction(producer_id, committed=chance.random() < 0.5)
    elif step == "roll":
        history.log.roll()
    elif step == "clean":
        history.clean(chance.choice([2, 5, 1000]))
    elif step == "advance":
        history.machine.clock.advance(chance.choice([10, 30_000, 60_000]))
    elif step == "delete":
        history.delete_records(chance.random() / 4)
    else:
        history.restart(is_clean=chance.random() < 0.5)


def idle(seed: int, steps: list[str], *, min_ratio: float, delete_retention_ms: int) -> IdleLog:
    history = CleaningHistory(random.Random(seed))
    for step in steps:
        play(history, step)
    for producer_id in range(PRODUCER_COUNT):
        history.end_transaction(producer_id, committed=history.chance.random() < 0.5)
    if history.chance.random() < 0.8:
        history.log.roll()
    return IdleLog(history, min_ratio=min_ratio, delete_retention_ms=delete_retention_ms)


@given(
    seed=st.integers(0, 2**32),
    steps=st.lists(st.sampled_from(STEPS), max_size=80),
    min_ratio=st.sampled_from([0.0, 0.0, 0.5, 1.0]),
    delete_retention_ms=st.sampled_from([0, 1, 1000, DELETE_RETENTION_MS, 3 * DELETE_RETENTION_MS]),
    step_ms=st.sampled_from([DELETE_RETENTION_MS // 3, DELETE_RETENTION_MS, 10 * DELETE_RETENTION_MS]),
    restarts=st.sampled_from([0.0, 0.0, 0.4]),
)
def test_in_the_end_nothing_is_left_that_had_its_time(
    seed: int, steps: list[str], min_ratio: float, delete_retention_ms: int, step_ms: int, restarts: float
) -> None:
    log = idle(seed, steps, min_ratio=min_ratio, delete_retention_ms=delete_retention_ms)
    former_count = len(log.horizons()) if delete_retention_ms < DELETE_RETENTION_MS else 0
    log.settle(step_ms, restarts)
    left = log.below_frontier()
    assert [one.offset for one in left if one.value is None] == []
    assert len({one.key for one in left}) == len(left)
    assert log.lonely_markers() == []
    # Behind those that took dirt there is one, and two more where it empties a transaction; where the note
    # was lost, one that finds nothing; and where the retention was longer once, one for each time of then.
    lost_count = 1 + log.loss_count
    assert log.recopy_count <= 3 * (1 + log.dirty_clean_count) + lost_count + former_count
    log.settle(100 * step_ms, 0.0)
    before = log.recopy_count
    log.settle(100 * step_ms, 0.0)
    assert log.recopy_count == before
