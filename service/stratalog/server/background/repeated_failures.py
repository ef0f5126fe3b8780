"""Tells failures of a task that comes again and again: once each, as long as they last."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable


class RepeatedFailures:
    """Thread-safe: `_lock` guards what was told."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._told: frozenset[str] = frozenset()

    def tell(self, failures: Iterable[str]) -> None:
        """What a pass has met, all of it: a warning for what the pass before has not."""
        met = tuple(dict.fromkeys(failures))
        with self._lock:
            told, self._told = self._told, frozenset(met)
        for failure in met:
            self._logger.log(logging.DEBUG if failure in told else logging.WARNING, "%s", failure)
