"""Reads of a store without threads: what would run beside a read runs within it."""

from __future__ import annotations

from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.read.object_reads import ObjectReads, ReadThreads, RemoteReaderSettings
from stratalog.testing.manual_clock import ManualClock


def inline_reads(store: ObjectStore, settings: RemoteReaderSettings | None = None) -> ObjectReads:
    """Caches of their own, with read-ahead at once."""
    return ObjectReads(store, ManualClock(), ReadThreads.none(), settings)
