"""Tells the log of the process that a start waits for the store, while that takes long.

A store that takes connections and never answers is waited for with all patience; whoever looks at the log
meanwhile sees what is waited for. A start that is quick says nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

from stratalog.base.clock import Clock
from stratalog.base.scheduler import Scheduler

logger = logging.getLogger(__name__)

REPORT_PERIOD_MS = 5_000


@contextmanager
def tell_of_waiting(scheduler: Scheduler, clock: Clock, store_url: str) -> Generator[None]:
    """While the block runs, a warning every five seconds."""
    begin_s = clock.monotonic_s()

    def tell() -> None:
        logger.warning(
            "still waiting for the store after %.0f s, store=`%s`", clock.monotonic_s() - begin_s, store_url
        )

    telling = scheduler.every("tell of waiting", tell, REPORT_PERIOD_MS, delay_ms=REPORT_PERIOD_MS)
    try:
        yield
    finally:
        telling.cancel()
