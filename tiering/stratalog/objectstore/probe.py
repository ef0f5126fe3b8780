"""Does the store keep the one promise that commits rest on?

Some servers that call themselves S3-compatible ignore `If-Match` and `If-None-Match` and simply overwrite;
two owners on such a store would overwrite each other's commits in silence. So whoever opens a store for
writing asks first, on a scratch object of a fresh name.
"""

from __future__ import annotations

from contextlib import suppress

from stratalog.base.errors import (
    PreconditionFailedError,
    StoreError,
    StoreNotUsableError,
    StoreUnavailableError,
)
from stratalog.base.randomness import IdGenerator
from stratalog.objectstore.protocol import ObjectStore


def require_conditional_writes(
    store: ObjectStore, ids: IdGenerator, scratch_prefix: str = "scratch/"
) -> None:
    """Four small writes and a deletion: create, create again, replace, replace the replaced.

    Raises StoreNotUsableError where the second or the fourth is not refused, StoreUnavailableError where an
    outcome was unclear (try again: every probe has a name of its own).
    """
    key = f"{scratch_prefix}{ids.uuid()}"
    try:
        created = store.put(key, b"created by a probe", if_absent=True)
    except PreconditionFailedError as error:
        # Nobody else knows this name, so this is the refusal of a request that something on the way sent
        # twice.
        raise StoreUnavailableError(
            "the outcome of a probing write is unclear: try again", store=store.url
        ) from error
    try:
        if not _is_refused(store, key, b"created twice by a probe", if_absent=True):
            raise _lacks(store, "If-None-Match")
        try:
            store.put(key, b"replaced by a probe", if_match=created)
        except PreconditionFailedError as error:
            raise StoreUnavailableError(
                "the outcome of a probing write is unclear: try again", store=store.url
            ) from error
        if not _is_refused(store, key, b"replaced twice by a probe", if_match=created):
            raise _lacks(store, "If-Match")
    finally:
        # Without permission to delete, the sweep of old scratch objects is somebody else's task.
        with suppress(StoreError):
            store.delete_many([key])


def _is_refused(
    store: ObjectStore, key: str, data: bytes, *, if_match: str | None = None, if_absent: bool = False
) -> bool:
    try:
        store.put(key, data, if_match=if_match, if_absent=if_absent)
    except PreconditionFailedError:
        return True
    return False


def _lacks(store: ObjectStore, header: str) -> StoreNotUsableError:
    return StoreNotUsableError(
        "the store overwrites in spite of a precondition, so commits would be lost: use one that honours it"
        " (AWS S3, MinIO, SeaweedFS or a local directory do)",
        store=store.url,
        header=header,
    )
