"""How much of a start is left: segments that each thread still has to walk."""

from __future__ import annotations

import threading
from collections.abc import Callable

from stratalog.log.recovery.log_recovery import LoadProgress


class RecoveryProgress:
    """Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._remaining: dict[str, int] = {}

    @property
    def remaining_segment_counts(self) -> dict[str, int]:
        """Of the log that each thread is loading; 0 for one that has nothing to do now."""
        with self._guard:
            return dict(self._remaining)

    def told_by(self, also: Callable[[LoadProgress], None] | None) -> Callable[[LoadProgress], None]:
        """What the loader of a log is to tell; `also` is told as well."""

        def tell(progress: LoadProgress) -> None:
            self._note(progress.remaining_segment_count)
            if also is not None:
                also(progress)

        return tell

    def finished(self) -> None:
        """This thread has loaded its log, or failed to."""
        if self._remaining:
            self._note(0)

    def _note(self, count: int) -> None:
        with self._guard:
            self._remaining[threading.current_thread().name] = count
