"""How long recent GETs took, by size."""

from __future__ import annotations

import threading
from collections import deque

_WINDOW_COUNT = 256
_RENEW_COUNT = 16
"""The slow end is computed again after so many samples."""
_QUANTILE = 0.95


class _SizeClass:
    """The recent GETs of about one size. Not thread-safe: guarded by the lock of its `GetLatencies`."""

    def __init__(self) -> None:
        self.samples: deque[float] = deque(maxlen=_WINDOW_COUNT)
        self.until_renewal = 0
        self.slow_s = 0.0

    def add(self, duration_s: float) -> None:
        self.samples.append(duration_s)
        self.until_renewal -= 1
        if self.until_renewal <= 0:
            self.until_renewal = _RENEW_COUNT
            ordered = sorted(self.samples)
            self.slow_s = ordered[int(_QUANTILE * len(ordered))]


class GetLatencies:
    """Durations of the last GETs, by size classes of a factor of four. Thread-safe: `_lock` guards all."""

    def __init__(self, min_sample_count: int) -> None:
        self._min_sample_count = min_sample_count
        self._lock = threading.Lock()
        self._classes: dict[int, _SizeClass] = {}

    def add(self, size_bytes: int, duration_s: float) -> None:
        with self._lock:
            self._classes.setdefault(_class_of(size_bytes), _SizeClass()).add(duration_s)

    def slow_s(self, size_bytes: int) -> float | None:
        """The time within which 95 of 100 GETs of about this size came back; None while too few did."""
        with self._lock:
            found = self._classes.get(_class_of(size_bytes))
            return None if found is None or len(found.samples) < self._min_sample_count else found.slow_s


def _class_of(size_bytes: int) -> int:
    return size_bytes.bit_length() // 2
