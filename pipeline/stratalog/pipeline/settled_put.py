"""A conditional write whose outcome is known."""

from __future__ import annotations

from stratalog.base.errors import ObjectNotFoundError, PreconditionFailedError, StoreUnavailableError
from stratalog.objectstore.protocol import ObjectStore


def settled_put(store: ObjectStore, key: str, data: bytes, *, if_match: str | None = None) -> bool:
    """Replace the object with this ETag, or make it if it is not there; returns whether it has these bytes.

    They must be unlike those of any other writer. A refusal, or an answer that got lost, may hide a write
    that landed, so the object is read then. Raises StoreUnavailableError if the outcome stays unknown,
    StoreError.
    """
    try:
        store.put(key, data, if_match=if_match, if_absent=if_match is None)
    except PreconditionFailedError:
        return _is_there(store, key, data)
    except StoreUnavailableError:
        # The write may still be on its way; once another object is there, it is refused.
        if _is_there(store, key, data):
            return True
        raise
    return True


def _is_there(store: ObjectStore, key: str, data: bytes) -> bool:
    try:
        return store.get(key).data == data
    except ObjectNotFoundError:
        return False
