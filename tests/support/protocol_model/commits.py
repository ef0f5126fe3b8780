"""Commits: PUTs of a head whose outcome may be unknown, and how actors settle them."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, auto

from tests.support.protocol_model.rules import Rule
from tests.support.protocol_model.state import (
    GAP,
    NO_OWNER,
    Actor,
    Attempt,
    Brought,
    Ghosts,
    Head,
    HeadPut,
    Model,
    Move,
    State,
    Stored,
)

PUT = "put"
SETTLE = "settle"


class Outcome(Enum):
    LANDED = auto()
    REFUSED = auto()
    UNKNOWN = auto()


def next_head(state: State, changed: Head, by: int = NO_OWNER) -> tuple[Head, State]:
    """The head of a commit that makes the current state `changed`, with a fresh uid."""
    head = state.head
    fresh = changed.live - head.live
    brought = tuple(Brought(head.seq + 1, one.object) for one in changed.slices if one.object in fresh)
    uid = state.next_id
    new = changed._replace(
        seq=head.seq + 1,
        uid=uid,
        parent=head.uid,
        uids=(*head.uids, uid),
        by=by,
        brought=head.brought + brought,
    )
    return new, state._replace(next_id=uid + 1)


def judged(
    state: State, actor: Actor, changed: Head, what: str, *, then: str, again: str, by: int = NO_OWNER
) -> tuple[State, Actor]:
    """The actor has read the head and judged; its next step is the PUT. Both are steps of their own, because
    others may commit in between.
    """
    new, state = next_head(state, changed, by)
    attempt = Attempt(HeadPut(state.head.uid, new), what, then, again)
    return state, actor._replace(phase=PUT, attempt=attempt)


def put_head(model: Model, state: State, put: HeadPut) -> Iterator[tuple[State, Outcome]]:
    """All that a conditional PUT may do."""
    landed = land_head(model, state, put)
    if landed is None:
        yield state, Outcome.REFUSED
        return
    yield landed, Outcome.LANDED
    if state.delays:
        delayed = state.delays - 1
        yield landed._replace(delays=delayed), Outcome.UNKNOWN
        # It landed, the answer was lost, and a client or a proxy sent it again.
        yield landed._replace(delays=delayed), Outcome.REFUSED
        yield state._replace(delays=delayed, net=state.net | {put}), Outcome.UNKNOWN


def put_object(state: State, stored: Stored) -> Iterator[tuple[State, Outcome]]:
    """All that a PUT of an object may do. An unknown one may still arrive after its writer gave it up."""
    yield state.with_object(stored), Outcome.LANDED
    if state.delays:
        yield state._replace(delays=state.delays - 1, net=state.net | {stored}), Outcome.UNKNOWN


def land_head(model: Model, state: State, put: HeadPut) -> State | None:
    """The state with the new head, or None if it no longer matches."""
    old, new = state.head, put.head
    if old.uid != put.if_match and model.has(Rule.IF_MATCH):
        return None
    ghosts = state.ghosts
    ghosts = ghosts._replace(
        violation=ghosts.violation or broken_by(old, new), pinned=pinned_by(ghosts, old, new)
    )
    if is_appended(old, new):
        ghosts = with_append(state, ghosts, new)
    if new.is_dropped and not old.is_dropped:
        ghosts = with_lowered(ghosts, 0)
    elif is_lowered(old, new):
        ghosts = with_lowered(ghosts, new.tiered_end)
    return state._replace(head=new, ghosts=ghosts)


def is_appended(old: Head, new: Head) -> bool:
    """Whether the commit added a slice at the end."""
    return new.tiered_end > old.tiered_end and new.slices[:-1] == old.slices


def is_lowered(old: Head, new: Head) -> bool:
    """Whether the commit moved the tiered end back."""
    return new.tiered_end < old.tiered_end


def broken_by(old: Head, new: Head) -> str:
    """The invariant of two successive heads that the new one breaks, or nothing."""
    if new.parent != old.uid:
        return f"commit {old.seq} was overwritten"
    if old.is_dropped and (new.slices or not new.is_dropped):
        return "a partition that was dropped is there again"
    if new.is_dropped and not old.is_dropped:
        # The partition is gone, and what grows with it.
        return ""
    upto = min(old.compacted_upto, new.tiered_end) if is_lowered(old, new) else old.compacted_upto
    before = old.epoch, old.horizon, old.log_start, upto
    after = new.epoch, new.horizon, new.log_start, new.compacted_upto
    if any(later < earlier for earlier, later in zip(before, after, strict=True)):
        return "something that only grows went back"
    if is_lowered(old, new) and new.by != old.epoch:
        return f"a former owner (epoch {new.by}) moved the tiered end back under epoch {old.epoch}"
    if is_appended(old, new) and new.by != old.epoch:
        return f"a former owner (epoch {new.by}) added under epoch {old.epoch}"
    return ""


def with_append(state: State, ghosts: Ghosts, new: Head) -> Ghosts:
    """The records, or the gap, of the new last slice are committed."""
    last = new.slices[-1]
    if last.object == GAP:
        return ghosts._replace(gaps=ghosts.gaps | {(last.base, last.end)})
    return ghosts._replace(
        committed=ghosts.committed | frozenset(state.object_records().get(last.object, ()))
    )


def with_lowered(ghosts: Ghosts, end: int) -> Ghosts:
    """Records behind the new tiered end count as never committed: the owner's disk has them."""
    return ghosts._replace(
        committed=frozenset(one for one in ghosts.committed if one.offset < end),
        acknowledged=frozenset(one for one in ghosts.acknowledged if one.offset < end),
        gaps=frozenset(one for one in ghosts.gaps if one[0] < end),
    )


def pinned_by(ghosts: Ghosts, old: Head, new: Head) -> frozenset[tuple[int, frozenset[int]]]:
    """The objects of each pin that is in the new head."""
    taken = {
        (
            pin.seq,
            pin.needs or new.live | new.brought_between(pin.folded_seq, pin.seq),
        )
        for pin in new.pins - old.pins
    }
    held = {pin.seq for pin in new.pins}
    return frozenset(one for one in ghosts.pinned | taken if one[0] in held)


def commit(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """The steps of an actor that has an attempt: it sends it, or settles its unknown outcome."""
    if actor.phase == SETTLE:
        yield from settle(model, state, actor)
    else:
        yield from send(model, state, actor)


def send(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """The PUT of an attempt."""
    attempt = actor.attempt
    assert attempt is not None
    for after, outcome in put_head(model, state, attempt.put):
        match believed(model, outcome):
            case Outcome.LANDED:
                yield Move(f"{attempt.label}: ok", after, actor._replace(phase=attempt.then, attempt=None))
            case Outcome.REFUSED:
                yield Move(
                    f"{attempt.label}: refused", after, actor._replace(phase=attempt.again, attempt=None)
                )
            case Outcome.UNKNOWN:
                yield Move(f"{attempt.label}: unknown", after, actor._replace(phase=SETTLE))


def believed(model: Model, outcome: Outcome) -> Outcome:
    """The outcome that an actor believes in."""
    if outcome is Outcome.REFUSED and model.has(Rule.REFUSAL_IS_UNKNOWN):
        outcome = Outcome.UNKNOWN
    if outcome is Outcome.UNKNOWN and not model.has(Rule.UNKNOWN_IS_NO_SUCCESS):
        outcome = Outcome.LANDED
    if outcome is Outcome.UNKNOWN and not model.has(Rule.UNKNOWN_IS_NO_FAILURE):
        outcome = Outcome.REFUSED
    return outcome


def settle(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """Read the head: the commit is there, or the same PUT goes out again, or the attempt is void."""
    attempt = actor.attempt
    assert attempt is not None
    done = actor._replace(phase=attempt.then, attempt=None)
    void = actor._replace(phase=attempt.again, attempt=None)
    if not model.has(Rule.READ_TO_SETTLE):
        yield Move("gives up", state, void)
    elif attempt.put.head.uid in state.head.uids:
        yield Move("settles: it landed", state, done)
    elif state.head.uid == attempt.put.if_match:
        for after, outcome in put_head(model, state, attempt.put):
            label = f"sends the same commit again: {outcome.name.lower()}"
            if outcome is Outcome.LANDED:
                yield Move(label, after, done)
            elif outcome is Outcome.UNKNOWN or model.has(Rule.REFUSAL_IS_UNKNOWN):
                yield Move(label, after, actor)
            else:
                yield Move(label, after, void)
    else:
        yield Move("settles: void", state, void)
