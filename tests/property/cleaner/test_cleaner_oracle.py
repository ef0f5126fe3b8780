"""Cleaning against an independent oracle: whatever was written, and however it is cleaned, the last value of
each key is what it was, offsets and their order do not change, and nothing goes without a reason."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.log.config_key import LONG_MAX
from tests.support.cleaner.cleaning_history import PRODUCER_COUNT, CleaningHistory
from tests.support.logs.sampling import examples_of

STEPS = (
    ["write"] * 8
    + ["transact"] * 5
    + ["produce"] * 2
    + ["commit", "commit", "abort", "abort", "bump"]
    + ["roll"] * 3
    + ["clean"] * 4
    + ["clean if due"] * 2
    + ["break off", "advance", "advance", "jump", "delete", "restart", "kill", "lose"]
)


CLEANS = ("clean", "clean if due", "break off")


def clean(history: CleaningHistory, step: str) -> None:
    chance = history.chance
    if step == "clean":
        history.clean(chance.choice([1, 2, 3, 1000]))
    elif step == "break off":
        history.clean(break_off_after=chance.randrange(12))
    else:
        history.clean_if_due(
            min_lag_ms=chance.choice([0, 10, 5000, 40_000]),
            max_lag_ms=chance.choice([LONG_MAX, 40_000, 100_000]),
            min_ratio=chance.choice([0.0, 0.5, 1.0]),
        )


def play(history: CleaningHistory, step: str) -> None:
    chance, machine, log = history.chance, history.machine, history.log
    producer_id = chance.randrange(PRODUCER_COUNT)
    if step == "write":
        history.write()
    elif step == "transact":
        history.write_as(producer_id)
    elif step == "produce":
        history.write_as(producer_id, is_transactional=False)
    elif step in ("commit", "abort"):
        history.end_transaction(producer_id, committed=step == "commit")
    elif step == "roll":
        log.roll()
    elif step == "bump":
        history.bump(producer_id)
    elif step in CLEANS:
        clean(history, step)
    elif step == "advance":
        machine.clock.advance(chance.choice([10, 30_000, 60_000]))
    elif step == "jump":
        machine.clock.set_wall_ms(machine.clock.now_ms() + chance.choice([-70_000, -1000, 40_000]))
    elif step == "delete":
        history.delete_records(chance.random() / 2)
    else:
        history.restart(is_clean=step == "restart", loses_files=step == "lose")


@given(seed=st.integers(0, 2**32), steps=st.lists(st.sampled_from(STEPS), min_size=1, max_size=120))
def test_a_log_that_is_cleaned_again_and_again_keeps_what_it_must(seed: int, steps: list[str]) -> None:
    history = CleaningHistory(random.Random(seed))
    for step in steps:
        play(history, step)
    for producer_id in range(PRODUCER_COUNT):
        history.end_transaction(producer_id, committed=producer_id > 0)
    history.log.roll()
    history.write()
    while history.clean(2) is not None:
        pass
    history.restart(is_clean=False)
    history.restart(is_clean=False, loses_files=True)


@settings(max_examples=examples_of(8))
@given(seed=st.integers(0, 2**32))
def test_long_histories(seed: int) -> None:
    """Lists that Hypothesis makes are short as a rule: here are those that are not."""
    history = CleaningHistory(random.Random(seed))
    for _ in range(300):
        play(history, history.chance.choice(STEPS))
    history.oracle.verify(history.log)
