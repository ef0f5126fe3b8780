"""The periodic tasks of a server and their periods. They run on the scheduler's threads; no task overlaps
itself.
"""

from __future__ import annotations

from collections.abc import Callable

from stratalog.base.errors import NotOwnerError, StoppingError
from stratalog.base.scheduler import Scheduler
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.storage_engine import StorageEngine

ROLLED_FLUSH_MS = 1000
"""Time after which a rolled segment is flushed, about. A look at a log without one is two comparisons."""


def start_background_tasks(scheduler: Scheduler, engine: StorageEngine, settings: ServerSettings) -> None:
    """Schedule all tasks, until the scheduler closes. Each task first waits for one of its periods; tasks on
    local logs wait for `log.initial.task.delay.ms`.
    """
    tiers = engine.tier.manager
    tasks: list[tuple[str, Callable[[], None], int]] = [
        ("head-refresh", tiers.refresh_pass, settings.head_refresh_ms),
        ("upload", tiers.upload_pass, settings.upload_ms),
        ("remote-retention", tiers.remote_retention_pass, settings.remote_retention_ms),
        ("deleted-topics", engine.topics.manager.drop_leftovers, settings.remote_retention_ms),
        ("collector", tiers.collect_pass, settings.collector_ms),
        ("fold", tiers.fold_pass, settings.fold_ms),
    ]
    if settings.compaction_ms:
        tasks.append(("compaction", lambda: _compact(engine), settings.compaction_ms))
    for name, task, period_ms in tasks:
        scheduler.every(name, _unless_fenced(engine, task), period_ms, delay_ms=period_ms)
    config, local = engine.topics.runtime.current, engine.local.logs.tasks
    local_tasks: list[tuple[str, Callable[[], None], int]] = [
        ("local-retention", engine.local.retention.run, config.retention_check_ms),
        ("flush", local.flush_old, config.flush_check_ms),
        ("rolled-flush", local.flush_rolled, ROLLED_FLUSH_MS),
        ("recovery-point-checkpoint", local.checkpoint_recovery_points, config.recovery_point_checkpoint_ms),
        ("log-start-checkpoint", local.checkpoint_starts, config.log_start_checkpoint_ms),
    ]
    for name, task, period_ms in local_tasks:
        scheduler.every(name, _unless_fenced(engine, task), period_ms, delay_ms=config.initial_task_delay_ms)


def _compact(engine: StorageEngine) -> None:
    engine.tier.compaction.run()


def _unless_fenced(engine: StorageEngine, task: Callable[[], None]) -> Callable[[], None]:
    """Wrap `task`: a server that was replaced skips it silently, and a stop that ends it is no failure."""

    def run() -> None:
        if engine.tier.shards.is_fenced:
            return
        try:
            task()
        except StoppingError:
            return
        except NotOwnerError:
            if not engine.tier.shards.is_fenced:
                raise

    return run
