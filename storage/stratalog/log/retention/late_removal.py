"""Removing later what nobody finds any more: each for itself, and again until it is gone.

What cannot be removed now (a file that somebody has made immutable, a process without free descriptors) keeps
nothing else from going, and is not forgotten: its space is missed by whoever has deleted it. A disk that has
failed is left alone, and what a process has not removed when it ends the next one does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from stratalog.base.filesystem import FileSystem
from stratalog.base.scheduler import Scheduler
from stratalog.log.directory_health import DISK_FAILURES
from stratalog.log.log_availability import LogAvailability
from stratalog.segment.log_segment import LogSegment

logger = logging.getLogger(__name__)

RETRY_MS = 60_000
"""From one try to the next."""


def remove_later(
    scheduler: Scheduler,
    name: str,
    removals: Sequence[Callable[[], None]],
    delay_ms: int,
    *,
    is_over: Callable[[], bool],
) -> None:
    """Do these after `delay_ms`; those that raise OSError again and again, unless `is_over` says that it has
    no sense any more. `name` is told with the first failure."""

    def remove(waiting: Sequence[Callable[[], None]], *, is_first: bool) -> None:
        if not is_first and is_over():
            return
        failures: list[OSError] = []
        left: list[Callable[[], None]] = []
        for removal in waiting:
            try:
                removal()
            except OSError as failure:
                failures.append(failure)
                left.append(removal)
        if not left or is_over():
            return
        if is_first:
            logger.warning(
                "some of what is deleted cannot be removed, and is tried again every %d s: correct what the"
                " reason says, %s left_count=`%d` reason=`%s`",
                RETRY_MS // 1000,
                name,
                len(left),
                failures[0],
            )
        scheduler.once(name, lambda: remove(left, is_first=False), RETRY_MS)

    if removals:
        scheduler.once(name, lambda: remove(removals, is_first=True), delay_ms)


def unlink_later(
    scheduler: Scheduler, availability: LogAvailability, dropped: Sequence[LogSegment], delay_ms: int
) -> None:
    """Unlink the files of segments that a log has dropped; what is left when it is closed goes when it is
    opened again."""
    remove_later(
        scheduler,
        f"unlink {availability.topic_partition}",
        [segment.unlink_deleted for segment in dropped],
        delay_ms,
        is_over=lambda: availability.is_closed or availability.health.reason is not None,
    )


def unlink_leftover(filesystem: FileSystem, path: str) -> None:
    """Unlink a file of a dropped segment that a former process has left. What cannot be unlinked stays, and
    is told: it means nothing to the log. Raises OSError where the disk fails."""
    try:
        filesystem.unlink(path)
    except OSError as failure:
        if failure.errno in DISK_FAILURES:
            raise
        logger.warning(
            "a file of a deleted segment cannot be removed, and stays until the next start: correct what the"
            " reason says, path=`%s` reason=`%s`",
            path,
            failure,
        )
