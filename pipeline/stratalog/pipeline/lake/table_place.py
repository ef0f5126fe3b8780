"""The place of a table: a local directory that all machines share, or a prefix of a bucket."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stratalog.objectstore.open_store import open_store
from stratalog.objectstore.protocol import ObjectStore

OpenTable = Callable[[], ObjectStore]
"""Opens the object store of a table; the caller closes it. Pickled to the machines, so it has plain values
only."""


@dataclass(frozen=True, slots=True)
class TablePlace:
    """Implements `OpenTable` by a URL as that of a store. Immutable. Credentials are found as boto3 does, on
    each machine."""

    url: str

    def __call__(self) -> ObjectStore:
        return open_store(self.url)

    @property
    def location(self) -> str:
        """The URL without settings, as table formats name files."""
        return self.url.partition("?")[0].rstrip("/")
