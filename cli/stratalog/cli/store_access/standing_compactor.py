"""A compactor without a server that stays: its turns in the log, its metrics, and probes of its health.

A turn is a compaction of what is due, as the pass `compaction` of a server is, with the same lines in the log
and the same metrics. The process is live unless a turn has made no step for as long as a job may take. It is
ready once a turn has reached the store, until one fails to. A job that fails, or a partition that is left
alone, is no reason to start the process again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from stratalog.base.clock import Clock
from stratalog.base.errors import InvalidConfigError, LogStoreError

if TYPE_CHECKING:
    from stratalog.cli.store_access.store_compaction import StoreRun
    from stratalog.server.metrics.health_probes import ProbeAnswer

logger = logging.getLogger(__name__)

PASS = "compaction"


class StandingCompactor:
    """The turns of a compactor. One thread runs them; any thread may ask for `answer`, whose facts are
    replaced by one assignment each."""

    def __init__(self, clock: Clock) -> None:
        from stratalog.server.background.pass_registry import PassRegistry
        from stratalog.server.metrics.compactor_metrics import CompactorMetrics

        self._clock = clock
        self._passes = PassRegistry(clock)
        self._passes.add(PASS)
        self.metrics = CompactorMetrics(self._passes)
        self._step_s: float | None = None
        """The time of the last step of the turn that goes on."""
        self._has_store = False

    def turn(self, compact: Callable[[Callable[[], None]], StoreRun]) -> StoreRun | None:
        """Call `compact` with a function that it calls at each step. Its end is logged; None if it failed as
        a whole. Raises KeyboardInterrupt."""
        self._note_step()
        run = None
        try:
            with suppress(LogStoreError, OSError), self._passes.turn(PASS) as turn:
                run = compact(self._note_step)
                turn.outcome = run.outcome
        finally:
            self._has_store, self._step_s = run is not None, None
        return run

    def _note_step(self) -> None:
        self._step_s = self._clock.monotonic_s()

    def answer(self, path: str) -> ProbeAnswer | None:
        """The answer to a probe of this path; None if it is no path of a probe."""
        from stratalog.compaction.plan.job_time import MAX_JOB_S
        from stratalog.server.metrics.health_probes import LIVE_PATH, OK, READY_PATH, unavailable

        step_s = self._step_s
        if path not in (LIVE_PATH, READY_PATH):
            return None
        if step_s is not None and self._clock.monotonic_s() - step_s > MAX_JOB_S:
            return unavailable(f"the compaction has made no step for {MAX_JOB_S} s")
        if path == READY_PATH and not self._has_store:
            return unavailable("no compaction has reached the store yet, or the last one has not")
        return OK


@contextmanager
def serving_metrics(compactor: StandingCompactor, listen: str, *, is_insecure: bool) -> Generator[int]:
    """Serve the metrics and the probes at HOST:PORT while the block runs, with the port as its value; nothing
    if `listen` is empty. Raises InvalidConfigError if the address is not free, or not of this machine alone
    and `is_insecure` is not set."""
    if not listen:
        yield 0
        return
    from stratalog.server.configuration.settings import is_loopback, listen_address
    from stratalog.server.metrics.endpoint import MetricsEndpoint

    host, _ = listen_address(listen, "metrics-listen")
    if not (is_insecure or is_loopback(host)):
        raise InvalidConfigError(
            "the address can be reached from other machines, and the metrics of a compactor have neither TLS"
            " nor authentication; listen on 127.0.0.1, or accept that every stranger may read them, with"
            " --insecure",
            name="metrics-listen",
            value=listen,
        )
    endpoint = MetricsEndpoint(listen, compactor.metrics, probes=compactor)
    logger.info("metrics are at port %d", endpoint.port)
    try:
        yield endpoint.port
    finally:
        endpoint.close()
