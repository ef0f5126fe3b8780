"""The deleter: marks the topic as deleted in the catalog, and drops the slices of topics that are gone."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.protocol_model.commits import commit, judged
from tests.support.protocol_model.rules import Rule
from tests.support.protocol_model.state import GAP, Actor, Dropped, Model, Move, State, Topic


def deleter(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """The steps of a deleter. Servers drop what they find deleted, whichever of them it was deleted by."""
    if actor.attempt is not None:
        yield from commit(model, state, actor)
    elif actor.phase == "drop":
        yield from drop(state, actor)
    elif actor.life > 0:
        job = actor._replace(life=actor.life - 1, phase="drop")
        if state.topic is Topic.THERE:
            deleted = state._replace(topic=Topic.DELETED, catalog_seq=state.catalog_seq + 1)
            yield Move("deletes the topic", deleted, job)
        elif state.topic is Topic.DELETED:
            yield Move("finds the topic deleted", state, job)
        elif state.head.slices and not model.has(Rule.ABSENT_IS_NOT_DELETED):
            yield Move("finds slices of an unknown topic", state, job)


def drop(state: State, actor: Actor) -> Iterator[Move]:
    """The shard drops the slices, once and for ever."""
    head = state.head
    if head.is_dropped:
        yield Move("finds the slices dropped", state, actor._replace(phase="idle"))
        return
    gone = {Dropped(one.object, head.seq + 1) for one in head.slices if one.object != GAP}
    changed = head._replace(
        slices=(), compacted_upto=head.log_start, dropped=head.dropped | gone, is_dropped=True
    )
    after, job = judged(state, actor, changed, "drops the partition", then="idle", again="drop")
    yield Move("reads the head to drop the partition", after, job)
