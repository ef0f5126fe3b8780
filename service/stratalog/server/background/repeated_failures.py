"""Logs the failures of a periodic task: each once, as long as it lasts."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable


class RepeatedFailures:
    """Logs the failures of a periodic task, each once as long as it lasts. Thread-safe: `_lock` guards the
    failures of the last pass."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._told: frozenset[str] = frozenset()

    def tell(self, failures: Iterable[str]) -> None:
        """Log all failures of a pass: as a warning, or for debugging if the last pass had the failure too."""
        met = tuple(dict.fromkeys(failures))
        with self._lock:
            told, self._told = self._told, frozenset(met)
        for failure in met:
            self._logger.log(logging.DEBUG if failure in told else logging.WARNING, "%s", failure)
