"""The part of a state that a shard and the catalog share: the bookkeeping of commits and of their files."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import NamedTuple, TypeVar
from uuid import UUID

from stratalog.base.errors import StoreCorruptError
from stratalog.remote.metadata.head.checkpoint import CheckpointRoot
from stratalog.remote.metadata.head.commit import Commit
from stratalog.remote.metadata.head.document_ref import (
    DocumentRef,
    DroppedObject,
    FileKind,
    Replacement,
    TrackedFile,
    newest_seq_of,
)
from stratalog.remote.metadata.head.head_actions import (
    Action,
    BeginDeletion,
    FinishList,
    Fold,
    Forget,
    ListedFold,
    PinCommit,
    RaiseHorizon,
    RenewPin,
    TakePin,
    TrimHistory,
    Unpin,
)
from stratalog.remote.metadata.head.persistent_map import Evolution, PersistentMap
from stratalog.remote.metadata.head.pin import Pin


class ChangedRows(NamedTuple):
    """Rows of one kind that one commit changed."""

    seq: int
    kind: str
    keys: Sequence[Hashable]
    """The keys of the rows in the state."""


class WaitingFiles(NamedTuple):
    """Files that wait to be deleted."""

    file_count: int
    size_bytes: int
    oldest_ms: int
    """The time of the commit that dropped the first of them; -1 without any."""


_keys_of = attrgetter("keys")

DROPPED = "dropped"
"""The kind of the rows of dropped files."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HeadState:
    """The state after commit `seq`, which is 0 before the first commit. Immutable."""

    seq: int = 0
    uuid: UUID | None = None
    """The uuid of commit `seq`; None before the first."""
    time_ms: int = 0
    """Wall time of commit `seq`, by its writer's clock."""
    epoch: int = 0
    orphan_horizon_seq: int = 0
    """Objects and checkpoints born before this commit are refused: an orphan sweep may have deleted them."""
    catalog_seq: int = 0
    """Highest catalog seq that an action was decided with."""
    checkpoint: DocumentRef | None = None
    history: DocumentRef | None = None
    """The newest history object."""
    dropped_objects: PersistentMap[str, DroppedObject] = dataclasses.field(
        default_factory=PersistentMap[str, DroppedObject]
    )
    replacements: tuple[Replacement, ...] = ()
    """The files that folds replaced, in the order of their commits."""
    history_start_seq: int = 1
    """The first commit that history still has to hold; older ones are trimmed."""
    deleted_seq: int = 0
    """Files that commits up to this one dropped may be deleted."""
    deleted_brought_seq: int = 0
    """Those among them that later commits brought are not."""
    pins: tuple[Pin, ...] = ()
    """In the order of their commits."""
    unknown_action: str | None = None
    """Name of an action that this version skipped, so it must not write here."""
    changed: tuple[ChangedRows, ...] = ()
    """The rows that changed since the checkpoint, in the order of the commits. A fold writes these."""
    root_extras: Mapping[str, object] = dataclasses.field(default_factory=dict[str, object])
    """Fields of the checkpoint's root that this version does not know."""

    @property
    def folded_seq(self) -> int:
        """Commits up to this one are in the checkpoint, later ones in the head."""
        return 0 if self.checkpoint is None else self.checkpoint.seq

    @property
    def unfolded_rows(self) -> int:
        """How many changed rows are in memory until a fold."""
        # Each commit asks, so without a step of Python for each of the commits before it.
        return sum(map(len, map(_keys_of, self.changed)))

    def has_more_changed(self, count: int) -> bool:
        """Whether more rows than these changed since the checkpoint, each counted once."""
        seen: set[tuple[str, Hashable]] = set()
        for rows in reversed(self.changed):
            for key in rows.keys:
                seen.add((rows.kind, key))
                if len(seen) > count:
                    return True
        return False

    def changed_keys(self, kind: str) -> dict[Hashable, int]:
        """The keys of the rows of a kind that changed since the checkpoint, each with the last commit that
        changed it.
        """
        return {key: rows.seq for rows in self.changed if rows.kind == kind for key in rows.keys}

    def with_changed(self, kind: str, keys: Sequence[Hashable]) -> tuple[ChangedRows, ...]:
        """All changed rows once commit `seq` has changed these, too."""
        return (*self.changed, ChangedRows(self.seq, kind, keys)) if keys else self.changed

    @property
    def dropped(self) -> tuple[DroppedObject, ...]:
        return tuple(sorted(self.dropped_objects.values(), key=lambda dropped: (dropped.seq, dropped.name)))

    @property
    def waiting_files(self) -> WaitingFiles:
        """All files that wait to be deleted."""
        dropped, replaced = self.dropped_objects.values(), self.replacements
        return WaitingFiles(
            len(dropped) + sum(one.file_count for one in replaced),
            sum(one.size_bytes for one in dropped) + sum(one.size_bytes for one in replaced),
            min([*(one.time_ms for one in dropped), *(one.time_ms for one in replaced)], default=-1),
        )

    def replacement(self, root_name: str) -> Replacement | None:
        """The replacement whose files a checkpoint's root names; None if none of them waits."""
        return next((one for one in self.replacements if one.name == root_name), None)

    def is_held(self, dropped: DroppedObject) -> bool:
        """Whether a dropped file must stay whatever its age: a pin holds it, or it is a root that names files
        which still wait."""
        is_root = dropped.kind is FileKind.CHECKPOINT and self.replacement(dropped.name) is not None
        return is_root or self.holding_pin(dropped) is not None

    def is_deletable(self, dropped: DroppedObject) -> bool:
        """Whether opening the shard no longer needs the file: its commit has left the head.

        The collector decides about the grace period and pins.
        """
        return dropped.brought_seq <= self.folded_seq

    def pin(self, seq: int) -> Pin | None:
        """The pin that commit `seq` made; None if it has ended."""
        return next((pin for pin in self.pins if pin.seq == seq), None)

    def holding_pin(self, dropped: DroppedObject) -> Pin | None:
        """A pin that holds the dropped file, because the pinned state has it or is built from it; None if
        there is none.
        """
        return next((pin for pin in self.pins if _is_held_by(pin, dropped)), None)

    def check_bookkeeping(self) -> None:
        assert 0 <= self.orphan_horizon_seq <= self.seq, "the orphan horizon is a known commit"
        assert self.folded_seq <= self.seq, "a checkpoint is not newer than the state"
        assert 1 <= self.history_start_seq <= max(self.seq, 1), "only known commits are trimmed"
        seqs = [pin.seq for pin in self.pins]
        assert seqs == sorted(set(seqs)), "a commit makes one pin"
        assert self.deleted_seq <= self.seq, "only dropped files are deleted"
        assert self.deleted_brought_seq <= self.deleted_seq, "a file is dropped after it was added"
        for pin in self.pins:
            assert pin.seq <= self.seq, "a known commit made each pin"
            assert pin.folded_seq <= pin.state_seq <= pin.seq, "a pinned state is built from an older one"
            assert self.history_start_seq <= pin.folded_seq + 1, "the history of a pinned state stays"
        for name, dropped in self.dropped_objects.items():
            assert dropped.name == name, "a dropped file is found under its name"
            assert dropped.brought_seq < dropped.seq <= self.seq, "a file is dropped after it was added"
        folds = [replacement.seq for replacement in self.replacements]
        assert folds == sorted(set(folds)), "a commit makes one fold"
        assert not folds or folds[-1] <= self.seq, "known commits replaced files"
        for replacement in self.replacements:
            assert replacement.root.seq < replacement.seq, "a fold is newer than its checkpoint"
        assert all(1 <= rows.seq <= self.seq for rows in self.changed), "known commits changed rows"
        if self.checkpoint is not None:
            assert self.checkpoint.name not in self.dropped_objects, "the current checkpoint is not dropped"
        if self.history is not None:
            assert self.history.name not in self.dropped_objects, "the newest history is not dropped"


S = TypeVar("S", bound=HeadState)

DELETED_TOPIC_KEPT_MS = 30 * 24 * 3600 * 1000
"""How long the catalog and the shards remember a deleted topic."""


def after_commit(state: S, commit: Commit) -> S:
    """Apply the bookkeeping of one more commit; its actions follow. Raises StoreCorruptError."""
    if commit.seq != state.seq + 1:
        raise StoreCorruptError(
            "commits are missing from the head; stop, keep everything and investigate",
            seq=commit.seq,
            expected=state.seq + 1,
        )
    return dataclasses.replace(
        state,
        seq=commit.seq,
        uuid=commit.uuid,
        time_ms=commit.time_ms,
        unknown_action=state.unknown_action or commit.unknown_action,
    )


def drop_file(
    dropped: Evolution[str, DroppedObject],
    file: TrackedFile,
    commit: Commit,
    brought_seq: int = 0,
) -> None:
    """Put a file on the list of dropped files, which wait to be deleted."""
    _add_row(dropped, _dropped_by(file, commit, brought_seq), commit)


def _dropped_by(file: TrackedFile, commit: Commit, brought_seq: int = 0) -> DroppedObject:
    """A file that a commit drops."""
    return DroppedObject(
        name=file.name,
        size_bytes=file.size_bytes,
        seq=commit.seq,
        time_ms=commit.time_ms,
        kind=file.kind,
        brought_seq=brought_seq,
    )


def _add_row(dropped: Evolution[str, DroppedObject], file: DroppedObject, commit: Commit) -> None:
    if file.name in dropped:
        raise contradiction(commit, "it drops a file twice", name=file.name)
    dropped[file.name] = file


def unfolded(state: HeadState, seq: int) -> tuple[ChangedRows, ...]:
    """The rows that changed since a checkpoint at commit `seq`."""
    return tuple(rows for rows in state.changed if rows.seq > seq)


def all_changed(state: HeadState, keys: Mapping[str, Sequence[Hashable]]) -> tuple[ChangedRows, ...]:
    """Every row of a state, as if its last commit had changed it. `keys`: those of the rows that only its
    kind of state has."""
    tables = {**keys, DROPPED: tuple(state.dropped_objects)}
    return tuple(ChangedRows(state.seq, kind, rows) for kind, rows in tables.items() if rows)


def after_action(state: S, action: Action, commit: Commit, root: CheckpointRoot | None) -> S:
    """Apply an action of `COMMON_ACTIONS`. Any other has no effect: it is unknown, and `after_commit` has
    noted that this version must not write. `root`: that of the checkpoint that a `fold` names.
    """
    match action:
        case Forget():
            return _after_forget(state, action, commit)
        case Fold():
            assert root is not None, "a fold comes with its checkpoint"
            return _after_fold(state, action, commit, root)
        case FinishList():
            return _after_finish_list(state, action, commit)
        case RaiseHorizon():
            if not state.orphan_horizon_seq < action.seq < commit.seq:
                raise contradiction(commit, "its horizon goes back, or is of the future", horizon=action.seq)
            return dataclasses.replace(state, orphan_horizon_seq=action.seq)
        case BeginDeletion():
            return _after_begin_deletion(state, action, commit)
        case TrimHistory():
            return _after_trim(state, action, commit)
        case TakePin() | PinCommit():
            return _after_pin(state, action, commit)
        case RenewPin():
            _require_pins(state, (action.pin,), commit)
            renewed = (
                dataclasses.replace(pin, until_ms=action.until_ms) if pin.seq == action.pin else pin
                for pin in state.pins
            )
            return dataclasses.replace(state, pins=tuple(renewed))
        case Unpin():
            _require_pins(state, action.pins, commit)
            left = tuple(pin for pin in state.pins if pin.seq not in action.pins)
            return dataclasses.replace(state, pins=left)
        case _:
            return state


def _after_forget(state: S, forget: Forget, commit: Commit) -> S:
    """Take files off the list of dropped files."""
    dropped = state.dropped_objects.evolve()
    for name in forget.names:
        if name not in dropped:
            raise contradiction(commit, "it forgets a file that was not dropped", name=name)
        dropped.pop(name)
    return dataclasses.replace(
        state, dropped_objects=dropped.finish(), changed=state.with_changed(DROPPED, forget.names)
    )


def _after_fold(state: S, fold: Fold, commit: Commit, root: CheckpointRoot) -> S:
    """Apply a fold: another checkpoint, and the files that it replaces are dropped."""
    if fold.checkpoint.seq >= commit.seq:
        raise contradiction(
            commit, "its checkpoint is newer than the commit", checkpoint=fold.checkpoint.name
        )
    if root.ref != fold.checkpoint:
        raise contradiction(commit, "its checkpoint is another one", checkpoint=root.ref.name)
    if not isinstance(fold, ListedFold):
        state = _with_dropped(state, root.replaced, commit)
    elif fold.file_count:
        replacement = Replacement(
            root=fold.checkpoint,
            base=fold.base or "",
            seq=commit.seq,
            time_ms=commit.time_ms,
            file_count=fold.file_count,
            size_bytes=fold.size_bytes,
        )
        state = dataclasses.replace(state, replacements=(*state.replacements, replacement))
    return dataclasses.replace(state, checkpoint=fold.checkpoint, history=fold.history or state.history)


def _after_finish_list(state: S, finish: FinishList, commit: Commit) -> S:
    """Files of a replacement become rows, with the commit and the time of its fold."""
    replacement = state.replacement(finish.root)
    if replacement is None:
        raise contradiction(commit, "it finishes a list that is not there", root=finish.root)
    state = _with_rows(state, map(replacement.dropped, finish.kept), commit)
    if finish.is_part:
        return state
    left = tuple(one for one in state.replacements if one.name != finish.root)
    return dataclasses.replace(state, replacements=left)


def _after_begin_deletion(state: S, begun: BeginDeletion, commit: Commit) -> S:
    """Files are about to be deleted."""
    before = (state.deleted_seq, state.deleted_brought_seq)
    after = (begun.dropped_seq, begun.brought_seq)
    if begun.dropped_seq >= commit.seq or any(new < old for new, old in zip(after, before, strict=True)):
        raise contradiction(
            commit, "its deletion goes back, or is of the future", dropped_seq=after[0], brought_seq=after[1]
        )
    return dataclasses.replace(state, deleted_seq=after[0], deleted_brought_seq=after[1])


def _after_pin(state: S, taken: TakePin | PinCommit, commit: Commit) -> S:
    """One pin more."""
    earlier_seq = taken.state_seq if isinstance(taken, PinCommit) else None
    if earlier_seq is not None and not taken.folded_seq <= earlier_seq < commit.seq:
        raise contradiction(commit, "it pins a commit of the future", state_seq=earlier_seq)
    pin = Pin(
        seq=commit.seq,
        holder=taken.holder,
        until_ms=taken.until_ms,
        folded_seq=taken.folded_seq,
        earlier_seq=earlier_seq,
    )
    return dataclasses.replace(state, pins=(*state.pins, pin))


def _after_trim(state: S, trim: TrimHistory, commit: Commit) -> S:
    if not state.history_start_seq < trim.before < commit.seq:
        raise contradiction(commit, "it trims history of the future, or goes back", before=trim.before)
    state = _with_dropped(state, trim.dropped, commit)
    return dataclasses.replace(state, history_start_seq=trim.before)


def _with_dropped(state: S, files: Iterable[TrackedFile], commit: Commit) -> S:
    return _with_rows(state, (_dropped_by(file, commit) for file in files), commit)


def _with_rows(state: S, files: Iterable[DroppedObject], commit: Commit) -> S:
    dropped = state.dropped_objects.evolve()
    names: list[str] = []
    for file in files:
        _add_row(dropped, file, commit)
        names.append(file.name)
    return dataclasses.replace(
        state, dropped_objects=dropped.finish(), changed=state.with_changed(DROPPED, names)
    )


def _require_pins(state: HeadState, seqs: Iterable[int], commit: Commit) -> None:
    for seq in seqs:
        if state.pin(seq) is None:
            raise contradiction(commit, "it changes a pin that is not there", pin=seq)


def _is_held_by(pin: Pin, dropped: DroppedObject) -> bool:
    """Whether the file may have been live in the pinned state, or is an object that a commit between the
    pin's checkpoint and that state brought: the state is built by that commit, with the directory of the
    object. A file of metadata does not say which commit brought it; its name says before which one it did
    not exist.
    """
    seq = pin.state_seq
    if dropped.kind is not FileKind.DATA:
        return newest_seq_of(dropped.kind, dropped.name) <= seq < dropped.seq
    was_live = dropped.brought_seq <= seq < dropped.seq
    return was_live or pin.folded_seq < dropped.brought_seq <= seq


def contradiction(commit: Commit, what: str, **fields: object) -> StoreCorruptError:
    """The error for a commit that the state before it excludes."""
    return StoreCorruptError(
        f"commit {commit.seq} contradicts the state before it: {what}; stop, keep everything and investigate",
        uuid=commit.uuid,
        writer=commit.writer.id,
        **fields,
    )
