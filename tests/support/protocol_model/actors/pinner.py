"""The pinner: a long job that holds what is live, and lets go at any time."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.protocol_model.commits import Outcome, commit, judged, next_head, put_head
from tests.support.protocol_model.state import Actor, HeadPut, Model, Move, Pin, State


def pinner(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """The steps of a pinner."""
    head = state.head
    if actor.attempt is not None:
        yield from commit(model, state, actor)
    elif actor.phase == "held" and head.pins:
        new, after = next_head(state, head._replace(pins=frozenset()))
        for landed, outcome in put_head(model, after, HeadPut(head.uid, new)):
            if outcome is Outcome.LANDED:
                yield Move("lets go", landed, actor._replace(phase="idle"))
    elif actor.phase == "idle" and actor.life > 0 and head.slices:
        seq = head.seq + 1
        changed = head._replace(pins=head.pins | {Pin(seq, head.folded_seq, seq)})
        job = actor._replace(life=actor.life - 1)
        after, job = judged(state, job, changed, f"pins {seq}", then="held", again="idle")
        yield Move("reads the head to pin it", after, job)
