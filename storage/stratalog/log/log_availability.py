"""The availability of a log: open and online, open but offline because its disk failed, or closed.

::

    online --go_offline--> offline
       \\                     |
        +------close---------+--> closed

A log goes offline after a failure that leaves unknown bytes on the disk. It refuses changes until a restart
has recovered it. Reads go on, unless the whole disk has failed (`DirectoryHealth`). Both states are final:
the next process opens a new log over the same directory.
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
        """`lock` is `UnifiedLog.lock`. `health`: the health of the log directory."""
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
        """The error of every change; None while the log takes changes."""
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
        """Raise DataDirectoryError if the disk has failed: then reads are refused as well."""
        refusal = self.health.refusal()
        if refusal is not None:
            raise refusal

    def go_offline(self, failure: Exception) -> DataDirectoryError:
        """Take no more changes; return the error to raise. The first reason is kept."""
        if self._offline_reason is None:
            self._offline_reason = str(failure)
            self._offline_advice = _advice(failure)
        return self._offline_error(self._offline_reason)

    @contextmanager
    def offline_on_failure(self) -> Generator[None]:
        """Take the log offline if the block fails with an `OSError`. Raises DataDirectoryError."""
        try:
            yield
        except OSError as failure:
            raise self.go_offline(failure) from failure

    @contextmanager
    def offline_on_failed_sync(self, put_back: Callable[[], None]) -> Generator[None]:
        """Take the log offline if a sync in the block fails. If the process has no descriptor left, no sync
        has begun: then `put_back` restores the work, and the log goes on. Raises DataDirectoryError."""
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
        """Run `undo` if the block fails with an `OSError`, and go on. A failure of the disk takes the log
        offline instead. Raises DataDirectoryError."""
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
        """The result of `read`, which is repeated if it meets a segment that is being dropped or cut.

        Takes the lock only if a file is missing or has changed: then another thread has renamed it, and may
        not have replaced the list of segments yet. Raises what `read` raises, and DataDirectoryError if the
        disk fails.
        """
        while True:
            if self.health.reason is not None:
                self.require_online()
            segments = self._local.segments
            try:
                result = read()
            except CorruptRecordError:
                # The segment is being replaced, and the read may have met the index of the new one.
                with self._lock:
                    if self._local.segments is not segments:
                        continue
                raise
            except FileNotFoundError as failure:
                with self._lock:
                    has_changed = self._local.segments is not segments
                if not self.is_closed and has_changed:
                    continue
                # A change has failed after it had renamed files that are still in the list.
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
            # If the log was closed meanwhile, the files may belong to another log with the same names.
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
