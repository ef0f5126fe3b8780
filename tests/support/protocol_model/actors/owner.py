"""The owner: claims, appends, uploads, adds, acknowledges, puts losses on record, moves the tiered end back,
crashes."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.protocol_model.commits import PUT, Outcome, commit, judged, put_object, send
from tests.support.protocol_model.rules import Rule
from tests.support.protocol_model.state import (
    GAP,
    SCRIPT,
    Actor,
    Attempt,
    Dropped,
    Model,
    Move,
    Output,
    Record,
    Slice,
    State,
    Stored,
    Topic,
)

MAX_BUFFER = 2


def owner(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """The steps of an owner."""
    if actor.phase == "reclaim" or (actor.phase == "idle" and actor.life > 0):
        yield from claim(model, state, actor)
    elif actor.phase == "serve":
        yield from serve(model, state, actor)
    elif actor.phase in ("commit", "gap"):
        yield judge(model, state, actor)
    elif actor.attempt is not None:
        yield from (committed(move, actor.attempt) for move in commit(model, state, actor))
    if actor.phase in ("serve", "commit", "gap", PUT) and actor.life > 0:
        yield Move("crashes", state, Actor("owner", life=actor.life))


def claim(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """A claim is always valid, so reading and writing the head are one step."""
    lives = actor.life - (actor.phase == "idle")
    claimed = state.head._replace(epoch=state.head.epoch + 1)
    what = f"claims epoch {claimed.epoch}"
    state, actor = judged(state, actor._replace(life=lives), claimed, what, then="claimed", again="reclaim")
    assert actor.attempt is not None
    yield from (committed(move, actor.attempt) for move in send(model, state, actor))


def committed(move: Move, attempt: Attempt) -> Move:
    """The step, with the consequences of its commit if it has landed."""
    _, state, actor = move
    if actor.phase == "claimed":
        new = attempt.put.head
        actor = actor._replace(
            phase="serve",
            epoch=new.epoch,
            has_log=state.topic is Topic.THERE,
            next_offset=new.tiered_end,
            buffer=(),
        )
    elif actor.phase == "lowered":
        end = attempt.put.head.tiered_end
        again = tuple(record for record in actor.kept if record.offset >= end)
        actor = actor._replace(phase="serve", buffer=again, kept=())
    elif actor.phase == "serve" and actor.output is not None:
        records = actor.output.stored.records
        state = acknowledged(state, records)
        # A gap parts what lies before it from the tiered end.
        kept = (*actor.kept, *records) if records else ()
        actor = actor._replace(output=None, buffer=(), kept=kept)
    return move._replace(state=state, actor=actor)


def acknowledged(state: State, records: tuple[Record, ...]) -> State:
    """Records of a topic that is deleted are no promise any more."""
    if state.head.is_dropped:
        return state
    ghosts = state.ghosts
    return state._replace(ghosts=ghosts._replace(acknowledged=ghosts.acknowledged | frozenset(records)))


def serve(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """An owner takes a record, uploads those that wait, or loses them."""
    buffer = actor.buffer
    if not actor.has_log:
        yield from open_log(model, state, actor)
        return
    if state.topic is Topic.THERE and state.next_record < model.appends and len(buffer) < MAX_BUFFER:
        record = Record(actor.next_offset, state.next_record)
        yield Move(
            f"appends {SCRIPT[record.number].key} at {record.offset}",
            state._replace(next_record=state.next_record + 1),
            actor._replace(buffer=(*buffer, record), next_offset=record.offset + 1),
        )
    if not buffer:
        yield from lower(model, state, actor)
        return
    base, end = buffer[0].offset, buffer[-1].offset + 1
    name, birth = state.next_id, state.head.seq
    output = Output(Stored(name, birth, buffer), base, end)
    for after, outcome in put_object(state._replace(next_id=name + 1), output.stored):
        if outcome is Outcome.UNKNOWN:
            yield Move(f"puts object {name}: unknown, gives the name up", after, actor)
            continue
        seen = after if model.has(Rule.ACKNOWLEDGE_COMMITS) else acknowledged(after, buffer)
        yield Move(f"puts object {name}", seen, actor._replace(phase="commit", output=output))
    if state.losses:
        lost = actor._replace(phase="gap", output=Output(Stored(GAP, birth), base, end), buffer=())
        yield Move(f"loses [{base},{end})", state._replace(losses=state.losses - 1), lost)


def open_log(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """An owner finds a topic in the catalog, and then reads the head for the tiered end."""
    if state.topic is not Topic.THERE:
        return
    head = state.head
    offset = head.tiered_end if model.has(Rule.OPEN_BEHIND_CATALOG) else actor.next_offset
    if head.epoch == actor.epoch and offset != head.tiered_end:
        broken = state.ghosts._replace(violation=f"a log begins at {offset}, below the tiered end")
        state = state._replace(ghosts=broken)
    yield Move(f"opens a log at {offset}", state, actor._replace(has_log=True, next_offset=offset))


def lower(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """An owner reads the head and moves the tiered end back to where its disk has all behind it."""
    head = state.head
    if not state.lowers or not actor.kept:
        return
    if model.has(Rule.LOWER_UNDER_OWN_EPOCH) and head.epoch != actor.epoch:
        return
    for end in sorted({head.log_start, *(one.end for one in head.slices)}):
        if not max(head.log_start, actor.kept[0].offset) <= end < head.tiered_end:
            continue
        lost = tuple(one for one in head.slices if one.end > end)
        gone = {Dropped(one.object, head.seq + 1) for one in lost if one.object != GAP}
        has_rule = model.has(Rule.LOWER_COMPACTED_UPTO)
        changed = head._replace(
            slices=head.slices[: len(head.slices) - len(lost)],
            dropped=head.dropped | gone,
            compacted_upto=min(head.compacted_upto, end) if has_rule else head.compacted_upto,
        )
        what = f"moves the tiered end back to {end}"
        after = state._replace(lowers=state.lowers - 1)
        after, owner_then = judged(after, actor, changed, what, then="lowered", again="serve", by=actor.epoch)
        yield Move(f"reads the head, to move the tiered end back to {end}", after, owner_then)


def judge(model: Model, state: State, actor: Actor) -> Move:
    """An owner reads the head and finds its `add`, or its `add_gap`, valid or not."""
    output, head = actor.output, state.head
    assert output is not None
    is_gap = actor.phase == "gap"
    epoch_rule = Rule.GAP_UNDER_OWN_EPOCH if is_gap else Rule.ADD_UNDER_OWN_EPOCH
    end_rule = Rule.GAP_AT_TIERED_END if is_gap else Rule.ADD_AT_TIERED_END
    stopped = actor._replace(phase="stopped", output=None, buffer=())
    if model.has(epoch_rule) and head.epoch != actor.epoch:
        return Move("is fenced", state, stopped)
    if head.is_dropped:
        return Move("finds the topic deleted", state, stopped)
    if model.has(end_rule) and head.tiered_end != output.base:
        return Move("finds the end moved, stops", state, stopped)
    if not is_gap and model.has(Rule.BIRTH_OF_OBJECTS) and output.stored.birth < head.horizon:
        return Move("was too slow, uploads again", state, actor._replace(phase="serve", output=None))
    name = output.stored.name
    where = f"[{output.base},{output.end})"
    what = f"commits the gap {where}" if is_gap else f"commits {where} in object {name}"
    changed = head._replace(slices=(*head.slices, Slice(output.base, output.end, name)))
    state, actor = judged(state, actor, changed, what, then="serve", again=actor.phase, by=actor.epoch)
    return Move("reads the head", state, actor)
