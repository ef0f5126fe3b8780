"""The contact of a shard with the store: when a look at the head last succeeded, why not since, and whether
the two clocks agree.

Two rules depend on it. An owner that has not read the head for longer than a bound acknowledges nothing at
`disk`, because a new owner would set those records aside. And while the clocks are more than five minutes
apart, nothing is deleted or expires by time. Each of the two states is logged once when it begins and once
when it ends: by the look at the head that notices it, and a silence also by the first append that it refuses.
Shards that share `ContactFaults` log it for the first and the last of them; the first line names all that
have it by then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.errors import StoreError, StoreUnavailableError
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.server.partitions.common_fault import CommonFault
from stratalog.server.partitions.store_trouble import StoreTrouble

logger = logging.getLogger(__name__)

COMPARISON_PERIOD_MS = 60_000
"""The age at which a comparison of the clocks is made again, with the next look at the head."""


class ContactFaults(NamedTuple):
    """The faults of the contact that shards have together."""

    silence: CommonFault
    wrong_clock: CommonFault

    @staticmethod
    def none() -> ContactFaults:
        return ContactFaults(CommonFault(), CommonFault())


class StoreContact:
    """The contact of one shard with the store. Thread-safe: `_lock` guards the states that were logged, and
    of two answers that come at once either may be remembered."""

    def __init__(
        self, clock: Clock, metadata: MetadataLog, max_silence_ms: int, faults: ContactFaults
    ) -> None:
        """Created right after an answer. With `max_silence_ms` 0 no silence is too long."""
        self._faults = faults
        self._clock = clock
        self._metadata = metadata
        self._max_silence_ms = max_silence_ms
        self._lock = threading.Lock()
        self._last_answer_s = clock.monotonic_s()
        self._last_answer_ms = clock.now_ms()
        self._failure: StoreError | None = None
        self._may_have_lost_data = False
        self._catalog_answer_s = self._last_answer_s
        self._may_have_lost_catalog = False
        self._is_silence_logged = False
        self._wrong_clock_since_s: float | None = None
        faults.silence.watch(metadata.shard, lambda: self.is_too_silent)
        faults.wrong_clock.watch(metadata.shard, lambda: self.is_clock_wrong)

    @property
    def last_answer_ms(self) -> int:
        """The start of the last look at the head that the store answered, in milliseconds since 1970 UTC: the
        answer may be as old."""
        return self._last_answer_ms

    @property
    def silence_ms(self) -> int:
        """Milliseconds since then, by a clock that does not jump."""
        return round((self._clock.monotonic_s() - self._last_answer_s) * 1000)

    @property
    def failure(self) -> StoreError | None:
        """The error of the last look at the head; None if it was answered."""
        return self._failure

    @property
    def may_have_lost_data(self) -> bool:
        """Whether the store has said since its last answer that the bucket is gone, or that the head is lost
        or damaged, the shard's or the catalog's: local copies may be the last ones. Who empties a bucket by
        mistake deletes by name: the catalog first, then the objects, and the shards' heads last."""
        return self._may_have_lost_data or self._may_have_lost_catalog

    @property
    def is_too_silent(self) -> bool:
        """Whether appends at `disk` are refused."""
        return 0 < self._max_silence_ms < self.silence_ms

    @property
    def is_clock_wrong(self) -> bool:
        """Whether the clocks were too far apart when they were last compared: nothing is deleted then."""
        return not self._metadata.have_clocks_agreed

    @property
    def is_comparison_due(self) -> bool:
        """Whether the next look at the head compares the clocks. A jump of the own clock makes it due."""
        compared = self._metadata.compared_clocks
        return abs(self._clock.now_ms() - compared.at_ms) >= COMPARISON_PERIOD_MS

    def note_answer(self, asked_s: float, asked_ms: int) -> None:
        """Note that the store answered a look which began then."""
        if asked_s >= self._last_answer_s:
            self._last_answer_s, self._last_answer_ms = asked_s, asked_ms
            self._failure = None
            self._may_have_lost_data = False

    def note_failure(self, asked_s: float, failure: StoreError) -> None:
        """Note that a look which began then has failed. One that was overtaken by an answer counts no
        more."""
        if asked_s >= self._last_answer_s:
            self._failure = failure
            self._may_have_lost_data |= StoreTrouble.of(failure).may_have_lost_data

    def note_catalog(self, asked_s: float, failure: StoreError | None) -> None:
        """Note the end of a look at the catalog which began then, unless a later one was answered."""
        if asked_s < self._catalog_answer_s:
            return
        if failure is None:
            self._catalog_answer_s = asked_s
            self._may_have_lost_catalog = False
        else:
            self._may_have_lost_catalog |= StoreTrouble.of(failure).may_have_lost_data

    def ensure_heard(self) -> None:
        """Check that the head was read recently. Raises StoreUnavailableError (retriable) if the last answer
        is older than the bound.

        Commits do not count, because looks are more frequent and use the same store.
        """
        if not self.is_too_silent:
            return
        self.log_changes()
        silence_ms, failure = self.silence_ms, self._failure
        trouble = _trouble_of(failure)
        raise StoreUnavailableError(
            f"{trouble.lasting(f'{silence_ms // 1000} s')}, another owner may have taken over; appends at"
            f" disk are refused until {_end_of(trouble)}{_reason_of(trouble, failure)}",
            silence_ms=silence_ms,
            max_silence_ms=self._max_silence_ms,
        )

    def log_changes(self) -> None:
        """Log what has begun or ended since the last call: a silence that is too long, a wrong clock."""
        with self._lock:
            self._log_silence()
            self._log_clock()

    def _log_silence(self) -> None:
        if self.is_too_silent == self._is_silence_logged:
            return
        self._is_silence_logged = not self._is_silence_logged
        shard = self._metadata.shard
        if self._is_silence_logged:
            silent, failure = self._faults.silence.begin(shard), self._failure
            trouble = _trouble_of(failure)
            logger.log(
                logging.ERROR if silent else logging.DEBUG,
                "%s: %s, longer than --max-silence: appends at `disk` to tiered topics are refused until"
                " %s%s",
                _named(silent or [shard]),
                trouble.lasting(f"{self.silence_ms // 1000} s"),
                _end_of(trouble),
                _reason_of(trouble, failure) or "; check that it runs and can be reached",
            )
        else:
            level = logging.INFO if self._faults.silence.end(shard) else logging.DEBUG
            logger.log(level, "shard %s: the store answers again: appends at `disk` are accepted", shard)

    def _log_clock(self) -> None:
        since_s = self._wrong_clock_since_s
        if self.is_clock_wrong == (since_s is not None):
            return
        skew_ms, shard = self._metadata.compared_clocks.skew_ms, self._metadata.shard
        if since_s is None:
            self._wrong_clock_since_s = self._clock.monotonic_s()
            wrong = self._faults.wrong_clock.begin(shard)
            logger.log(
                logging.ERROR if wrong else logging.DEBUG,
                "%s: the clock of this server is %d s %s the store's, more than five minutes: nothing"
                " is deleted and nothing expires by time until they agree; correct the clock that is wrong",
                _named(wrong or [shard]),
                abs(skew_ms) // 1000,
                "ahead of" if skew_ms > 0 else "behind",
            )
        else:
            self._wrong_clock_since_s = None
            logger.log(
                logging.INFO if self._faults.wrong_clock.end(shard) else logging.DEBUG,
                "shard %s: the clocks of this server and of the store agree again after %d s, to %d ms:"
                " deletion and retention by time go on",
                shard,
                self._clock.monotonic_s() - since_s,
                skew_ms,
            )


def _trouble_of(failure: StoreError | None) -> StoreTrouble:
    """The kind of a trouble that lasts. A look without an end has no error."""
    return StoreTrouble.NO_ANSWER if failure is None else StoreTrouble.of(failure)


def _end_of(trouble: StoreTrouble) -> str:
    return "it answers" if trouble is StoreTrouble.NO_ANSWER else "a look at the head succeeds"


def _reason_of(trouble: StoreTrouble, failure: StoreError | None) -> str:
    """The words of the store, and what to do; empty where the store says nothing."""
    return "" if failure is None or trouble is StoreTrouble.NO_ANSWER else f": {failure}"


def _named(shards: Sequence[int]) -> str:
    """The numbers of shards for a line of the log."""
    return f"{'shard' if len(shards) == 1 else 'shards'} {', '.join(map(str, shards))}"
