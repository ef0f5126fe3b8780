"""The passes of a server: the state of each, for `tier status` and the metrics, and its lines in the log.

A pass is one kind of repeated work, such as `upload`; a turn is one time that it is done, by the schedule or
as an operation. The log has

* a line for each turn that did something, with its counts; an idle turn is logged for debugging;
* a line for each failure when it begins, and none while it lasts;
* a line when rules begin to refuse work for other reasons than before;
* a line when the pass works again, or goes on without what it is refused.

A failure that ends a turn is the same for as long as its class and its message are: keys of objects and the
like do not make it another one. A failure of a single partition is the same while its text is.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.errors import LogStoreError, StoppingError
from stratalog.server.background.pass_outcome import NOTHING, Backlog, PassOutcome

logger = logging.getLogger(__name__)

NEVER_MS = -1
MAX_ERROR_LENGTH = 500
"""Characters of an error that a status keeps."""

Work = Callable[[], PassOutcome | None]


class PassStatus(NamedTuple):
    """The state of a pass since the start of the server. Times are in milliseconds since 1970 UTC, -1 for
    never. Immutable."""

    name: str
    running_since_ms: int = NEVER_MS
    """The begin of the oldest turn that has not ended."""
    last_begin_ms: int = NEVER_MS
    last_end_ms: int = NEVER_MS
    last_success_ms: int = NEVER_MS
    """The end of the last turn without a failure. A turn that a rule refused to do work has not failed."""
    last_work_ms: int = NEVER_MS
    """The end of the last turn that did something."""
    turn_count: int = 0
    """Turns that have ended."""
    failed_turn_count: int = 0
    """Those of them with a failure."""
    consecutive_failure_count: int = 0
    """Turns with a failure since the last one without."""
    last_outcome: PassOutcome | None = None
    """The outcome of the last turn that had one; an idle turn has one, too."""
    last_error: str = ""
    """The first failure of the last turn; empty if it had none."""
    backlog: Backlog = Backlog()
    """The backlog after the last turn, whether it failed or not."""
    total_done: Mapping[str, int] = NOTHING
    total_refusals: Mapping[str, int] = NOTHING


class Turn:
    """A turn of a pass that is under way. Belongs to the thread of the turn, which may set `outcome` to the
    outcome before the turn ends; None if there is nothing to say."""

    def __init__(self, begin_ms: int) -> None:
        self.begin_ms = begin_ms
        self.outcome: PassOutcome | None = None


class _Pass:
    """The mutable part of a pass. Guarded by the registry's lock."""

    def __init__(self, name: str) -> None:
        self.status = PassStatus(name)
        self.measure: Callable[[], Backlog] | None = None
        self.is_frequent = False
        self.turns: list[Turn] = []
        self.logged: frozenset[str] = frozenset()
        """The failures that were logged and last."""
        self.failing_since_s = 0.0


class _Failure(NamedTuple):
    """A failure of a turn. `key` is the same for as long as the failure is."""

    key: str
    text: str
    defect: Exception | None = None
    """An error that no code foresees; the log has its traceback."""


class PassRegistry:
    """Knows all passes. Thread-safe: `_lock` guards the passes, and orders their lines in the log."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._passes: dict[str, _Pass] = {}

    def statuses(self) -> Sequence[PassStatus]:
        """All passes that are scheduled or have run, in the order in which they became known."""
        with self._lock:
            return [one.status for one in self._passes.values()]

    def status(self, name: str) -> PassStatus:
        """The state of a pass; that of one that never ran if it is not known."""
        with self._lock:
            known = self._passes.get(name)
            return PassStatus(name) if known is None else known.status

    def add(
        self, name: str, measure: Callable[[], Backlog] | None = None, *, is_frequent: bool = False
    ) -> None:
        """Make a pass known. `measure`: see `task`. Turns of a pass that `is_frequent` are logged for
        debugging also if they did something."""
        with self._lock:
            known = self._pass(name)
            known.measure, known.is_frequent = measure, is_frequent

    def task(self, name: str, work: Work, measure: Callable[[], Backlog] | None = None) -> Callable[[], None]:
        """A periodic task for the scheduler: each call is a turn. It raises nothing, because the failure of a
        run is logged here. `measure` returns the backlog, where it can be had without the pass: also after a
        run that failed, or that was about a part of the work."""
        self.add(name, measure)

        def run() -> None:
            try:
                with self.turn(name) as one:
                    one.outcome = work()
            except Exception:  # noqa: BLE001 - `turn` has logged it
                return

        return run

    @contextmanager
    def turn(self, name: str) -> Generator[Turn]:
        """Do the block as a turn of the pass. Raises what it raises. StoppingError is neither a success nor a
        failure, nor is an outcome that `is_postponed`."""
        one = self._begin(name)
        failures: list[_Failure] = []
        is_stopped = False
        try:
            yield one
        except StoppingError:
            is_stopped = True
            raise
        except Exception as error:
            failures.append(_failure_of(error))
            raise
        finally:
            self._end(name, one, failures, is_stopped=is_stopped)

    def _begin(self, name: str) -> Turn:
        one = Turn(self._clock.now_ms())
        with self._lock:
            known = self._pass(name)
            known.turns.append(one)
            known.status = known.status._replace(
                last_begin_ms=one.begin_ms, running_since_ms=known.turns[0].begin_ms
            )
        return one

    def _end(self, name: str, turn: Turn, failures: Sequence[_Failure], *, is_stopped: bool) -> None:
        outcome = None if failures or is_stopped else turn.outcome
        if outcome is not None and outcome.is_postponed:
            outcome, is_stopped = None, True
        backlog = self._measured(name) or (None if outcome is None else outcome.backlog)
        if outcome is not None and backlog is not None:
            outcome = outcome._replace(backlog=backlog)
        with self._lock:
            known, now_ms = self._passes[name], self._clock.now_ms()
            known.turns.remove(turn)
            known.status = known.status._replace(
                running_since_ms=known.turns[0].begin_ms if known.turns else NEVER_MS,
                last_end_ms=now_ms,
                backlog=known.status.backlog if backlog is None else backlog,
            )
            if is_stopped:
                return
            if outcome is not None:
                self._note_outcome(known, outcome, now_ms)
            if failures:
                # The failure hides those of single partitions, and it may alternate with others.
                self._note_failures(known, failures, known.logged)
            elif outcome is not None and (found := _failures_in(outcome)):
                self._note_failures(known, found, frozenset())
            else:
                self._note_success(known, NOTHING if outcome is None else outcome.refusals, now_ms)

    def _measured(self, name: str) -> Backlog | None:
        """The backlog of the pass now; None if it has no measure, or cannot be measured."""
        with self._lock:
            measure = self._passes[name].measure
        try:
            return None if measure is None else measure()
        except (LogStoreError, OSError) as error:
            logger.debug("the backlog of %s cannot be measured: %s", name, error)
            return None

    def _note_outcome(self, known: _Pass, outcome: PassOutcome, now_ms: int) -> None:
        status = known.status
        former = frozenset(_present(NOTHING if status.last_outcome is None else status.last_outcome.refusals))
        reasons = frozenset(_present(outcome.refusals))
        known.status = status._replace(
            last_outcome=outcome,
            last_work_ms=status.last_work_ms if outcome.is_idle else now_ms,
            total_done=_sum(status.total_done, outcome.done),
            total_refusals=_sum(status.total_refusals, outcome.refusals),
        )
        is_work = not outcome.is_idle and not known.is_frequent
        is_news = is_work or bool(reasons - former)
        logger.log(logging.INFO if is_news else logging.DEBUG, "%s: %s", status.name, outcome.text)

    def _note_failures(self, known: _Pass, failures: Sequence[_Failure], logged: frozenset[str]) -> None:
        """Log the failures that are new; `logged`: the former ones that may still last."""
        status = known.status
        if status.consecutive_failure_count == 0:
            known.failing_since_s = self._clock.monotonic_s()
        for failure in dict.fromkeys(failures):
            if failure.key in known.logged:
                logger.debug("%s fails as before: %s", status.name, failure.text)
            elif failure.defect is None:
                logger.warning("%s failed, and is tried again: %s", status.name, failure.text)
            else:
                logger.error(
                    "%s failed unexpectedly, and is tried again: %s",
                    status.name,
                    failure.text,
                    exc_info=failure.defect,
                )
        known.logged = logged | {failure.key for failure in failures}
        known.status = status._replace(
            turn_count=status.turn_count + 1,
            failed_turn_count=status.failed_turn_count + 1,
            consecutive_failure_count=status.consecutive_failure_count + 1,
            last_error=failures[0].text[:MAX_ERROR_LENGTH],
        )

    def _note_success(self, known: _Pass, refusals: Mapping[str, int], now_ms: int) -> None:
        status = known.status
        if status.consecutive_failure_count:
            lasted = status.consecutive_failure_count, self._clock.monotonic_s() - known.failing_since_s
            refused = ", ".join(f"{refusals[reason]} {reason}" for reason in _present(refusals))
            if refused:
                # What failed may be left alone now, such as files that the store keeps.
                text = "%s goes on after %d failures in %d s, without what is refused: %s"
                logger.info(text, status.name, *lasted, refused)
            else:
                logger.info("%s works again after %d failures in %d s", status.name, *lasted)
        known.logged = frozenset()
        known.status = status._replace(
            turn_count=status.turn_count + 1,
            consecutive_failure_count=0,
            last_error="",
            last_success_ms=now_ms,
        )

    def _pass(self, name: str) -> _Pass:
        """The pass of this name. The caller holds the lock."""
        return self._passes.setdefault(name, _Pass(name))


def _failure_of(error: Exception) -> _Failure:
    is_foreseen = isinstance(error, LogStoreError | OSError)
    message = error.message if isinstance(error, LogStoreError) else str(error)
    return _Failure(f"{type(error).__name__}: {message}", str(error), None if is_foreseen else error)


def _failures_in(outcome: PassOutcome) -> list[_Failure]:
    """The failures that did not end the turn. That of a shard is the same as one that ends a turn is."""
    of_shards = ((number, _failure_of(error)) for number, error in sorted(outcome.failed_shards.items()))
    return [
        *(_Failure(f"shard {number}: {one.key}", f"shard {number}: {one.text}") for number, one in of_shards),
        *(_Failure(text, text) for text in outcome.failures),
    ]


def _present(amounts: Mapping[str, int]) -> list[str]:
    return [name for name, amount in amounts.items() if amount]


def _sum(first: Mapping[str, int], second: Mapping[str, int]) -> Mapping[str, int]:
    return {name: first.get(name, 0) + second.get(name, 0) for name in (*first, *second)}
