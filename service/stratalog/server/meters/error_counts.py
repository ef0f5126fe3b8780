"""Counts the errors in answers: those that end a call, and those about one partition or message of it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple


class AnsweredError(NamedTuple):
    """Errors that are counted together."""

    code: str
    """The name of the status code."""
    reason: str
    """The code of the error."""


class ErrorCounts:
    """Counts errors. Thread-safe: `_lock` guards the counts."""

    def __init__(self, expected: Iterable[tuple[str, str]] = ()) -> None:
        """`expected` has codes and reasons that begin at 0: Prometheus sees no growth of a count that begins
        at 1."""
        self._lock = threading.Lock()
        self._counts = Counter({AnsweredError(*one): 0 for one in expected})

    def add(self, code: str, reason: str) -> None:
        """Count an error."""
        with self._lock:
            self._counts[AnsweredError(code, reason)] += 1

    def counts(self) -> Mapping[AnsweredError, int]:
        """The errors since the start."""
        with self._lock:
            return dict(self._counts)
