"""The moves of a partition between the cleaner and those who pause it are those of the module's diagram."""

from __future__ import annotations

import re

import pytest

from stratalog.cleaner import cleaning_state
from stratalog.cleaner.cleaning_state import CleaningPhase, CleaningState

DIAGRAM: list[tuple[str, str, str, str]] = re.findall(
    r"^    (\w[\w ]*?) +(begin|end|pause|resume) +-> (idle|in progress|paused|aborted)(.*)$",
    cleaning_state.__doc__ or "",
    re.MULTILINE,
)
STATES = [CleaningState(is_running, count) for is_running in (False, True) for count in range(4)]
MOVES = ("begin", "end", "pause", "resume")


def test_the_diagram_is_read_whole() -> None:
    assert len(DIAGRAM) == 9


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("move", MOVES)
def test_a_move_leads_where_the_diagram_says(state: CleaningState, move: str) -> None:
    rows = [
        (after, note) for before, name, after, note in DIAGRAM if (before, name) == (state.phase.value, move)
    ]
    if not rows:
        with pytest.raises(AssertionError):
            getattr(state, move)()
        return
    ((after, note),) = rows
    last = re.search(r"or (\w[\w ]*), with the last pause", note)
    if last and state.pause_count == 1:
        after = last.group(1)
    assert getattr(state, move)().phase is CleaningPhase(after)


def test_pauses_are_counted() -> None:
    state = CleaningState().begin().pause().pause().end()
    assert state == CleaningState(is_running=False, pause_count=2)
    assert state.resume().resume() == CleaningState()
