"""A disk with a bounded space."""

from __future__ import annotations

from stratalog.testing.faulty_filesystem import FaultyFileSystem


class BoundedDisk(FaultyFileSystem):
    """A disk that says how much space its files leave, and refuses nothing. Thread-safe."""

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__()
        self._capacity_bytes = capacity_bytes

    def free_bytes(self, path: str) -> int:
        return self._capacity_bytes - self.inner.used_bytes()
