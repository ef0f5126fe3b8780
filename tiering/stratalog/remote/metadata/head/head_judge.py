"""Judges the actions that keep the files of a log in order: forgetting, the orphan horizon, history, pins.

As every judgement, each is a pure function of the state that the head's ETag names. `fold` judges folds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stratalog.base.errors import PreconditionFailedError
from stratalog.remote.metadata.head.document_ref import FileKind, TrackedFile, newest_seq_of
from stratalog.remote.metadata.head.head_actions import (
    Forget,
    RaiseHorizon,
    RenewPin,
    TakePin,
    TrimHistory,
    Unpin,
)
from stratalog.remote.metadata.head.head_log import Judgement
from stratalog.remote.metadata.head.head_state import HeadState
from stratalog.remote.store_layout import first_seq_of_history


def judge_forget(state: HeadState, names: Iterable[str]) -> Judgement[tuple[str, ...]]:
    """Forgets those of the names that are on the list of dropped files; they are the outcome."""
    known = tuple(sorted(name for name in set(names) if name in state.dropped_objects))
    return Judgement((Forget(known),) if known else (), known)


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
