"""A store whose credentials may read, and neither write nor delete."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.errors import StoreAccessDeniedError
from stratalog.objectstore.protocol import Buffer
from tests.support.tiered.counting_object_store import CountingObjectStore


class ReadOnlyStore(CountingObjectStore):
    """Refuses the writes and deletions of metadata. As thread-safe as its base."""

    def put(self, key: str, data: Buffer, *, if_match: str | None = None, if_absent: bool = False) -> str:
        raise StoreAccessDeniedError("the test gives no permission to write", key=key)

    def delete_many(self, keys: Sequence[str]) -> None:
        raise StoreAccessDeniedError("the test gives no permission to delete", key=keys[0])
