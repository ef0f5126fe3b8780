"""The outcome of judging: what to commit, and what to tell the caller then."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from stratalog.base.errors import InvalidRequestError
from stratalog.remote.metadata.head.log_state import LogState
from stratalog.remote.metadata.shard.actions import Action, Forget

R = TypeVar("R")

DELETED_TOPIC_KEPT_MS = 30 * 24 * 3600 * 1000
"""How long the catalog and the shards remember a deleted topic."""


@dataclass(frozen=True, slots=True)
class Judgement(Generic[R]):
    """Immutable. Without actions there is nothing to commit, and the outcome holds at once."""

    actions: tuple[Action, ...]
    outcome: R


def judge_forget(state: LogState, names: Iterable[str]) -> Judgement[tuple[str, ...]]:
    """What is on the list of dropped files is taken off it; the outcome is what that was."""
    known = tuple(sorted(name for name in set(names) if name in state.dropped_objects))
    return Judgement((Forget(known),) if known else (), known)


def require_request(is_valid: bool, message: str, **fields: object) -> None:
    """Raises InvalidRequestError with `message` unless it is valid."""
    if not is_valid:
        raise InvalidRequestError(message, **fields)
