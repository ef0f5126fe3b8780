"""The wait for a silent store, in the log of a server that starts."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

from stratalog.base.clock import Clock
from stratalog.base.scheduler import Scheduler

logger = logging.getLogger(__name__)

REPORT_PERIOD_MS = 5_000
"""Time between two warnings."""


@contextmanager
def tell_of_waiting(scheduler: Scheduler, clock: Clock, store_url: str) -> Generator[None]:
    """Log a warning every five seconds while the block runs, because a silent store is waited for."""
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
