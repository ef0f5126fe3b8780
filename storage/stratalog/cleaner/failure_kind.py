"""The kinds of failures that keep a partition from being cleaned, by the action that they need."""

from __future__ import annotations

import enum

from stratalog.base.errors import CorruptRecordError, DataDirectoryError, LogStoreError
from stratalog.base.filesystem import NO_SPACE

MAX_REASON_LENGTH = 500
"""A reason is for people, and may quote foreign text."""


class FailureKind(enum.Enum):
    """The cause of a failed clean."""

    DAMAGE = "damage"
    """The segment in the reason is damaged."""
    DISK = "disk"
    """The disk refused an operation."""
    FULL_DISK = "full disk"
    """There was no space for the copy. Nothing is damaged."""
    REFUSED = "refused"
    """Another part of the server refused; the reason says why."""
    NO_PROGRESS = "no progress"
    """A clean ended where it had begun."""
    UNEXPECTED = "unexpected"
    """An unexpected error: the server's log has its trace."""


def kind_of(failure: BaseException) -> FailureKind:
    """The kind of an error that the engine raised; an OSError among its causes decides between disk and full
    disk."""
    if isinstance(failure, CorruptRecordError):
        return FailureKind.DAMAGE
    cause: BaseException | None = failure
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__
    if cause is not None and cause.errno in NO_SPACE:
        return FailureKind.FULL_DISK
    if isinstance(failure, DataDirectoryError | OSError):
        return FailureKind.DISK
    return FailureKind.REFUSED if isinstance(failure, LogStoreError) else FailureKind.UNEXPECTED


def reason_of(failure: BaseException) -> str:
    """Describe the failure in one line of bounded length."""
    text = " ".join(str(failure).split())
    if kind_of(failure) is FailureKind.UNEXPECTED:
        text = f"{type(failure).__name__}: {text}"
    return text if len(text) <= MAX_REASON_LENGTH else text[: MAX_REASON_LENGTH - 3] + "..."
