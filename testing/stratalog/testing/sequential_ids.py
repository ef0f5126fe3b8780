"""Identifiers that are the same whenever a test runs."""

from __future__ import annotations

import hashlib
import threading
from uuid import UUID


class SequentialIds:
    """`IdGenerator` whose results follow from the seed and the number of calls. Thread-safe."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._count = 0
        self._guard = threading.Lock()

    def uuid(self) -> UUID:
        return UUID(bytes=self._bytes(b"uuid", 16), version=4)

    def secret(self, size_bytes: int) -> bytes:
        return self._bytes(b"secret", size_bytes)

    def _bytes(self, purpose: bytes, size_bytes: int) -> bytes:
        with self._guard:
            self._count += 1
            name = b"%s:%d:%d" % (purpose, self._seed, self._count)
        # SHAKE gives as many bytes as are asked for; different seeds and counts never look alike.
        return hashlib.shake_128(name).digest(size_bytes)
