"""Kinds of trouble with the object store, by the error of a look at it, with their words for people.

An operator acts on each in another way: a store that does not answer is looked for in the network, one that
refuses this server wants other credentials, permissions, or a bucket, and metadata that cannot be read is
mended in the store.

Only the third says something about the metadata. The other two leave the state that was read last in force,
for as long as no one can read another one.
"""

from __future__ import annotations

import enum

from stratalog.base.errors import (
    StoreAccessDeniedError,
    StoreError,
    StoreNotUsableError,
    StoreUnavailableError,
)


class StoreTrouble(enum.Enum):
    """A kind of trouble. Its value is a stable word, for labels of metrics and programs."""

    NO_ANSWER = "no-answer"
    """The store cannot be reached, is too slow, or answers with errors of its own."""
    REFUSES = "store-refuses"
    """The store refuses this server: expired or wrong credentials, a clock that is far off, a missing
    permission, key or bucket."""
    UNREADABLE = "unreadable"
    """The store answers, and its metadata is lost, damaged, archived, or of newer software."""

    @staticmethod
    def of(error: StoreError) -> StoreTrouble:
        """The kind of an error of a look at the store."""
        if isinstance(error, StoreUnavailableError):
            return StoreTrouble.NO_ANSWER
        # Only errors made from a server's response have its code.
        is_answer = isinstance(error, StoreNotUsableError) and "store_code" in error.fields
        if isinstance(error, StoreAccessDeniedError) or is_answer:
            return StoreTrouble.REFUSES
        return StoreTrouble.UNREADABLE

    @staticmethod
    def of_any(error: StoreError | None) -> StoreTrouble | None:
        """The kind of an error, if there is one."""
        return None if error is None else StoreTrouble.of(error)

    @property
    def is_away(self) -> bool:
        """Whether the state that was read last stays in force, as in an outage."""
        return self is not StoreTrouble.UNREADABLE

    def lasting(self, duration: str) -> str:
        """A clause that says since when the trouble lasts."""
        if self is StoreTrouble.NO_ANSWER:
            return f"the store has not answered for {duration}"
        if self is StoreTrouble.REFUSES:
            return f"the store answers, and has refused this server for {duration}"
        return f"the store answers, and its metadata could not be read for {duration}"
