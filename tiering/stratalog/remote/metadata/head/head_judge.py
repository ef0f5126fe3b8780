"""Judges the actions that keep the files of a log in order: deletions, the orphan horizon, history, pins.

As every judgement, each is a pure function of the state that the head's ETag names. `fold` judges folds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratalog.base.errors import PreconditionFailedError
from stratalog.remote.metadata.head.document_ref import (
    DroppedObject,
    FileKind,
    Replacement,
    TrackedFile,
    newest_seq_of,
)
from stratalog.remote.metadata.head.head_actions import (
    BeginDeletion,
    FinishList,
    Forget,
    PinCommit,
    RaiseHorizon,
    RenewPin,
    TakePin,
    TrimHistory,
    Unpin,
)
from stratalog.remote.metadata.head.head_log import Judgement
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.store_layout import first_seq_of_history

ROWS_OF_A_COMMIT = 500
"""Files that one commit names with their kinds and sizes."""


def judge_forget(state: HeadState, names: Iterable[str]) -> Judgement[tuple[str, ...]]:
    """Forgets those of the names that are on the list of dropped files; they are the outcome."""
    known = tuple(sorted(name for name in set(names) if name in state.dropped_objects))
    return Judgement((Forget(known),) if known else (), known)


def judge_finish_list(state: HeadState, root_name: str, kept: Sequence[DroppedObject]) -> Judgement[None]:
    """Forgets a replacement whose files are deleted, but for those that are kept: these become rows of the
    state, in as many commits as they need, the last of which forgets the list."""
    if state.replacement(root_name) is None:
        return Judgement((), None)  # another collector has finished it
    files = [
        TrackedFile(file.kind, file.name, file.size_bytes)
        for file in kept
        if file.name not in state.dropped_objects
    ]
    part = tuple(files[:ROWS_OF_A_COMMIT])
    is_part = len(part) < len(files)
    return Judgement((FinishList(root_name, part, is_part),), None, is_whole=not is_part)


def judge_begin_deletion(state: HeadState, files: Iterable[DroppedObject | Replacement]) -> Judgement[None]:
    """Says that these dropped files, or those of replacements, may be deleted from now on, unless that is
    said already."""
    dropped_seq, brought_seq = state.deleted_seq, state.deleted_brought_seq
    for file in files:
        # Metadata does not say which commit brought it: no state is built from a file that a fold replaced.
        brought = file.brought_seq if isinstance(file, DroppedObject) else 0
        dropped_seq, brought_seq = max(dropped_seq, file.seq), max(brought_seq, brought)
    if (dropped_seq, brought_seq) == (state.deleted_seq, state.deleted_brought_seq):
        return Judgement((), None)
    return Judgement((BeginDeletion(dropped_seq, brought_seq),), None)


def deletions_before(state: HeadState) -> tuple[BeginDeletion, ...]:
    """The action with which a log begins to say what is deleted. Collectors that said nothing may have
    deleted all that was dropped, or do so now; but nothing that an inline commit brings.
    """
    return (BeginDeletion(state.seq, state.folded_seq),) if state.seq else ()


def judge_raise_horizon(state: HeadState, seq: int) -> Judgement[int]:
    """Only forward, and not beyond the newest commit. The outcome is the horizon."""
    if seq > state.seq:
        raise PreconditionFailedError(
            "the orphan horizon cannot be of the future; read the head again", horizon=seq, seq=state.seq
        )
    if seq <= state.orphan_horizon_seq:
        return Judgement((), state.orphan_horizon_seq)
    return Judgement((RaiseHorizon(seq),), seq)


def trimmable_before(state: HeadState) -> int:
    """The first commit whose history must stay: that of the newest history file, or of a pinned state."""
    if state.history is None:
        return state.history_start_seq
    needed = [first_seq_of_history(state.history.name), *(pin.folded_seq + 1 for pin in state.pins)]
    return min(needed)


def judge_trim_history(
    state: HeadState, before: int, files: Sequence[TrackedFile]
) -> Judgement[tuple[TrackedFile, ...]]:
    """Only forward, and never beyond `trimmable_before`. The outcome is the files that are dropped: those of
    `files` that hold nothing but trimmed commits.
    """
    before = min(before, trimmable_before(state))
    if before <= state.history_start_seq:
        return Judgement((), ())
    dropped = tuple(
        file
        for file in files
        if newest_seq_of(FileKind.HISTORY, file.name) < before and file.name not in state.dropped_objects
    )
    return Judgement((TrimHistory(before, dropped),), dropped)


def judge_pin(state: HeadState, holder: str, until_ms: int) -> Judgement[int]:
    """Always valid. The outcome is the commit that identifies the pin: an earlier one if the same call has
    landed before.
    """
    for pin in state.pins:
        if (pin.holder, pin.until_ms) == (holder, until_ms):
            return Judgement((), pin.seq)
    return Judgement((TakePin(holder, until_ms, state.folded_seq),), state.seq + 1)


def judge_pin_commit(state: HeadState, holder: str, until_ms: int, state_seq: int) -> Judgement[int]:
    """Pins the state after an earlier commit. Valid while all files are kept that this state has and is built
    from: no deletion of one has begun, or another pin holds the same state. The outcome is the commit that
    identifies the pin: an earlier one if the holder has a pin of the same state, whose end moves forward.
    Raises PreconditionFailedError.
    """
    same = [pin for pin in state.pins if pin.state_seq == state_seq]
    for pin in same:
        if pin.holder == holder:
            return Judgement(() if pin.until_ms >= until_ms else (RenewPin(pin.seq, until_ms),), pin.seq)
    # The state of a pin is kept whatever was deleted since.
    folded_seq = same[0].folded_seq if same else base_of(state, state_seq)
    return Judgement((PinCommit(state_seq, holder, until_ms, folded_seq),), state.seq + 1)


def base_of(state: HeadState, state_seq: int) -> int:
    """The commit of the checkpoint from which the state after a commit is built. Raises
    PreconditionFailedError if a file that it takes may be deleted, or is no longer in the history.
    """
    if state_seq > state.seq:
        raise PreconditionFailedError(
            "there is no such commit yet; pin an earlier one", commit=state_seq, newest_commit=state.seq
        )
    oldest_seq = max(state.deleted_brought_seq, state.history_start_seq - 1)
    usable = [seq for seq in _checkpoints(state) if seq >= oldest_seq]
    found = [seq for seq in usable if seq <= state_seq]
    if not found or state_seq < state.deleted_seq:
        raise PreconditionFailedError(
            "files of the state at this commit may be deleted by now, so no pin can keep it; choose a later"
            " moment, from the first commit on that a pin can keep",
            commit=state_seq,
            first_commit=max(state.deleted_seq, min(usable)),
            newest_commit=state.seq,
        )
    return max(found)


def _checkpoints(state: HeadState) -> list[int]:
    """The commits of the checkpoints that are not forgotten; 0 stands for the state before the first one."""
    dropped = (
        newest_seq_of(file.kind, file.name)
        for file in state.dropped_objects.values()
        if file.kind is FileKind.CHECKPOINT
    )
    replaced = (newest_seq_of(FileKind.CHECKPOINT, one.base) for one in state.replacements if one.base)
    return [0, state.folded_seq, *dropped, *replaced]


def judge_renew_pin(state: HeadState, seq: int, until_ms: int) -> Judgement[None]:
    """Valid while the pin is in the state. Raises PreconditionFailedError if it has ended."""
    pin = state.pin(seq)
    if pin is None:
        raise PreconditionFailedError(
            "the pin has ended, and files that it held may be deleted; take a new pin and begin again",
            pin=seq,
        )
    return Judgement(() if pin.until_ms == until_ms else (RenewPin(seq, until_ms),), None)


def judge_unpin(state: HeadState, seqs: Iterable[int]) -> Judgement[tuple[int, ...]]:
    """Ends those of the pins that are in the state; they are the outcome."""
    known = tuple(seq for seq in sorted(set(seqs)) if state.pin(seq) is not None)
    return Judgement((Unpin(known),) if known else (), known)


def judge_unpin_expired(state: HeadState, now_ms: int) -> Judgement[tuple[int, ...]]:
    """Ends the pins whose time is over at `now_ms`; they are the outcome."""
    return judge_unpin(state, (pin.seq for pin in state.pins if pin.until_ms <= now_ms))
