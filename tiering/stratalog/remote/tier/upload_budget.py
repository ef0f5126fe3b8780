"""The bytes and the requests that the uploads of a shard, of segments and of tails, may send in a second.

Callers wait for tails, so these go first: what they send is owed by the segments at once, which wait for it.
Tails wait for other tails only. So both together keep to the limit, and a backlog of segments delays no
append at `object`.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.base.clock import Clock
from stratalog.cleaner.throttler import Throttler


class UploadBudget:
    """Limits of bytes and requests, shared by all objects on their way from one uploader of a shard.
    Thread-safe: the throttlers are."""

    def __init__(self, clock: Clock, payer: UploadBudget | None = None) -> None:
        """Without limits, until `limit` is called. `payer` owes what is taken here, too."""
        self._payer = payer
        self._bytes = Throttler(clock)
        # It counts requests instead of bytes.
        self._requests = Throttler(clock)

    def limit(self, max_bytes_per_s: float, max_requests_per_s: float) -> None:
        """Change the limits, also for calls that wait."""
        self._bytes.set_max_bytes_per_s(max_bytes_per_s)
        self._requests.set_max_bytes_per_s(max_requests_per_s)

    def take_bytes(self, size_bytes: int, check: Callable[[], None]) -> None:
        """Wait until so many bytes may be sent. Calls `check` at least once a second meanwhile, and raises
        its errors."""
        while size_bytes > 0:
            piece_bytes = min(size_bytes, max(1, int(min(self._bytes.max_bytes_per_s, size_bytes))))
            self._bytes.take(piece_bytes, check)
            if self._payer is not None:
                self._payer.owe(size_bytes=piece_bytes)
            size_bytes -= piece_bytes

    def take_request(self, check: Callable[[], None]) -> None:
        """Wait until one more request may be sent. Calls `check` before it waits, and raises its errors."""
        self._requests.take(1, check)
        if self._payer is not None:
            self._payer.owe(request_count=1)

    def owe(self, *, size_bytes: int = 0, request_count: int = 0) -> None:
        """Let later calls wait for what is sent without a wait here."""
        self._bytes.owe(size_bytes)
        self._requests.owe(request_count)
