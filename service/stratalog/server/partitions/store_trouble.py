"""Kinds of trouble with the object store, by the error of a look at it, with their words for people.

An operator acts on each in another way: a store that does not answer is looked for in the network, one that
refuses this server wants other credentials or permissions, and a bucket that is gone or metadata that cannot
be read is mended in the store.

Only metadata that cannot be read puts the state that was read last out of force: otherwise no one can read
another one. Where the bucket is gone or the metadata is lost, the objects may be lost, too, and local copies
stay.
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
    permission or key."""
    BUCKET_GONE = "bucket-gone"
    """The store answers that the bucket does not exist."""
    UNREADABLE = "unreadable"
    """The store answers, and its metadata is lost, damaged, archived, or of newer software."""

    @staticmethod
    def of(error: StoreError) -> StoreTrouble:
        """The kind of an error of a look at the store."""
        if isinstance(error, StoreUnavailableError):
            return StoreTrouble.NO_ANSWER
        if error.fields.get("store_code") == "NoSuchBucket":
            return StoreTrouble.BUCKET_GONE
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

    @property
    def may_have_lost_data(self) -> bool:
        """Whether what was uploaded may be gone, so that local copies may be the last ones."""
        return self in (StoreTrouble.BUCKET_GONE, StoreTrouble.UNREADABLE)

    def lasting(self, duration: str) -> str:
        """A clause that says since when the trouble lasts."""
        if self is StoreTrouble.NO_ANSWER:
            return f"the store has not answered for {duration}"
        if self is StoreTrouble.REFUSES:
            return f"the store answers, and has refused this server for {duration}"
        if self is StoreTrouble.BUCKET_GONE:
            return f"the store answers, and the bucket has been gone for {duration}"
        return f"the store answers, and its metadata could not be read for {duration}"
