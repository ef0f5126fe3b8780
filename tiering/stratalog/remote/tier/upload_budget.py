"""The bytes and the requests that uploads may send in a second, and the objects that may be on their way: one
budget for all shards of a server.

Shards take turns, a second's bytes or a request at a time, so the backlog of one delays each other one by a
turn for each shard. They divide the objects on their way evenly; each may have one in any case, so that a
shard whose objects hang holds up no other.

Segments and tails have a budget each. Callers wait for tails, so these go first: what they send is owed by
the segments at once, which wait for it. Tails wait for other tails only. So both together keep to the limit,
and a backlog of segments delays no append at `object`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

from stratalog.base.clock import Clock
from stratalog.cleaner.throttler import Throttler

_LOOK_S = 1.0
"""Time between two calls of `check` while others have their turns."""


class _SharedLimit:
    """A limit that shards take in turns. Thread-safe: `_changed` guards the turns, and the throttler is."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.throttler = Throttler(clock)
        self._changed = threading.Condition()
        self._is_taken = False
        self._waiting: Counter[int] = Counter()
        """The calls that wait for their turn, by shard."""
        self._known: set[int] = set()
        """The shards that have sent. One alone needs no turns."""
        self._turn_count = 0
        self._last_turns: dict[int, int] = {}
        """The number of the last turn of each shard."""

    def take(self, shard: int, amount: int, check: Callable[[], None]) -> None:
        """Wait for a turn of the shard, and until time has paid for the turns before. Raises the errors of
        `check`, and has taken nothing then."""
        with self._changed:
            self._known.add(shard)
            is_alone = len(self._known) == 1
        if is_alone:
            self.throttler.take(amount, check)
            return
        self._begin_turn(shard, check)
        try:
            self.throttler.take(amount, check)
        finally:
            with self._changed:
                self._is_taken = False
                self._changed.notify_all()

    def _begin_turn(self, shard: int, check: Callable[[], None]) -> None:
        with self._changed:
            self._waiting[shard] += 1
            try:
                while self._is_taken or shard != self._next_shard():
                    check()
                    self._clock.wait(self._changed, _LOOK_S)
                self._is_taken = True
                self._turn_count += 1
                self._last_turns[shard] = self._turn_count
            finally:
                self._waiting[shard] -= 1
                # The turn of another one, if this call has given up.
                self._changed.notify_all()

    def _next_shard(self) -> int:
        """The shard whose last turn is longest ago, of those that wait."""
        waiting = (shard for shard, count in self._waiting.items() if count)
        return min(waiting, key=lambda shard: (self._last_turns.get(shard, 0), shard))


class UploadBudget:
    """Limits of bytes, requests and objects, shared by the uploads of segments, or of tails, of all shards.
    Thread-safe: `_lock` guards the shards that send, and the limits are."""

    def __init__(self, clock: Clock, payer: UploadBudget | None = None) -> None:
        """Without limits, until `limit` is called. `payer` owes what is taken here, too."""
        self._payer = payer
        self._bytes = _SharedLimit(clock)
        # It counts requests instead of bytes.
        self._requests = _SharedLimit(clock)
        self._lock = threading.Lock()
        self._sending: set[int] = set()

    def limit(self, max_bytes_per_s: float, max_requests_per_s: float) -> None:
        """Change the limits, also for calls that wait."""
        self._bytes.throttler.set_max_bytes_per_s(max_bytes_per_s)
        self._requests.throttler.set_max_bytes_per_s(max_requests_per_s)

    def take_bytes(self, shard: int, size_bytes: int, check: Callable[[], None]) -> None:
        """Wait until so many bytes may be sent. Calls `check` at least once a second meanwhile, and raises
        its errors."""
        while size_bytes > 0:
            second_bytes = self._bytes.throttler.max_bytes_per_s
            piece_bytes = min(size_bytes, max(1, int(min(second_bytes, size_bytes))))
            self._bytes.take(shard, piece_bytes, check)
            if self._payer is not None:
                self._payer.owe(size_bytes=piece_bytes)
            size_bytes -= piece_bytes

    def take_request(self, shard: int, check: Callable[[], None]) -> None:
        """Wait until one more request may be sent. Calls `check` as `take_bytes` does."""
        self._requests.take(shard, 1, check)
        if self._payer is not None:
            self._payer.owe(request_count=1)

    def owe(self, *, size_bytes: int = 0, request_count: int = 0) -> None:
        """Let later calls wait for what is sent without a wait here."""
        self._bytes.throttler.owe(size_bytes)
        self._requests.throttler.owe(request_count)

    def object_count(self, shard: int, max_count: int) -> int:
        """The objects that the shard may have on their way: its part of `max_count`, and at least one. The
        shard counts as one that sends, until `end_sending`."""
        with self._lock:
            self._sending.add(shard)
            return max(1, max_count // len(self._sending))

    def end_sending(self, shard: int) -> None:
        """Leave the shard's part to the others."""
        with self._lock:
            self._sending.discard(shard)
