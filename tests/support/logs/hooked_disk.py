"""A disk that calls the test before each operation: the test looks at the log there, waits, or refuses."""

from __future__ import annotations

from collections.abc import Callable

from stratalog.testing.faulty_filesystem import Fate, FaultyFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem


class HookedDisk(FaultyFileSystem):
    """`before` gets the name and the path of each operation; an OSError that it raises is the operation's.

    As thread-safe as `before` is.
    """

    def __init__(
        self, before: Callable[[str, str], None] | None = None, inner: MemoryFileSystem | None = None
    ) -> None:
        super().__init__(inner)
        self.before = before

    def next_fate(self, name: str, path: str) -> Fate | None:
        fate = super().next_fate(name, path)
        if self.before is not None:
            self.before(name, path)
        return fate
