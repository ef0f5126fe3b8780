"""Deletes the objects that the store lets go of, and names the others."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stratalog.base.errors import DeletionRefusedError
from stratalog.objectstore.protocol import ObjectStore


def delete_allowed(store: ObjectStore, keys: Sequence[str]) -> tuple[Collection[str], list[str]]:
    """Delete these objects. Returns the keys that the store keeps, and at most one text for people about
    them. Raises the other errors of `ObjectStore.delete_many`.
    """
    try:
        store.delete_many(keys)
    except DeletionRefusedError as error:
        return error.keys, [f"objects that are due are not deleted, and are tried again each day: {error}"]
    return (), []
