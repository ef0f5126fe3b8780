"""Counts the requests to a store, by verb and key; a bulk deletion has an empty key."""

from __future__ import annotations

from stratalog.objectstore.counted import CountedObjectStore, RequestCount, RequestKind
from stratalog.objectstore.protocol import ObjectStore

__all__ = ("CountingObjectStore", "RequestCount", "RequestKind")


class CountingObjectStore(CountedObjectStore):
    """An object store that counts requests and bytes of each key. Thread-safe: what it extends is."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner, lambda key: key)

    def total(self, verb: str, key_prefix: str = "") -> RequestCount:
        """The sum over all keys that begin with `key_prefix`."""
        of_verb = [
            count
            for kind, count in self.counts().items()
            if kind.verb == verb and kind.kind.startswith(key_prefix)
        ]
        return RequestCount(
            sum(count.requests for count in of_verb), sum(count.size_bytes for count in of_verb)
        )
