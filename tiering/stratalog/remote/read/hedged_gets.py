"""Ranged GETs, of which a slow one gets a rival.

One GET in a hundred takes many times as long as the others, on every object store. So a GET that has no
answer after the time in which 95 of 100 recent GETs of its size had one is sent once more. The first good
answer counts; the other request stops at its next piece. The rivals are at most a small share of all
requests, so a store that is slow as a whole is not made slower. Where GETs are fast, there is nothing to
gain, and they run on the caller's own thread; so do those of read-ahead, see `ahead_gets`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from typing import Final, NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.errors import StoreUnavailableError
from stratalog.base.scheduler import RunBeside
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.read.get_latencies import GetLatencies

_PIECE_BYTES: Final = 1 << 20
_MAX_CREDIT: Final = 8.0
"""Rivals that quick requests may save up for a slow moment."""
_DEADLINE_S: Final = 120.0
"""A request that is read in pieces, takes longer, and a second for each MiB, counts as failed."""
MIN_SAMPLE_COUNT: Final = 64


class GetStats(NamedTuple):
    """The GETs of readers, since the start."""

    get_count: int = 0
    """Ranges that were fetched."""
    size_bytes: int = 0
    """Size of these ranges."""
    duration_s: float = 0.0
    """The time that they took together."""
    failed_count: int = 0
    hedge_count: int = 0
    """Second requests for a range."""
    hedge_won_count: int = 0
    """Second requests that answered first."""


class _Race:
    """The requests for one range. Thread-safe: `_condition` guards everything."""

    def __init__(self, store: ObjectStore, clock: Clock, key: str, start: int, size_bytes: int) -> None:
        self._store = store
        self._clock = clock
        self._key = key
        self._start = start
        self._size_bytes = size_bytes
        self._condition = threading.Condition()
        self._running_count = 0
        self._failure: Exception | None = None
        self._answer: bytes | None = None
        self.winner = 0

    def send(self, number: int, run_beside: RunBeside) -> None:
        with self._condition:
            self._running_count += 1
        run_beside(lambda: self._request(number))

    def is_decided(self, timeout_s: float | None) -> bool:
        """Wait until there is an answer, or every request has failed; False after `timeout_s`."""
        end_s = None if timeout_s is None else self._clock.monotonic_s() + timeout_s
        with self._condition:
            while self._answer is None and self._running_count:
                left_s = None if end_s is None else end_s - self._clock.monotonic_s()
                if left_s is not None and left_s <= 0:
                    return False
                self._clock.wait(self._condition, left_s)
            return True

    def answer(self) -> bytes:
        """The first good answer. Raises the first failure if there is none."""
        self.is_decided(None)
        if self._answer is not None:
            return self._answer
        assert self._failure is not None
        raise self._failure

    def _request(self, number: int) -> None:
        answer: bytes | None = None
        failure: Exception | None = None
        try:
            answer = self._read()
        except Exception as error:  # noqa: BLE001 - its reader raises it
            failure = error
        with self._condition:
            self._running_count -= 1
            self._failure = self._failure or failure
            if answer is not None and self._answer is None:
                self._answer, self.winner = answer, number
            self._condition.notify_all()

    def _read(self) -> bytes | None:
        """The range; None if the other request has won meanwhile."""
        if self._is_over():
            return None
        end = self._start + self._size_bytes
        ends = [*range(self._start + _PIECE_BYTES, end, _PIECE_BYTES), end]
        pieces: list[bytes] = []
        with closing(_pieces(self._store, self._clock, self._key, self._start, ends)) as coming:
            for piece in coming:
                pieces.append(piece)
                if self._is_over():
                    return None
        return b"".join(pieces)

    def _is_over(self) -> bool:
        return self._answer is not None


class HedgedGets:
    """Fetches ranges of objects. Thread-safe: `_lock` guards the counts; requests run outside it."""

    def __init__(
        self, store: ObjectStore, clock: Clock, run_beside: RunBeside, hedge_percent: int, least_delay_ms: int
    ) -> None:
        """`run_beside` runs requests that may get a rival. `hedge_percent` bounds the rivals; 0: none. GETs
        that mostly take less than `least_delay_ms` get none either."""
        self._store = store
        self._clock = clock
        self._run_beside = run_beside
        self._hedge_share = hedge_percent / 100
        self._least_delay_s = least_delay_ms / 1000
        self._latencies = GetLatencies(MIN_SAMPLE_COUNT)
        self._lock = threading.Lock()
        self._credit = 0.0
        self._stats = GetStats()

    @property
    def stats(self) -> GetStats:
        return self._stats

    def get(self, key: str, start: int, end: int) -> bytes:
        """Bytes [start, end) of an object. Raises ObjectNotFoundError, StoreCorruptError if it ends sooner,
        StoreUnavailableError."""
        delay_s = self.rival_delay_s(end - start)
        if delay_s is None:
            return self.get_alone(key, start, end)
        race = _Race(self._store, self._clock, key, start, end - start)
        return self._counted(end - start, lambda: self._raced(race, delay_s))

    def get_alone(self, key: str, start: int, end: int) -> bytes:
        """Like `get`, without a rival, on the caller's own thread."""
        return self._counted(end - start, lambda: self._store.get_range(key, start, end - start))

    def pieces_alone(self, key: str, start: int, ends: Sequence[int]) -> Generator[bytes]:
        """The bytes of an object from `start` up to each of `ends`, by one GET like `get_alone`, each piece
        as it comes. Raises the errors of `get`."""
        begin_s, end = self._clock.monotonic_s(), start
        try:
            with closing(_pieces(self._store, self._clock, key, start, ends)) as coming:
                for piece in coming:
                    end += len(piece)
                    # A GET of this size alone would have ended now.
                    self._latencies.add(end - start, self._clock.monotonic_s() - begin_s)
                    yield piece
        finally:
            duration_s = self._clock.monotonic_s() - begin_s
            self._count(ends[-1] - start, duration_s, is_failed=end < ends[-1])

    def rival_delay_s(self, size_bytes: int) -> float | None:
        """The time after which a GET of about this size deserves a rival; None if none does."""
        delay_s = self._latencies.slow_s(size_bytes) if self._hedge_share else None
        return None if delay_s is None or delay_s < self._least_delay_s else delay_s

    def _raced(self, race: _Race, delay_s: float) -> bytes:
        race.send(0, self._run_beside)
        is_hedged = not race.is_decided(delay_s) and self.take_credit()
        if is_hedged:
            race.send(1, self._run_beside)
        data = race.answer()
        if race.winner:
            self.count_won()
        return data

    def count_won(self) -> None:
        """Count a rival that answered first."""
        with self._lock:
            self._stats = self._stats._replace(hedge_won_count=self._stats.hedge_won_count + 1)

    def take_credit(self) -> bool:
        """Count a rival, unless there would be too many; returns whether it may be sent."""
        with self._lock:
            if self._credit < 1:
                return False
            self._credit -= 1
            self._stats = self._stats._replace(hedge_count=self._stats.hedge_count + 1)
            return True

    def _counted(self, size_bytes: int, request: Callable[[], bytes]) -> bytes:
        begin_s = self._clock.monotonic_s()
        data: bytes | None = None
        try:
            data = request()
            self._latencies.add(size_bytes, self._clock.monotonic_s() - begin_s)
            return data
        finally:
            self._count(size_bytes, self._clock.monotonic_s() - begin_s, is_failed=data is None)

    def _count(self, size_bytes: int, duration_s: float, *, is_failed: bool) -> None:
        with self._lock:
            before = self._stats
            self._credit = min(_MAX_CREDIT, self._credit + self._hedge_share)
            self._stats = before._replace(
                get_count=before.get_count + 1,
                size_bytes=before.size_bytes + (0 if is_failed else size_bytes),
                duration_s=before.duration_s + duration_s,
                failed_count=before.failed_count + is_failed,
            )


def _pieces(store: ObjectStore, clock: Clock, key: str, start: int, ends: Sequence[int]) -> Generator[bytes]:
    """The bytes of an object from `start` up to each of `ends`, by one GET. Raises StoreUnavailableError
    also where they come too slowly."""
    size_bytes = ends[-1] - start
    deadline_s = clock.monotonic_s() + _DEADLINE_S + size_bytes / (1 << 20)
    stream = store.open_range(key, start, size_bytes)
    try:
        for end in ends:
            piece = stream.read(end - start)
            if len(piece) < end - start or clock.monotonic_s() > deadline_s:
                raise StoreUnavailableError(
                    "the store sends an object too slowly; try again", key=key, store=store.url
                )
            start = end
            yield piece
    finally:
        stream.close()
