"""Closing many logs, beside each other where there are threads for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from stratalog.base.errors import LogStoreError
from stratalog.log.unified_log import UnifiedLog


def close_logs(
    logs: Sequence[UnifiedLog], is_on_working_disk: Callable[[UnifiedLog], bool], executor: Executor | None
) -> dict[UnifiedLog, LogStoreError]:
    """Flush and close all of them, on the threads of `executor` if there is one; returns those that failed.
    What is on a disk that has failed is let go of without a word: everybody knows."""

    def close(log: UnifiedLog) -> LogStoreError | None:
        try:
            log.close(flush=is_on_working_disk(log))
        except LogStoreError as failure:
            return failure
        return None

    outcomes = map(close, logs) if executor is None else executor.map(close, logs)
    return {log: failure for log, failure in zip(logs, outcomes, strict=True) if failure is not None}
