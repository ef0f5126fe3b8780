"""Retention: moves the log start over the first slice."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.protocol_model.commits import commit, judged
from tests.support.protocol_model.state import GAP, Actor, Dropped, Model, Move, State


def retention(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """The steps of retention. It leaves the last slice."""
    if actor.attempt is not None:
        yield from commit(model, state, actor)
        return
    head = state.head
    if actor.life <= 0 or len(head.slices) < 2:
        return
    first, rest = head.slices[0], head.slices[1:]
    log_start = max(head.log_start, first.end)
    gone = {Dropped(one.object, head.seq + 1) for one in (first,) if one.object != GAP}
    changed = head._replace(log_start=log_start, slices=rest, dropped=head.dropped | gone)
    what = f"advances log start to {log_start}"
    after, job = judged(state, actor._replace(life=actor.life - 1), changed, what, then="idle", again="idle")
    yield Move(f"reads the head to advance log start to {log_start}", after, job)
