"""The importer: writes objects of a topic that no catalog knows, commits them, and creates the topic last."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.protocol_model.actors.deleter import drop
from tests.support.protocol_model.commits import commit, judged, put_object
from tests.support.protocol_model.rules import Rule
from tests.support.protocol_model.state import (
    Actor,
    Create,
    Model,
    Move,
    Output,
    Record,
    Slice,
    State,
    Stored,
    Topic,
)


def importer(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """The steps of an importer. A crash is a pause for ever."""
    if actor.attempt is not None:
        yield from commit(model, state, actor)
    elif actor.phase == "idle" and actor.life > 0:
        job = actor._replace(life=actor.life - 1, phase="write")
        if model.has(Rule.TOPIC_LAST):
            yield write(state, job)
        else:
            yield Move("creates the topic", with_topic(state, Topic.THERE), job)
    elif actor.phase == "write":
        yield from next_step(model, state, actor)
    elif actor.phase == "commit":
        yield judge(model, state, actor)
    elif actor.phase == "create":
        yield from create(model, state, actor)
    elif actor.phase == "look":
        yield from look(state, actor)
    elif actor.phase == "bury":
        yield from bury(model, state, actor)
    elif actor.phase == "drop":
        yield from drop(state, actor)


def with_topic(state: State, topic: Topic) -> State:
    """This state after a commit of the catalog."""
    return state._replace(topic=topic, catalog_seq=state.catalog_seq + 1)


def next_step(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """The next object, or the topic if all objects are committed."""
    if actor.next_offset < state.imported:
        yield write(state, actor)
    elif model.has(Rule.TOPIC_LAST):
        yield from create(model, state, actor)


def write(state: State, actor: Actor) -> Move:
    """An importer puts the object of the next record. One whose PUT is unknown is given up with the job."""
    offset, name = actor.next_offset, state.next_id
    output = Output(Stored(name, state.head.seq, (Record(offset, offset),)), offset, offset + 1)
    after, _ = next(put_object(state._replace(next_id=name + 1), output.stored))
    return Move(f"puts object {name}", after, actor._replace(phase="commit", output=output))


def judge(model: Model, state: State, actor: Actor) -> Move:
    """An importer reads the head, and takes the epoch that is current there."""
    output, head = actor.output, state.head
    assert output is not None
    is_late = model.has(Rule.BIRTH_OF_OBJECTS) and output.stored.birth < head.horizon
    if head.is_dropped or is_late or (model.has(Rule.ADD_AT_TIERED_END) and head.tiered_end != output.base):
        return Move("is refused", state, actor._replace(phase="bury", output=None))
    name = output.stored.name
    changed = head._replace(slices=(*head.slices, Slice(output.base, output.end, name)))
    what = f"commits [{output.base},{output.end}) in object {name}"
    job = actor._replace(next_offset=output.end)
    after, job = judged(state, job, changed, what, then="write", again="commit", by=head.epoch)
    return Move("reads the head", after, job)


def create(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """The commit of the catalog, whose name may be taken, and whose outcome may be unknown."""
    yield Move("finds the name taken", state, actor._replace(phase="bury"))
    if state.topic is not Topic.UNKNOWN:
        return
    created = with_topic(state, Topic.THERE)
    yield Move("creates the topic: ok", created, actor._replace(phase="idle"))
    if state.delays:
        late = frozenset({Create(state.catalog_seq)})
        look_next = actor._replace(phase="look")
        fewer = state.delays - 1
        yield Move("creates the topic: unknown", created._replace(delays=fewer), look_next)
        waiting = state._replace(delays=fewer, net=state.net | late)
        yield Move("creates the topic: under way", waiting, look_next)


def look(state: State, actor: Actor) -> Iterator[Move]:
    """An importer reads the catalog after an unknown outcome. It may try again, or give up."""
    if state.topic is not Topic.UNKNOWN:
        yield Move("finds its topic", state, actor._replace(phase="idle"))
        return
    yield Move("tries again", state, actor._replace(phase="create"))
    yield Move("gives up", state, actor._replace(phase="bury"))


def bury(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """The id is created under another name and deleted, and its slices are dropped. A topic that is there
    after all stays."""
    if state.topic is Topic.THERE:
        yield Move("finds its topic after all", state, actor._replace(phase="idle"))
    elif state.topic is Topic.DELETED or not model.has(Rule.BURY_IN_CATALOG):
        yield Move("will drop the slices", state, actor._replace(phase="drop"))
    else:
        yield Move("buries the id", with_topic(state, Topic.DELETED), actor._replace(phase="drop"))
