"""A store that does not do what it is asked for."""

from __future__ import annotations

from typing import Any

from stratalog.objectstore.memory import MemoryObjectStore


class ForgetfulStore(MemoryObjectStore):
    """Ignores preconditions, or refuses deletions."""

    ignores, keeps = False, False

    def put(self, key: str, data: Any, *, if_match: str | None = None, if_absent: bool = False) -> str:
        if self.ignores:
            return super().put(key, data)
        return super().put(key, data, if_match=if_match, if_absent=if_absent)

    def delete_many(self, keys: Any) -> None:
        if not self.keeps:
            super().delete_many(keys)
