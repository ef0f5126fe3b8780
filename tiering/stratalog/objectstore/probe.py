"""Checks that a store honours conditional writes, the one promise that commits rely on.

Some servers that call themselves S3-compatible ignore `If-Match` and `If-None-Match` and overwrite. Two
owners on such a store would overwrite each other's commits silently. So a writer first tries the store with a
scratch object of a fresh name.
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

    Raises StoreNotUsableError if the second or the fourth is not refused, StoreUnavailableError if an
    outcome is unclear (try again: each probe has its own name).
    """
    key = f"{scratch_prefix}{ids.uuid()}"
    try:
        created = store.put(key, b"created by a probe", if_absent=True)
    except PreconditionFailedError as error:
        # No other process knows this name, so the request was sent twice on its way.
        raise StoreUnavailableError(
            "the outcome of a probing write is unclear; try again", store=store.url
        ) from error
    try:
        if not _is_refused(store, key, b"created twice by a probe", if_absent=True):
            raise _lacks(store, "If-None-Match")
        try:
            store.put(key, b"replaced by a probe", if_match=created)
        except PreconditionFailedError as error:
            raise StoreUnavailableError(
                "the outcome of a probing write is unclear; try again", store=store.url
            ) from error
        if not _is_refused(store, key, b"replaced twice by a probe", if_match=created):
            raise _lacks(store, "If-Match")
    finally:
        # Without permission to delete, an operator has to remove old scratch objects.
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
        "the store ignores preconditions, so commits would be lost; use a store that honours them (AWS S3,"
        " MinIO, SeaweedFS or a local directory do)",
        store=store.url,
        header=header,
    )
