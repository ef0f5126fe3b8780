"""The seam for identifiers and chance, so that a test can repeat itself."""

from __future__ import annotations

import random
import secrets
from typing import Protocol
from uuid import UUID


class IdGenerator(Protocol):
    """Makes unique identifiers. Thread-safe."""

    def uuid(self) -> UUID:
        """A random (version 4) UUID."""
        ...

    def secret(self, size_bytes: int) -> bytes:
        """Unguessable bytes, for hash keys."""
        ...


class SystemIdGenerator:
    """Identifiers from the operating system's randomness. Thread-safe."""

    def uuid(self) -> UUID:
        return UUID(bytes=secrets.token_bytes(16), version=4)

    def secret(self, size_bytes: int) -> bytes:
        return secrets.token_bytes(size_bytes)


def seeded_random(ids: IdGenerator) -> random.Random:
    """A generator that `ids` seed, so that a test that repeats the ids repeats its numbers."""
    return random.Random(ids.secret(16))


def system_random() -> random.Random:
    """The generator for jitter and back-off outside tests, seeded by the operating system."""
    return random.Random(secrets.randbits(128))
