"""Runs a pass over the shards, or the log directories, of a server, each by itself: one that fails, hangs or
has got another owner neither ends nor delays the pass for the others. Nothing waits for the outcome; work on
a log directory that something waits for has `PatientDiskCalls`.

A server with one of them does the work at once. With several, each has a thread, some at a time, and those
whose turn is longest ago begin. A round does not wait long: what is still at work is left to it, the next
rounds pass it over, and the first one after its end reports it, and begins it again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    DataDirectoryError,
    LogStoreError,
    NotOwnerError,
    StoppingError,
    StoreUnavailableError,
)
from stratalog.base.scheduler import RunBeside
from stratalog.server.background.shard_tier import ShardTier

logger = logging.getLogger(__name__)

R = TypeVar("R")
K = TypeVar("K", int, str)
"""The number of a shard, or the path of a log directory."""

MAX_AT_WORK_COUNT = 4
"""Shards of one pass that are at work at once, unless the pass says otherwise."""
MAX_DIRECTORY_COUNT = 1000
"""Log directories of one pass that are at work at once: all, because one that hangs keeps its place."""
PATIENCE_S = 5.0
"""Time for which a round waits for its shards."""
HANG_S = 120.0
"""A shard that is at work for longer is reported as one that hangs, unless the pass says otherwise. A turn of
uploads takes a minute."""


class PassRound(NamedTuple, Generic[K, R]):
    """The results of the shards, or directories, that have ended since the last round. Immutable."""

    results: Mapping[K, R]
    """By the number of the shard, or the path of the directory."""
    failures: Mapping[K, LogStoreError]
    """The errors of those that failed or hang."""


class _Work:
    """The work on one shard. Guarded by the condition of the rounds."""

    def __init__(self, begin_s: float) -> None:
        self.begin_s = begin_s
        self.is_done = False
        self.result: Any = None
        self.error: BaseException | None = None


class PassRounds(Generic[K]):
    """Runs passes over shards, or over log directories. Thread-safe: `_changed` guards the work under way. Of
    one pass one round at a time."""

    def __init__(
        self,
        clock: Clock,
        run_beside: RunBeside,
        hanging: Callable[[int], LogStoreError],
        max_at_work_count: int = MAX_AT_WORK_COUNT,
    ) -> None:
        """`run_beside` runs the work on a shard, where there are several. `hanging` makes the error of one
        that has been at work for so many seconds."""
        self._hanging_error = hanging
        self._max_at_work_count = max_at_work_count
        self._clock = clock
        self._run_beside = run_beside
        self._changed = threading.Condition()
        self._at_work: dict[tuple[str, K], _Work] = {}
        """Until a round reports it."""
        self._last_begin_s: dict[tuple[str, K], float] = {}

    def run(
        self,
        name: str,
        works: Mapping[K, Callable[[], R]],
        max_at_work_count: int | None = None,
        hang_s: float | None = None,
    ) -> PassRound[K, R]:
        """Do a round of the pass: the work on each shard, by number; at most so many are at work at once,
        unless that is None. One that is at work for `hang_s` is a failure; None: for `HANG_S`. Raises the
        first error if no shard has ended well and none is at work still; a StoppingError, and an error of a
        kind that no shard's work foresees, in any case."""
        if len(works) == 1 and not self._is_noted(name):
            return PassRound({number: work() for number, work in works.items()}, {})
        ended = self._round(name, works, max_at_work_count or self._max_at_work_count)
        failures: dict[K, LogStoreError] = {}
        for number, one in ended.items():
            if isinstance(one.error, StoppingError):
                raise one.error
            if isinstance(one.error, LogStoreError):
                failures[number] = one.error
            elif one.error is not None:
                raise one.error
        results = {number: one.result for number, one in ended.items() if one.error is None}
        if failures and len(failures) == len(works):
            raise failures[min(failures)]
        return PassRound(results, failures | self._hanging(name, works, HANG_S if hang_s is None else hang_s))

    def _round(
        self, name: str, works: Mapping[K, Callable[[], R]], max_at_work_count: int
    ) -> Mapping[K, _Work]:
        """Begin the work on each shard that is not at work, wait, and return those that have ended. One that
        ended since the last round begins again, and its next end is the next round's to report."""
        end_s = self._clock.monotonic_s() + PATIENCE_S
        ended: dict[K, _Work] = {}
        with self._changed:
            ended |= self._take_ended(name, ended)
            waiting = [number for number in works if (name, number) not in self._at_work]
            waiting.sort(key=lambda number: (self._last_begin_s.get((name, number), -1.0), number))
            while True:
                while waiting and self._count(name) < max_at_work_count:
                    number = waiting.pop(0)
                    self._begin(name, number, works[number])
                now_ended = self._take_ended(name, ended)
                ended |= now_ended
                remaining_s = end_s - self._clock.monotonic_s()
                if self._count(name) == 0 or remaining_s <= 0:
                    return ended
                if not now_ended:
                    self._clock.wait(self._changed, remaining_s)

    def _begin(self, name: str, number: K, work: Callable[[], object]) -> None:
        """Called with `_changed` held, which may be taken again by the same thread."""
        one = _Work(self._clock.monotonic_s())
        self._at_work[name, number] = one
        self._last_begin_s[name, number] = one.begin_s

        def run() -> None:
            try:
                one.result = work()
            except BaseException as error:  # noqa: BLE001 - the round raises it
                one.error = error
            with self._changed:
                one.is_done = True
                self._changed.notify_all()

        self._run_beside(run)

    def _take_ended(self, name: str, reported: Container[K]) -> dict[K, _Work]:
        """Those that have ended, but for what the round reports already. Called with `_changed` held."""
        ended = {
            number: one
            for (of, number), one in self._at_work.items()
            if of == name and one.is_done and number not in reported
        }
        for number in ended:
            del self._at_work[name, number]
        return ended

    def _count(self, name: str) -> int:
        """The shards that are at work. Called with `_changed` held."""
        return sum(of == name and not one.is_done for (of, _), one in self._at_work.items())

    def _is_noted(self, name: str) -> bool:
        """Whether a shard is at work, or has ended and is not reported yet."""
        with self._changed:
            return any(of == name for of, _ in self._at_work)

    def _hanging(self, name: str, works: Mapping[K, object], hang_s: float) -> dict[K, LogStoreError]:
        now_s = self._clock.monotonic_s()
        with self._changed:
            begins = {
                number: one.begin_s
                for (of, number), one in self._at_work.items()
                if of == name and not one.is_done
            }
        return {
            number: self._hanging_error(round(now_s - begin_s))
            for number, begin_s in begins.items()
            if number in works and now_s - begin_s >= hang_s
        }


def hanging_shard(at_work_s: int) -> LogStoreError:
    """The error of a shard that has been at work for so many seconds."""
    return StoreUnavailableError(
        "the work on the shard has not ended, and begins anew once it has; find out why the store"
        " does not answer; a restart helps only once it does",
        at_work_s=at_work_s,
    )


def hanging_directory(at_work_s: int) -> LogStoreError:
    """The error of a log directory that has been at work for so many seconds."""
    return DataDirectoryError(
        "the work on the log directory has not ended, and begins anew once it has; find out why the disk"
        " does not answer, or restart the server",
        at_work_s=at_work_s,
    )


def unless_fenced(tier: ShardTier, work: Callable[[ShardTier], R]) -> Callable[[], R | None]:
    """The work on the shard; it returns None if another server takes the shard over meanwhile, which is no
    failure, and is logged where it is noticed."""

    def run() -> R | None:
        try:
            return work(tier)
        except NotOwnerError:
            tier.shard.refresh()
            if not tier.shard.is_fenced:
                raise
            return None

    return run


def each_shard(tiers: Iterable[ShardTier], work: Callable[[ShardTier], object]) -> None:
    """Do the work on each shard, one after the other, for an operation that a caller has started. A shard
    that fails does not end it for the others: each failure is logged, and the first one is raised at the end,
    with the failures by shard in its field `failed_shards`. A StoppingError ends it at once."""
    failures: dict[int, LogStoreError] = {}
    for tier in tiers:
        try:
            work(tier)
        except StoppingError:
            raise
        except LogStoreError as error:
            number = tier.shard.metadata.shard
            logger.warning("shard %d: the work on it failed, and goes on in the others: %s", number, error)
            failures[number] = error
    if failures:
        failed = "; ".join(f"{number}: {error}" for number, error in failures.items())
        first = failures[min(failures)]
        first.fields["failed_shards"] = failed
        raise first
