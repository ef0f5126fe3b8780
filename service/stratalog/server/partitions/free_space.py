"""The floor of free space of each log directory, and the appends that are refused below it.

Below `log.dir.min.free.bytes` a directory is short of space. Then appends to its partitions are refused if
their topic's `remote.copy.backlog.policy` is `block`, with a retriable error and without an effect. Reads go
on, and so do uploads and retention, which free space. A topic that is not tiered has nothing that may be
dropped, so for it `drop` is `block`. So it is for all topics below half of the floor: the server drops
nothing that the store takes (see `DiskPressure`), and a store that takes it too slowly would let the disk
fill up.

A directory is out of it again at a quarter more than the floor, so that one deleted segment does not open it
for one batch. A pass looks at the directories; an append only asks what the last look has found.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from stratalog.base.disk_calls import DiskCalls
from stratalog.base.errors import LowDiskSpaceError
from stratalog.base.filesystem import FileSystem
from stratalog.log.log_config import BacklogPolicy
from stratalog.log.unified_log import UnifiedLog
from stratalog.server.configuration.broker_config import BrokerConfig

logger = logging.getLogger(__name__)


class FreeSpace:
    """Knows which log directories are short of space. Thread-safe: what a look finds replaces what the former
    one found as a whole, and one pass looks at a time. Implements `Reconfigurable`."""

    def __init__(
        self,
        filesystem: FileSystem,
        directories: Callable[[], Sequence[str]],
        config: BrokerConfig,
        disk_calls: DiskCalls,
    ) -> None:
        """`directories` returns the log directories that work; `disk_calls` waits for their disks."""
        self._filesystem = filesystem
        self._directories = directories
        self._disk_calls = disk_calls
        self._min_free_bytes = config.min_free_bytes
        # Free bytes by path, of those that are short of space.
        self._short: Mapping[str, int] = MappingProxyType({})
        self._free: Mapping[str, int] = MappingProxyType({})

    def require_applicable(self, config: BrokerConfig) -> None:
        """Every floor is applicable."""

    def apply(self, config: BrokerConfig) -> None:
        self._min_free_bytes = config.min_free_bytes
        self.look()

    @property
    def enough_bytes(self) -> int:
        """The free space at which a directory is no longer short of it."""
        return self._min_free_bytes + self._min_free_bytes // 4

    def look(self) -> None:
        """Measure the free space of each directory. Logs once that appends are refused, and once that they
        are accepted again. A directory that cannot be measured, or does not answer, stays as it was."""
        short: dict[str, int] = {}
        paths = self._directories()
        answers = self._disk_calls.run_each(
            {path: partial(self._measure, path) for path in paths}, even_alone=True
        )
        free = {path: size_bytes for path, size_bytes in answers.results.items() if size_bytes is not None}
        for path in paths:
            former = self._short.get(path)
            free_bytes = free.get(path)
            if free_bytes is None:
                free_bytes = self.enough_bytes if former is None else former
            if free_bytes < (self._min_free_bytes if former is None else self.enough_bytes):
                short[path] = free_bytes
            _tell(
                path, free_bytes, self._min_free_bytes, was_short=former is not None, is_short=path in short
            )
        self._short, self._free = MappingProxyType(short), MappingProxyType(free)

    def _measure(self, path: str) -> int | None:
        """The free space; None if the disk fails, which the next access finds."""
        try:
            return self._filesystem.free_bytes(path)
        except OSError:
            return None

    @property
    def free_bytes(self) -> Mapping[str, int]:
        """Free space by path of a directory that could be measured, as of the last look."""
        return self._free

    @property
    def min_free_bytes(self) -> int:
        """The free space below which a directory is short of it."""
        return self._min_free_bytes

    @property
    def shortages(self) -> Mapping[str, int]:
        """By path of a directory that is short of space and answers, the bytes that must become free before
        it has enough, as of the last look."""
        return {
            path: max(0, self.enough_bytes - free_bytes)
            for path, free_bytes in self._short.items()
            if not self._disk_calls.is_silent(path)
        }

    def ensure_room(self, log: UnifiedLog) -> None:
        """Check that an append to the log may begin. Raises LowDiskSpaceError."""
        short = self._short
        # Nearly always there is none, and this is called for each append.
        free_bytes = short.get(log.local_log.log_dir) if short else None
        if free_bytes is None:
            return
        config = log.local_log.config
        policy = config.remote_copy_backlog_policy
        is_droppable = config.remote_storage_enable and policy is BacklogPolicy.DROP
        has_time = free_bytes >= self._min_free_bytes // 2
        if policy is BacklogPolicy.KEEP or (is_droppable and has_time):
            return
        raise LowDiskSpaceError(
            "the partition's log directory has less free space than its floor, and the append had no effect;"
            " send it again later, and make the operator look at the disk and at the object store",
            **log.topic_partition.error_fields,
            free_bytes=free_bytes,
            min_free_bytes=self._min_free_bytes,
        )


def _tell(path: str, free_bytes: int, min_free_bytes: int, *, was_short: bool, is_short: bool) -> None:
    if is_short and not was_short:
        logger.error(
            "appends to partitions in this log directory are refused by their topics' backlog policy, because"
            " it has less free space than log.dir.min.free.bytes; free space, or restore the connection to"
            " the store so that uploads free it, path=`%s` free_bytes=`%d` min_free_bytes=`%d`",
            path,
            free_bytes,
            min_free_bytes,
        )
    elif was_short and not is_short:
        logger.warning(
            "appends to partitions in this log directory are accepted again, path=`%s` free_bytes=`%d`",
            path,
            free_bytes,
        )
