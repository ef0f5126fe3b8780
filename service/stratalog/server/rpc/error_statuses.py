"""Answers errors with statuses, and logs what the statuses leave out.

Paths and reasons of the server's disk stay inside, and so does everything about a defect. A defect is logged
with its traceback and an id; the answer has the id alone. An error that loses fields is logged whole, in one
line. Such an error may come with every call, so an equal line comes once a minute at most, and a bounded
number of different ones.
"""

from __future__ import annotations

import logging
import threading

from google.rpc.status_pb2 import Status
from grpc import StatusCode

from stratalog.base.clock import Clock
from stratalog.base.errors import LogStoreError
from stratalog.base.randomness import IdGenerator
from stratalog.base.types import TopicPartition
from stratalog.server.meters.error_counts import ErrorCounts
from stratalog.server.rpc.status import (
    INTERNAL_CODE,
    inner_fields,
    status_code_of,
    status_of_defect,
    status_of_error,
)

logger = logging.getLogger(__name__)

REPEAT_PERIOD_S = 60.0
"""An equal line is logged once in this time."""

MAX_NOTE_LENGTH = 1000
"""The most characters of an error in the line of a refusal."""

MAX_LINE_COUNT = 1000
"""The number of different lines within `REPEAT_PERIOD_S`; more are left out."""


class ErrorStatuses:
    """Makes the statuses of a server's answers. Thread-safe: `_lock` guards the times of the logged lines."""

    def __init__(self, clock: Clock, ids: IdGenerator, counts: ErrorCounts | None = None) -> None:
        """`counts` counts the errors."""
        self._clock = clock
        self._ids = ids
        self._counts = counts or ErrorCounts()
        self._lock = threading.Lock()
        self._logged_s: dict[tuple[str, ...], float] = {}
        """When a line was logged, by what it says; the oldest first."""

    def status(self, error: BaseException, where: str, partition: TopicPartition | None = None) -> Status:
        """The status of `error`, which ended `where`: the name of a call, for the log. `partition` is the one
        that the error is about, if it is about one."""
        if not isinstance(error, LogStoreError):
            self._counts.add(StatusCode.INTERNAL.name, INTERNAL_CODE)
            error_id = str(self._ids.uuid())
            logger.error("%s failed unexpectedly, error_id=`%s`", where, error_id, exc_info=error)
            return status_of_defect(error_id)
        self._counts.add(status_code_of(error).name, error.code)
        inner = inner_fields(error)
        if inner and self._is_news(
            (error.code, error.message, *(f"{name}={value}" for name, value in inner.items()))
        ):
            logger.warning(
                "%s was answered without paths and reasons, code=`%s`: %s", where, error.code, error
            )
        return status_of_error(error, partition)

    def note(self, message: str, error: LogStoreError) -> None:
        """Log a refusal that is no fault of the server, unless one with this message and code was logged
        lately: the caller chooses the fields of the error, and could fill the log with them."""
        if self._is_news((message, error.code)):
            # One line, whatever the caller has sent.
            text = repr(str(error)[:MAX_NOTE_LENGTH])[1:-1]
            logger.warning("%s, code=`%s`: %s", message, error.code, text)

    def _is_news(self, line: tuple[str, ...]) -> bool:
        """Note the line. Returns False if it was logged lately, or if too many others were."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            logged_s = self._logged_s.get(line)
            if logged_s is not None and now_s - logged_s < REPEAT_PERIOD_S:
                return False
            while self._logged_s:
                oldest = next(iter(self._logged_s))
                if now_s - self._logged_s[oldest] < REPEAT_PERIOD_S:
                    break
                del self._logged_s[oldest]
            if len(self._logged_s) >= MAX_LINE_COUNT:
                return False
            self._logged_s[line] = now_s
            return True
