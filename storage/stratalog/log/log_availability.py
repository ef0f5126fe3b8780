"""Whether a log may be used: open and online, open but offline because its disk failed, or closed.

::

    online --go_offline--> offline
       \\                     |
        +------close---------+--> closed

Offline is for failures after which nobody knows what is on the disk: changes are refused until a restart has
recovered the log. Where it is the log alone, reads go on; where its disk has failed (`DirectoryHealth`), they
are refused as well. There is no way back from either state; the next process makes a new log of the same
directory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

from stratalog.base.errors import (
    CorruptRecordError,
    DataDirectoryError,
    LogStoreError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.filesystem import NO_DESCRIPTOR, NO_SPACE
from stratalog.base.types import TopicPartition
from stratalog.log.directory_health import DISK_FAILURES, DirectoryHealth
from stratalog.log.disk_error import disk_error
from stratalog.log.local_log import LocalLog

Result = TypeVar("Result")


class LogAvailability:
    """Changes are guarded by UnifiedLog.lock; questions are thread-safe."""

    def __init__(
        self,
        lock: threading.RLock,
        topic_partition: TopicPartition,
        local_log: LocalLog,
        health: DirectoryHealth,
    ) -> None:
        """`lock` is `UnifiedLog.lock`. `health`: of the log directory that the log is in."""
        self._lock = lock
        self.topic_partition = topic_partition
        self._local = local_log
        self.health = health
        self._offline_reason: str | None = None
        self._offline_advice = ""
        self.is_closed = False

    @property
    def is_offline(self) -> bool:
        return self._offline_reason is not None or self.health.reason is not None

    def refusal(self) -> LogStoreError | None:
        """Why the log takes no changes, or None."""
        if self.is_closed:
            return UnknownTopicOrPartitionError(
                "the log is closed; look the partition up again",
                topic=self.topic_partition.topic,
                partition=self.topic_partition.partition,
            )
        refusal = self.health.refusal()
        if refusal is None and self._offline_reason is not None:
            refusal = self._offline_error(self._offline_reason)
        return refusal

    def require_online(self) -> None:
        refusal = self.refusal()
        if refusal is not None:
            raise refusal

    def require_disk(self) -> None:
        """Raises DataDirectoryError where the disk has failed: nothing is read from it either."""
        refusal = self.health.refusal()
        if refusal is not None:
            raise refusal

    def go_offline(self, failure: Exception) -> DataDirectoryError:
        """Take no more changes; returns the error to raise. The first reason is kept."""
        if self._offline_reason is None:
            self._offline_reason = str(failure)
            self._offline_advice = _advice(failure)
        return self._offline_error(self._offline_reason)

    @contextmanager
    def offline_on_failure(self) -> Generator[None]:
        """What the disk refuses inside leaves it in a state that nobody knows. Raises DataDirectoryError."""
        try:
            yield
        except OSError as failure:
            raise self.go_offline(failure) from failure

    @contextmanager
    def offline_on_failed_sync(self, put_back: Callable[[], None]) -> Generator[None]:
        """As `offline_on_failure`; but where a file was not even opened, for want of a descriptor, what there
        was to sync is `put_back`, and the log goes on. Raises DataDirectoryError."""
        try:
            yield
        except OSError as failure:
            with self._lock:
                if failure.errno not in NO_DESCRIPTOR:
                    raise self.go_offline(failure) from failure
                put_back()
            raise disk_error(failure, self._local.directory) from failure

    @contextmanager
    def unchanged_on_refusal(self, undo: Callable[[], None] = lambda: None) -> Generator[None]:
        """As `offline_on_failure`; but unless the disk has failed everything is as it was once `undo` has
        run, and the log goes on. Raises DataDirectoryError."""
        try:
            yield
        except OSError as failure:
            if failure.errno in DISK_FAILURES:
                raise self.go_offline(failure) from failure
            undo()
            raise DataDirectoryError(
                "the local disk is full, nothing was changed; free space, then try again"
                if failure.errno in NO_SPACE
                else "the system refused an operation on the local disk, nothing was changed; correct what"
                " the reason says, then try again",
                path=self._local.directory,
                reason=str(failure),
            ) from failure

    def _offline_error(self, reason: str) -> DataDirectoryError:
        return DataDirectoryError(
            self._offline_advice,
            path=self._local.directory,
            reason=reason,
        )

    def reading(self, read: Callable[[], Result]) -> Result:
        """The result of a read that may meet a segment that is being dropped or cut: then it looks at the log
        again.

        No lock is taken, but for where a file is missing, or not what it was: whoever is at the files has
        renamed it, and may not have replaced the list yet. Raises what `read` raises, and
        DataDirectoryError where the disk fails.
        """
        while True:
            if self.health.reason is not None:
                self.require_online()
            segments = self._local.segments
            try:
                result = read()
            except CorruptRecordError:
                # An index of a segment that is being replaced may have been the new one's already.
                with self._lock:
                    if self._local.segments is not segments:
                        continue
                raise
            except FileNotFoundError as failure:
                with self._lock:
                    has_changed = self._local.segments is not segments
                if not self.is_closed and has_changed:
                    continue
                # A change that failed half-way has renamed files that are still in the list.
                self.require_online()
                raise DataDirectoryError(
                    "a log file is missing; restore it, or move the partition's directory away and make an"
                    " empty one in its place",
                    path=str(failure.filename),
                ) from failure
            except OSError as failure:
                refusal = self.health.refusal()
                if refusal is not None:
                    raise refusal from failure
                raise disk_error(failure, self._local.directory) from failure
            # A log that was closed meanwhile may have read another one's files, which have the same names.
            if self.is_closed:
                self.require_online()
            return result


def _advice(failure: Exception) -> str:
    if not isinstance(failure, OSError) or failure.errno in DISK_FAILURES:
        return "the log is offline after its disk failed; repair the disk and restart the server"
    if failure.errno in NO_SPACE:
        return "the log is offline because its disk was full; free space and restart the server"
    return (
        "the log is offline because the system refused an operation on its disk; correct what the reason says"
        " and restart the server"
    )
