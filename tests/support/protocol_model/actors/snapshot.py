"""The snapshot: a job that has seen a commit, and holds the state after it while others go on."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.protocol_model.commits import Outcome, commit, judged, next_head, put_head
from tests.support.protocol_model.rules import Rule
from tests.support.protocol_model.state import Actor, Head, HeadPut, Model, Move, Pin, State


def snapshot(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """The steps of a snapshot."""
    head, seen = state.head, actor.view
    if actor.attempt is not None:
        yield from commit(model, state, actor)
    elif seen is None:
        if actor.life > 0 and head.slices:
            yield Move(f"sees commit {head.seq}", state, actor._replace(life=actor.life - 1, view=head))
    elif actor.phase == "held":
        yield from let_go(model, state, actor, seen)
    else:
        pin = pin_of(model, head, seen)
        if pin is None:
            yield Move("reads the head: too late", state, Actor("snapshot", life=actor.life))
        else:
            changed = head._replace(pins=head.pins | {pin})
            what = f"pins the state after {seen.seq}"
            after, job = judged(state, actor, changed, what, then="held", again="idle")
            yield Move(f"reads the head to pin the state after {seen.seq}", after, job)


def pin_of(model: Model, head: Head, seen: Head) -> Pin | None:
    """The pin of the state of a head that was seen; None if it can no longer be taken."""
    for pin in head.pins:
        if pin.state_seq == seen.seq and pin.needs:
            return pin._replace(seq=head.seq + 1)
    roots = (head.checkpoint, *(one.checkpoint for one in head.dropped if one.checkpoint is not None))
    roots += tuple(one.base for one in head.replacements)
    base = max((one for one in roots if one.seq <= seen.seq), key=lambda one: one.seq, default=None)
    if base is None:
        return None
    if model.has(Rule.PIN_KEPT) and seen.seq < head.deleted_seq:
        return None
    if model.has(Rule.PIN_BUILT) and base.seq < head.deleted_brought_seq:
        return None
    needs = seen.live | base.files | seen.brought_between(base.seq, seen.seq)
    return Pin(head.seq + 1, base.seq, seen.seq, needs)


def let_go(model: Model, state: State, actor: Actor, seen: Head) -> Iterator[Move]:
    """A snapshot ends, with all pins of the state; so does one whose pin has ended."""
    head, done = state.head, Actor("snapshot", life=actor.life)
    kept = frozenset(pin for pin in head.pins if pin.state_seq != seen.seq)
    if kept == head.pins:
        yield Move("has lost its pin", state, done)
        return
    new, after = next_head(state, head._replace(pins=kept))
    for landed, outcome in put_head(model, after, HeadPut(head.uid, new)):
        if outcome is Outcome.LANDED:
            yield Move("lets go", landed, done)
