"""Removes deleted files later, each by itself, and tries again until they are gone.

A file that cannot be removed now (it was made immutable, or the process has no free descriptor) does not keep
the others from going. It is tried again, because the operator expects its space. After a failure of the disk
the removals stop. Files that are left when a process ends are removed by the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.base.scheduler import Scheduler
from stratalog.log.directory_health import DISK_FAILURES
from stratalog.log.log_availability import LogAvailability
from stratalog.segment.log_segment import LogSegment

logger = logging.getLogger(__name__)

RETRY_MS = 60_000
"""Time between two tries."""


def remove_later(
    scheduler: Scheduler,
    name: str,
    removals: Sequence[Callable[[], None]],
    delay_ms: int,
    *,
    is_over: Callable[[], bool],
) -> None:
    """Do these removals after `delay_ms`, and repeat those that raise OSError or DataDirectoryError until
    `is_over` returns True. The first failure is logged with `name`."""

    def remove(waiting: Sequence[Callable[[], None]], *, is_first: bool) -> None:
        if not is_first and is_over():
            return
        failures: list[OSError | DataDirectoryError] = []
        left: list[Callable[[], None]] = []
        for removal in waiting:
            try:
                removal()
            except (OSError, DataDirectoryError) as failure:
                failures.append(failure)
                left.append(removal)
        if not left or is_over():
            return
        if is_first:
            logger.warning(
                "deleted files cannot be removed and are tried again every %d s; correct the reason, %s"
                " left_count=`%d` reason=`%s`",
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
    """Unlink the files of dropped segments. Files that are left when the log is closed go when it is opened
    again."""
    remove_later(
        scheduler,
        f"unlink {availability.topic_partition}",
        [segment.unlink_deleted for segment in dropped],
        delay_ms,
        is_over=lambda: availability.is_closed or availability.health.reason is not None,
    )


def unlink_leftover(filesystem: FileSystem, path: str) -> None:
    """Unlink a file of a dropped segment that a former process has left. A file that cannot be unlinked
    stays, with a warning: it means nothing to the log. Raises OSError if the disk fails."""
    try:
        filesystem.unlink(path)
    except OSError as failure:
        if failure.errno in DISK_FAILURES:
            raise
        logger.warning(
            "a file of a deleted segment cannot be removed and stays until the next start; correct the"
            " reason, path=`%s` reason=`%s`",
            path,
            failure,
        )
