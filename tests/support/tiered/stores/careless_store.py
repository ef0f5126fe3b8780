"""A store that ignores preconditions of writes, as some servers do."""

from __future__ import annotations

from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import Buffer
from stratalog.testing.manual_clock import ManualClock


class CarelessStore(MemoryObjectStore):
    """Ignores one of the preconditions, or both. Thread-safe."""

    def __init__(self, *, ignores_match: bool, ignores_absent: bool) -> None:
        super().__init__(ManualClock())
        self._ignores_match = ignores_match
        self._ignores_absent = ignores_absent

    def put(self, key: str, data: Buffer, *, if_match: str | None = None, if_absent: bool = False) -> str:
        return super().put(
            key,
            data,
            if_match=None if self._ignores_match else if_match,
            if_absent=if_absent and not self._ignores_absent,
        )
