"""How long what is dirty waits at most, where the times of the segments are in any order.

Producers' clocks differ, and records are written that are about the past: the oldest dirty segment need not
be the first one.
"""

from __future__ import annotations

import dataclasses
from itertools import permutations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stratalog.log.config_key import LONG_MAX
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from tests.support.cleaner.cleaner_machine import COMPACTED, CleanerMachine

HOUR_MS = 3_600_000
RATIO_NEVER_REACHED = 1.0
LAG_MS = 3 * HOUR_MS
BOUNDED = dataclasses.replace(
    COMPACTED,
    min_cleanable_dirty_ratio=RATIO_NEVER_REACHED,
    max_compaction_lag_ms=LAG_MS,
    message_timestamp_after_max_ms=LONG_MAX,
)


class TimedLog:
    """A log whose segments are as old as a test says. Used by one thread."""

    def __init__(self, clean_ages_ms: list[int], dirty_ages_ms: list[int]) -> None:
        """Each segment has one record of that age. The clean ones went through a clean."""
        self.machine = CleanerMachine()
        self.log = self.machine.open(0, COMPACTED)
        self.begun_ms = self.machine.clock.now_ms()
        self._write(clean_ages_ms)
        if clean_ages_ms:
            found = self.machine.manager.take_filthiest()
            assert found is not None
            self.machine.manager.done(found, len(clean_ages_ms))
        self.log.reconfigure(BOUNDED)
        self._write(dirty_ages_ms)

    def _write(self, ages_ms: list[int]) -> None:
        for age_ms in ages_ms:
            self.log.appender.append_as_leader(
                encode_batch([Record(0, self.begun_ms - age_ms, b"k", b"v")]), 1
            )
            self.log.roll()

    def delay_ms(self) -> int | None:
        """The delay of the clean that is due; None where none is."""
        found = self.machine.manager.take_filthiest()
        assert self.machine.manager.failures() == ()
        if found is None:
            assert self.machine.manager.last_survey.max_compaction_delay_ms == 0
            return None
        self.machine.manager.release(found.partition)
        assert found.is_forced
        return found.compaction_delay_ms


@given(
    clean_hours=st.lists(st.integers(0, 9), max_size=2),
    dirty_hours=st.lists(st.integers(-5, 9), min_size=1, max_size=5),
    wait_hours=st.integers(0, 4),
)
@example(clean_hours=[], dirty_hours=[0, 4], wait_hours=0)
@example(clean_hours=[9], dirty_hours=[1, 0, 5, 2], wait_hours=1)
def test_the_oldest_dirty_segment_says_how_long_the_log_waits(
    clean_hours: list[int], dirty_hours: list[int], wait_hours: int
) -> None:
    """Wherever it is. What is clean waits for nothing, however old it is."""
    timed = TimedLog([hours * HOUR_MS for hours in clean_hours], [hours * HOUR_MS for hours in dirty_hours])
    timed.machine.clock.advance(wait_hours * HOUR_MS)
    waited_hours = max(dirty_hours) + wait_hours
    assert timed.delay_ms() == ((waited_hours - 3) * HOUR_MS if waited_hours > 3 else None)


@pytest.mark.parametrize("ages_ms", list(permutations([0, HOUR_MS, LAG_MS])))
def test_no_message_is_ineligible_for_longer_than_max_compaction_lag(ages_ms: tuple[int, ...]) -> None:
    """To the millisecond, in whichever order they were written."""
    timed = TimedLog([], list(ages_ms))
    assert timed.delay_ms() is None
    timed.machine.clock.advance(1)
    assert timed.delay_ms() == 1
    found = timed.machine.manager.take_filthiest()
    assert found is not None
    assert (found.first_dirty_offset, found.first_uncleanable_offset) == (0, 3)
