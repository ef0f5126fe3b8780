"""The collector: deletes what commits have dropped, and sweeps orphans below a committed horizon. Where
earlier commits can be pinned, it first commits what it is about to delete."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.protocol_model.commits import Outcome, commit, judged, next_head, put_head
from tests.support.protocol_model.rules import Rule
from tests.support.protocol_model.state import (
    GAP,
    Actor,
    Dropped,
    Head,
    HeadPut,
    Model,
    Move,
    Replacement,
    State,
)


def collector(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """The steps of a collector. The grace is over at once: any pause before a step plays a longer one."""
    if actor.attempt is not None:
        yield from commit(model, state, actor)
    elif actor.phase == "idle" and actor.life > 0:
        yield from begin(model, state, Actor("collector", life=actor.life - 1))
    elif actor.phase == "say":
        yield say(state, actor)
    elif actor.phase == "said":
        yield spare(model, state, actor)
    elif actor.phase == "raised":
        view = state.head if model.has(Rule.FRESH_SWEEP) else actor.view
        yield Move("reads the head", state, actor._replace(phase="list", view=view))
    elif actor.phase == "list":
        yield find_orphans(model, state, actor)
    elif actor.phase in ("sweep", "delete"):
        yield delete(state, actor)
    elif actor.phase == "forget":
        yield from forget(model, state, actor)


def begin(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """A collector looks at what was dropped, or for orphans."""
    head = state.head
    due = tuple(sorted(one.object for one in head.dropped if one.object not in kept(model, head)))
    if not due and not model.has(Rule.DROP_FIRST) and len(head.slices) > 1 and head.slices[0].object != GAP:
        due = (head.slices[0].object,)
    yield from choose(model, state, actor, due)
    for replacement in sorted(head.replacements, key=lambda one: one.seq):
        yield from choose_list(model, state, actor, replacement)
    if not model.has(Rule.HORIZON_FIRST):
        yield Move("looks for orphans", state, actor._replace(phase="list", view=head))
    elif head.horizon < head.seq:
        raised = head._replace(horizon=head.seq)
        job = actor if model.has(Rule.FRESH_SWEEP) else actor._replace(view=head)
        after, job = judged(state, job, raised, "raises the horizon", then="raised", again="idle")
        yield Move(f"reads the head to raise the horizon to {head.seq}", after, job)


def choose(model: Model, state: State, actor: Actor, due: tuple[int, ...]) -> Iterator[Move]:
    """A collector will delete all that is due, or only what was dropped first, whose grace is over."""
    dropped_at = {one.object: one.seq for one in state.head.dropped}
    for last in sorted({dropped_at.get(name, 0) for name in due}, reverse=True):
        names = tuple(name for name in due if dropped_at.get(name, 0) <= last)
        says = model.has_snapshots and model.has(Rule.SAY_DELETION)
        job = actor._replace(to_delete=names, view=state.head if says else None)
        yield Move(f"will delete {list(names)}", state, job._replace(phase="say" if says else "delete"))
        if not model.has_snapshots:
            return


def choose_list(model: Model, state: State, actor: Actor, replacement: Replacement) -> Iterator[Move]:
    """A collector reads the root of a replacement, and will delete what it lists and nothing holds."""
    listed = state.listed_by(replacement)
    if not listed:
        return
    held = held_of(model, state, state.head, replacement)
    names = tuple(sorted(listed - held))
    says = model.has_snapshots and model.has(Rule.SAY_DELETION)
    job = actor._replace(
        to_delete=names,
        view=state.head if says else None,
        replacement=replacement,
        rest=tuple(sorted(held)),
        phase="forget" if not names else "say" if says else "delete",
    )
    yield Move(f"reads root {replacement.root}, and will delete {list(names)}", state, job)


def held_of(model: Model, state: State, head: Head, replacement: Replacement) -> frozenset[int]:
    """The files of a replacement that a pin holds, and the root whose own list waits."""
    listed = state.listed_by(replacement)
    if model.has(Rule.PIN_LISTS) and any(pin.state_seq < replacement.seq for pin in head.pins):
        return listed
    if model.has(Rule.LIST_BEFORE_ROOT):
        return listed & {one.root for one in head.replacements}
    return frozenset()


def say(state: State, actor: Actor) -> Move:
    """A collector reads the head to say what it will delete, unless that is said."""
    head, seen, names = state.head, actor.view, actor.to_delete
    assert seen is not None
    seqs = [one.seq for one in seen.dropped if one.object in names]
    if actor.replacement is not None:
        seqs.append(actor.replacement.seq)
    said = head._replace(
        deleted_seq=max(head.deleted_seq, *seqs, 0),
        deleted_brought_seq=max(head.deleted_brought_seq, *map(seen.brought_seq, names)),
    )
    if said == head:
        return Move("reads the head: to delete these is said", state, actor._replace(phase="said"))
    after, job = judged(state, actor, said, "says what it will delete", then="said", again="say")
    return Move("reads the head to say what it will delete", after, job)


def spare(model: Model, state: State, actor: Actor) -> Move:
    """A collector has said what it will delete, and spares what a pin has come to hold."""
    view = state.head if model.has(Rule.FRESH_DELETION) else actor.view
    assert view is not None
    spared = kept(model, view)
    if actor.replacement is not None:
        spared |= held_of(model, state, view, actor.replacement)
    names = tuple(name for name in actor.to_delete if name not in spared)
    is_list = actor.replacement is not None
    rest = actor.rest + tuple(name for name in actor.to_delete if is_list and name in spared)
    phase = "delete" if names else "forget" if is_list else "idle"
    job = actor._replace(phase=phase, to_delete=names, view=None, rest=rest)
    return Move(f"reads the head, and will delete {list(names)}", state, job)


def kept(model: Model, head: Head) -> frozenset[int]:
    """The dropped objects that a pin holds, that an inline commit brings, or that are the roots of lists."""
    names: set[int] = set()
    if model.has(Rule.DELETE_FOLDED):
        names |= {one.object for one in head.brought if one.seq > head.folded_seq}
    if model.has(Rule.LIST_BEFORE_ROOT):
        names |= {one.root for one in head.replacements}
    for pin in head.pins:
        if model.has(Rule.PIN):
            later = {one.object for one in head.dropped if pin.state_seq < one.seq}
            names |= {name for name in later if head.brought_seq(name) <= pin.state_seq}
        if model.has(Rule.PIN_BROUGHT):
            names |= head.brought_between(pin.folded_seq, pin.state_seq)
    return frozenset(names)


def find_orphans(model: Model, state: State, actor: Actor) -> Move:
    """A collector lists the bucket and compares it with the head that it has read."""
    view = actor.view
    assert view is not None
    has_horizon = model.has(Rule.HORIZON_FIRST) and model.has(Rule.FRESH_SWEEP)
    horizon = view.horizon if has_horizon else state.head.seq
    known = view.live | view.checkpoint.files | {one.object for one in view.dropped}
    known = known.union(*map(state.listed_by, view.replacements))
    orphans = tuple(sorted(one.name for one in state.bucket if one.birth < horizon and one.name not in known))
    phase = "sweep" if orphans else "idle"
    found = actor._replace(phase=phase, to_delete=orphans, view=None)
    return Move(f"finds orphans {list(orphans)}", state, found)


def delete(state: State, actor: Actor) -> Move:
    """One DELETE. Dropped objects are forgotten after the last one."""
    name, *rest = actor.to_delete
    is_sweep = actor.phase == "sweep"
    phase = actor.phase if rest else "idle" if is_sweep else "forget"
    deleted = () if is_sweep else (*actor.deleted, name)
    job = actor._replace(phase=phase, to_delete=tuple(rest), deleted=deleted)
    return Move(f"deletes object {name}", state.without(name), job)


def forget(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """A collector takes the objects that it has deleted off the list of dropped ones, or forgets the root
    that lists them, in one step. Before that it makes dropped files of what must stay, one in each commit,
    the last one in the commit that forgets the root."""
    head, replacement = state.head, actor.replacement
    done = Actor("collector", life=actor.life)
    if replacement is None:
        dropped = frozenset(one for one in head.dropped if one.object not in actor.deleted)
        yield from commit_at_once(
            model, state, head._replace(dropped=dropped), "forgets what it deleted", done
        )
        return
    if replacement not in head.replacements:
        yield Move("finds the list forgotten", state, done)
        return
    known = {one.object for one in head.dropped}
    rest = [name for name in actor.rest if name not in known] if model.has(Rule.KEEP_LISTED) else []
    seq = replacement.seq if model.has(Rule.KEEP_FOLD_SEQ) else replacement.base.seq
    rows = frozenset(
        Dropped(name, seq, replacement.base if name == replacement.base.root else None) for name in rest[:1]
    )
    is_last = len(rest) <= 1 or not model.has(Rule.KEEP_ALL_LISTED)
    forgotten = frozenset({replacement} if is_last else ())
    changed = head._replace(dropped=head.dropped | rows, replacements=head.replacements - forgotten)
    what = [f"keeps {name}" for name in rest[:1]] + (["forgets the list"] if is_last else [])
    yield from commit_at_once(model, state, changed, " and ".join(what), done if is_last else actor)


def commit_at_once(model: Model, state: State, changed: Head, what: str, job: Actor) -> Iterator[Move]:
    """A commit that reads the head and lands in one step."""
    new, after = next_head(state, changed)
    for landed, outcome in put_head(model, after, HeadPut(state.head.uid, new)):
        if outcome is Outcome.LANDED:
            yield Move(what, landed, job)
