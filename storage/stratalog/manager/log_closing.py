"""Closing many logs, beside each other where there are threads for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from stratalog.base.errors import LogStoreError
from stratalog.log.unified_log import UnifiedLog

R = TypeVar("R")


class Threads(Protocol):
    """Threads of the caller: what an executor of Python's offers. Thread-safe."""

    def map(self, work: Callable[[UnifiedLog], R], /, *logs: Iterable[UnifiedLog]) -> Iterator[R]:
        """The results of all, in order."""
        ...


def close_logs(
    logs: Sequence[UnifiedLog], is_on_working_disk: Callable[[UnifiedLog], bool], threads: Threads | None
) -> dict[UnifiedLog, LogStoreError]:
    """Flush and close all of them, beside each other if there are threads; returns those that failed. What is
    on a disk that has failed is let go of without a word: everybody knows."""

    def close(log: UnifiedLog) -> LogStoreError | None:
        try:
            log.close(flush=is_on_working_disk(log))
        except LogStoreError as failure:
            return failure
        return None

    outcomes = map(close, logs) if threads is None else threads.map(close, logs)
    return {log: failure for log, failure in zip(logs, outcomes, strict=True) if failure is not None}
