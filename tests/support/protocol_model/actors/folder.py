"""The folder: writes a checkpoint of the newest state and takes its commits out of the head."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.protocol_model.commits import Outcome, commit, judged, put_object
from tests.support.protocol_model.rules import Rule
from tests.support.protocol_model.state import (
    Actor,
    Checkpoint,
    Dropped,
    Fold,
    Head,
    Model,
    Move,
    Replacement,
    State,
    Stored,
)


def folder(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """The steps of a folder."""
    if actor.attempt is not None:
        yield from commit(model, state, actor)
    elif actor.phase == "commit":
        yield judge(model, state, actor)
    elif actor.life > 0 and state.head.seq > state.head.checkpoint.seq:
        yield from write_checkpoint(model, state, actor)


def write_checkpoint(model: Model, state: State, actor: Actor) -> Iterator[Move]:
    """A checkpoint with one new page. Its page always lands; a root whose PUT is unknown is given up."""
    head = state.head
    root, page = state.next_id, state.next_id + 1
    first, second = head.checkpoint.pages
    with_page = state._replace(next_id=state.next_id + 2).with_object(Stored(page, head.seq))
    for pages in ((page, second), (first, page)):
        listed = listed_files(model, head.checkpoint, Checkpoint(root, head.seq, pages))
        for after, outcome in put_object(with_page, Stored(root, head.seq, listed=listed)):
            if outcome is Outcome.LANDED:
                fold = Fold(Checkpoint(root, head.seq, pages), head.checkpoint.root)
                label = f"puts checkpoint {root} of commit {head.seq} with pages {pages}"
                yield Move(label, after, Actor("folder", actor.life - 1, "commit", fold=fold))


def judge(model: Model, state: State, actor: Actor) -> Move:
    """A folder reads the head and finds its fold valid or not."""
    fold, head = actor.fold, state.head
    assert fold is not None
    if not is_valid(model, head, fold):
        return Move("gives its checkpoint up", state, Actor("folder", life=actor.life))
    old = head.checkpoint.files - fold.checkpoint.files
    changed = head._replace(checkpoint=fold.checkpoint, folded_seq=max(fold.checkpoint.seq, head.folded_seq))
    if model.has_lists:
        replacement = Replacement(fold.checkpoint.root, head.checkpoint, head.seq + 1)
        changed = changed._replace(replacements=head.replacements | {replacement})
    else:
        changed = changed._replace(dropped=head.dropped | {dropped_by_fold(head, name) for name in old})
    what = f"folds up to {fold.checkpoint.seq}"
    state, actor = judged(state, actor, changed, what, then="idle", again="commit")
    return Move("reads the head", state, actor)


def listed_files(model: Model, base: Checkpoint, checkpoint: Checkpoint) -> tuple[int, ...]:
    """The files of its base that a root lists, because its checkpoint does not share them."""
    if not model.has_lists:
        return ()
    shared = checkpoint.files if model.has(Rule.LIST_REPLACED) else frozenset[int]()
    return tuple(sorted(base.files - shared))


def dropped_by_fold(head: Head, name: int) -> Dropped:
    """A file of the checkpoint that the next commit replaces."""
    checkpoint = head.checkpoint
    return Dropped(name, head.seq + 1, checkpoint if name == checkpoint.root else None)


def is_valid(model: Model, head: Head, fold: Fold) -> bool:
    """Whether the fold may become the checkpoint."""
    seq = fold.checkpoint.seq
    if model.has(Rule.BIRTH_OF_FOLDS) and seq < head.horizon:
        return False
    if model.has(Rule.FOLD_ON_BASE) and fold.base != head.checkpoint.root:
        return False
    return seq > head.checkpoint.seq
