"""The compactor: writes one object for a run of slices and replaces them by it."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.protocol_model.commits import Outcome, commit, judged, put_object
from tests.support.protocol_model.rules import Rule
from tests.support.protocol_model.state import (
    GAP,
    Actor,
    Dropped,
    Head,
    Model,
    Move,
    Output,
    Record,
    Slice,
    State,
    Stored,
)

REUSED_NAMES = 900
"""Where names begin that are used twice."""


def compactor(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """The steps of a compactor."""
    if actor.attempt is not None:
        yield from commit(model, state, actor)
    elif actor.phase == "commit":
        yield judge(model, state, actor)
    elif actor.life > 0:
        for inputs in runs(model, state):
            yield from compact(model, state, actor, inputs)


def runs(model: Model, state: State) -> Iterator[tuple[Slice, ...]]:
    """The rows of slices that are worth a job."""
    slices = state.head.slices
    have = {one.name for one in state.bucket}
    for first in range(len(slices)):
        for end in range(first + 1, len(slices) + 1):
            run = slices[first:end]
            is_uncompacted = first == 0 and state.head.compacted_upto < run[-1].end
            objects = [one.object for one in run if one.object != GAP]
            has_gap = len(objects) < len(run)
            if has_gap and model.has(Rule.GAP_STAYS):
                continue
            if (len(run) > 1 or is_uncompacted) and objects and have.issuperset(objects):
                yield run


def survivors(
    model: Model, state: State, inputs: tuple[Slice, ...], *, is_covering: bool
) -> Iterator[Record]:
    """The newest record of each key, without tombstones if the job covers the partition from its start."""
    have = state.object_records()
    records = [record for one in inputs if one.object != GAP for record in have[one.object]]
    newest = {record.written.key: record.offset for record in records}
    strips = is_covering or not model.has(Rule.TOMBSTONE_COVER)
    for record in records:
        is_newest = newest[record.written.key] == record.offset
        if is_newest and not (strips and record.written.is_tombstone):
            yield record


def compact(model: Model, state: State, actor: Actor, inputs: tuple[Slice, ...]) -> Iterator[Move]:
    """A compactor writes the output of a run."""
    is_covering = inputs[0] == state.head.slices[0]
    kept = tuple(survivors(model, state, inputs, is_covering=is_covering))
    is_fresh = model.has(Rule.FRESH_NAMES)
    name = state.next_id if is_fresh else REUSED_NAMES + inputs[0].base
    output = Output(Stored(name, state.head.seq, kept), inputs[0].base, inputs[-1].end)
    life = actor.life - 1
    for after, outcome in put_object(state._replace(next_id=state.next_id + 1), output.stored):
        if outcome is Outcome.UNKNOWN and is_fresh:
            yield Move(f"compacts into {name}: unknown, gives up", after, Actor("compactor", life=life))
            continue
        numbers = [record.number for record in kept]
        label = f"compacts {[one.object for one in inputs]} into {name} keeping {numbers}"
        job = Actor("compactor", life, "commit", output=output, inputs=inputs, is_covering=is_covering)
        yield Move(label, after, job)


def judge(model: Model, state: State, actor: Actor) -> Move:
    """A compactor reads the head and finds its `replace` valid or not."""
    output, head = actor.output, state.head
    assert output is not None
    rest = remaining_inputs(model, head, actor.inputs)
    if not rest or (model.has(Rule.BIRTH_OF_OBJECTS) and output.stored.birth < head.horizon):
        return Move("finds its inputs gone, gives up", state, Actor("compactor", life=actor.life))
    changed = replaced(model, head, actor, rest)
    what = f"replaces {[one.object for one in actor.inputs]} by {output.stored.name}"
    state, actor = judged(state, actor, changed, what, then="idle", again="commit")
    return Move("reads the head", state, actor)


def remaining_inputs(model: Model, head: Head, inputs: tuple[Slice, ...]) -> tuple[Slice, ...]:
    """The inputs that are live exactly as planned: all of them, or those that retention left."""
    count = len(inputs)
    if any(head.slices[at : at + count] == inputs for at in range(len(head.slices))):
        return inputs
    for lost in range(1, count):
        rest = inputs[lost:]
        if inputs[lost - 1].end <= head.log_start and head.slices[: len(rest)] == rest:
            return rest
    if not model.has(Rule.REPLACE_LIVE_INPUTS) and any(one.base == inputs[0].base for one in head.slices):
        return inputs
    return ()


def replaced(model: Model, head: Head, actor: Actor, rest: tuple[Slice, ...]) -> Head:
    """The state in which the output lies where the rest of the inputs was."""
    output = actor.output
    assert output is not None
    base, end, name = rest[0].base, output.end, output.stored.name
    others = [one for one in head.slices if one.base < base or one.end > end]
    gone = rest if model.has(Rule.REPLACE_LIVE_INPUTS) else actor.inputs
    dropped = frozenset(Dropped(one.object, head.seq + 1) for one in gone if one.object not in (GAP, name))
    moves_upto = actor.is_covering or not model.has(Rule.COMPACTED_UPTO_COVER)
    return head._replace(
        slices=tuple(sorted([*others, Slice(base, end, name)])),
        dropped=head.dropped | dropped if model.has(Rule.KEEP_DROPPED) else head.dropped,
        compacted_upto=max(head.compacted_upto, end) if moves_upto else head.compacted_upto,
    )
