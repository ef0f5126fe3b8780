"""Three ways through the model: all states, random ones, and those of a known trace."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from tests.support.protocol_model.invariants import violation_of
from tests.support.protocol_model.scenarios import Scenario, cast
from tests.support.protocol_model.state import Model, State
from tests.support.protocol_model.world import Step, steps

_MAX_CLEANING_STEPS = 120


class Finding(NamedTuple):
    """An invariant that a state breaks, and the steps to it."""

    violation: str
    trace: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([self.violation, *(f"  {label}" for label in self.trace)])


class Exploration(NamedTuple):
    """The result of a search."""

    states: int
    is_whole: bool
    """Whether no state was left out."""
    finding: Finding | None


def explore(scenario: Scenario, model: Model, max_states: int) -> Exploration:
    """Visit all states, nearest first, until one breaks an invariant. With all rules, the bucket of a state
    without a next step must be one that can be cleaned up.
    """
    start = scenario.start()
    came_from: dict[State, tuple[State, str] | None] = {start: None}
    waiting = deque([start])
    is_whole = True
    while waiting:
        state = waiting.popleft()
        following = list(steps(model, state))
        violation = violation_of(state) or ("" if following or model.without else garbage_of(model, state))
        if violation:
            return Exploration(len(came_from), is_whole, Finding(violation, path_to(state, came_from)))
        for label, after in following:
            if after in came_from:
                continue
            if len(came_from) == max_states:
                is_whole = False
                break
            came_from[after] = state, label
            waiting.append(after)
    return Exploration(len(came_from), is_whole, None)


def path_to(state: State, came_from: dict[State, tuple[State, str] | None]) -> tuple[str, ...]:
    """The labels of the steps that lead to a state."""
    labels: list[str] = []
    while (step := came_from[state]) is not None:
        state, label = step
        labels.append(label)
    return tuple(reversed(labels))


def walk(scenario: Scenario, model: Model, chance: random.Random, max_steps: int) -> Finding | None:
    """Take steps at random. At the end the pins go, and the bucket must be one that can be cleaned up."""
    state = scenario.start()
    trace: list[str] = []
    for _ in range(max_steps):
        following = list(steps(model, state))
        if not following:
            break
        label, state = chance.choice(following)
        trace.append(label)
        if violation := violation_of(state):
            return Finding(violation, tuple(trace))
    if model.without:
        return None
    head, ghosts = state.head._replace(pins=frozenset()), state.ghosts._replace(pinned=frozenset())
    garbage = garbage_of(model, state._replace(head=head, ghosts=ghosts))
    return Finding(garbage, tuple(trace)) if garbage else None


class TraceError(Exception):
    """A trace has a step that the model does not have."""


def replay(scenario: Scenario, model: Model, trace: Sequence[str]) -> str:
    """The violation at the end of a trace, or nothing. A label may stand for several outcomes, which are all
    followed.

    Raises `TraceError` if no state on the way has a step of the trace.
    """
    states = [scenario.start()]
    for number, wanted in enumerate(trace):
        states = [after for state in states for label, after in steps(model, state) if label == wanted]
        if not states:
            raise TraceError(f"step {number}: {wanted}")
    return max(violation_of(state) for state in states)


def garbage_of(model: Model, state: State) -> str:
    """The objects that a fresh folder and a fresh collector leave in the bucket of a quiet system, or a
    violation on the way.
    """
    state = state._replace(net=frozenset(), delays=0, actors=cast(folder=1, collector=99))
    for _ in range(_MAX_CLEANING_STEPS):
        following = list(steps(model, state))
        if not following:
            break
        _, state = min(following, key=urgency)
        if violation := violation_of(state):
            return f"while cleaning: {violation}"
        if state.head.pins or not garbage_in(state):
            return ""
    return f"objects {sorted(garbage_in(state))} are never collected" if garbage_in(state) else ""


def urgency(step: Step) -> int:
    """The order in which cleaners work: deletions, then folds."""
    label, _ = step
    return 0 if "delete" in label else 1 if label.startswith("folder") else 2


def garbage_in(state: State) -> frozenset[int]:
    """The objects that are in the bucket, or on the list of dropped ones, and not part of the state."""
    names = {one.name for one in state.bucket} | {one.object for one in state.head.dropped}
    names |= {one.base.root for one in state.head.replacements}
    return frozenset(names - state.head.live - state.head.checkpoint.files)
