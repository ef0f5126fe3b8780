"""The periodic tasks of a server and their periods. They run on the scheduler's threads; no task overlaps
itself. Each run is one of a pass, which `PassRegistry` logs and counts.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from stratalog.base.errors import NotOwnerError
from stratalog.base.scheduler import Scheduler
from stratalog.log.disk_error import disk_errors
from stratalog.server.background.pass_outcome import Backlog, PassOutcome
from stratalog.server.background.pass_registry import Work
from stratalog.server.background.tier_outcomes import collection_backlog
from stratalog.server.configuration.settings import ServerSettings
from stratalog.server.engine.storage_engine import StorageEngine

BACKLOG_MS = 600_000
"""How often the data that is not compacted is looked for, where no compaction runs here."""
FREE_SPACE_MS = 1_000
"""Time between looks at the free space of the log directories."""
ROLLED_FLUSH_MS = 1_000
"""Time after which a rolled segment is flushed, about. A look at a log without one is two comparisons."""
PAGES_MS = 5_000
"""Time between looks at the pages of metadata on disk. One without anything to do takes milliseconds."""


class _Task(NamedTuple):
    name: str
    work: Work
    period_ms: int
    measure: Callable[[], Backlog] | None = None
    """Returns the backlog of the pass, where it can be had without it."""


def start_background_tasks(scheduler: Scheduler, engine: StorageEngine, settings: ServerSettings) -> None:
    """Schedule all tasks, until the scheduler closes. Each task first waits for one of its periods; tasks on
    local logs wait for `log.initial.task.delay.ms`.
    """
    if settings.read_only:
        # All other work is the owner's.
        for task in (
            _Task("head-refresh", engine.tier.manager.refresh_pass, settings.head_refresh_ms),
            _Task("metadata-pages", engine.tier.upkeep.keep_pages_pass, PAGES_MS),
        ):
            _schedule(scheduler, engine, task, task.period_ms)
        return
    for task in _tier_tasks(engine, settings):
        _schedule(scheduler, engine, task, task.period_ms)
    for task in _local_tasks(engine):
        _schedule(scheduler, engine, task, engine.topics.runtime.current.initial_task_delay_ms)
    # From the start on: a full disk does not wait for the other tasks.
    free_space = _Task("free-space", engine.local.pressure.run, FREE_SPACE_MS)
    _schedule(scheduler, engine, free_space, FREE_SPACE_MS)


def _tier_tasks(engine: StorageEngine, settings: ServerSettings) -> list[_Task]:
    tiers = engine.tier.manager
    tasks = [
        _Task("head-refresh", tiers.refresh_pass, settings.head_refresh_ms),
        _Task("upload", tiers.upload_pass, settings.upload_ms, engine.topics.copy_lag.measure),
        _Task("remote-retention", tiers.remote_retention_pass, settings.remote_retention_ms),
        _Task("tier-drop", tiers.drops.run, settings.head_refresh_ms, tiers.drops.backlog),
        _Task("producer-ids", partial(_refill_producer_ids, engine), settings.head_refresh_ms),
        _Task("deleted-topics", partial(_drop_deleted_topics, engine), settings.remote_retention_ms),
        _Task(
            "collector",
            tiers.collect_pass,
            settings.collector_ms,
            lambda: collection_backlog(
                [*(shard.metadata for shard in engine.tier.shards), engine.topics.catalog]
            ),
        ),
        _Task("fold", tiers.fold_pass, settings.fold_ms),
        _Task("metadata-pages", engine.tier.upkeep.keep_pages_pass, PAGES_MS),
    ]
    if settings.compaction_ms:
        tasks.append(_Task("compaction", engine.tier.compaction.compact_pass, settings.compaction_ms))
    else:
        # Another process compacts, and may have ended unseen.
        tasks.append(_Task("compaction-backlog", engine.tier.compaction.measure_pass, BACKLOG_MS))
    return tasks


def _local_tasks(engine: StorageEngine) -> list[_Task]:
    config, tasks = engine.topics.runtime.current, engine.local.logs.tasks
    works: dict[str, tuple[Callable[[str], None], int]] = {
        "flush": (tasks.flush_old, config.flush_check_ms),
        "rolled-flush": (tasks.flush_rolled, ROLLED_FLUSH_MS),
        "recovery-point-checkpoint": (
            partial(_checkpoint, engine),
            config.recovery_point_checkpoint_ms,
        ),
        "log-start-checkpoint": (tasks.checkpoint_starts, config.log_start_checkpoint_ms),
    }
    return [
        _Task("local-retention", engine.local.retention.run, config.retention_check_ms),
        *(
            _Task(name, partial(_each_directory, engine, name, work), period_ms)
            for name, (work, period_ms) in works.items()
        ),
    ]


def _checkpoint(engine: StorageEngine, path: str) -> None:
    """Write the recovery points of a log directory, and the newest heads of the store. Raises
    DataDirectoryError."""
    engine.local.logs.tasks.checkpoint_recovery_points(path)
    with disk_errors(path):
        engine.seen_heads.note(path)


def _each_directory(engine: StorageEngine, name: str, work: Callable[[str], None]) -> PassOutcome | None:
    """Do the work of a pass in each log directory, so that a disk that hangs holds up no other one. Raises
    the failure of the only one."""
    paths = engine.local.logs.tasks.paths()
    if not paths:
        return None
    done = engine.local.rounds.run(name, {path: partial(work, path) for path in paths})
    return PassOutcome(failures=tuple(f"{path}: {error}" for path, error in done.failures.items()))


def _schedule(scheduler: Scheduler, engine: StorageEngine, task: _Task, delay_ms: int) -> None:
    run = engine.passes.task(task.name, _unless_fenced(engine, task.work), task.measure)

    def run_unless_fenced() -> None:
        if not engine.tier.shards.is_replaced:
            run()

    scheduler.every(task.name, run_unless_fenced, task.period_ms, delay_ms=delay_ms)


def _drop_deleted_topics(engine: StorageEngine) -> PassOutcome:
    return PassOutcome({"topics": engine.topics.manager.drop_leftovers()})


def _refill_producer_ids(engine: StorageEngine) -> PassOutcome:
    return PassOutcome({"ids": engine.topics.producer_ids.refill()})


def _unless_fenced(engine: StorageEngine, work: Work) -> Work:
    """Wrap `work`: if other servers take over while it runs, that is no failure of it, and is logged once
    where it is noticed."""

    def run() -> PassOutcome | None:
        try:
            return work()
        except NotOwnerError:
            if not engine.tier.shards.is_replaced:
                raise
            return None

    return run
