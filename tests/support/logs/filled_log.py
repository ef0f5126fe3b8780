"""A log with some requests of three records each, and where its files are."""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.log.log_config import LogConfig
from stratalog.segment.file_names import LOG_SUFFIX, segment_path
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.crash_moments import EVERYTHING_KEPT
from tests.support.logs.log_ledger import LogLedger
from tests.support.logs.log_machine import PARTITION_DIR, LogMachine

CONFIG = LogConfig(segment_bytes=1024, index_interval_bytes=100, remote_storage_enable=False, retention_ms=-1)


def path_of(base_offset: int, suffix: str = LOG_SUFFIX) -> str:
    """A file of the segment in `PARTITION_DIR`."""
    return segment_path(PARTITION_DIR, base_offset, suffix)


class FilledLog:
    """A running machine with a log that has `request_count` requests. Used by one thread."""

    def __init__(self, request_count: int, config: LogConfig = CONFIG) -> None:
        self.machine = LogMachine(MemoryFileSystem(), config)
        self.log = self.machine.start()
        self.ledger = LogLedger()
        for _ in range(request_count):
            self.ledger.append(self.log, [self.ledger.batch(3)])

    @property
    def disk(self) -> MemoryFileSystem:
        return self.machine.memory

    @property
    def bases(self) -> Sequence[int]:
        """Base offsets of the segments; not of a log that was closed."""
        return [info.base_offset for info in self.log.reader.segments()]

    def flushed(self) -> FilledLog:
        """The same log, all of it durable and known to be."""
        self.ledger.flush(self.log)
        self.machine.checkpoint()
        return self

    def killed(self) -> MemoryFileSystem:
        """The disk after the process was killed, everything on it durable."""
        self.machine.crash(EVERYTHING_KEPT)
        return self.disk

    def stopped(self) -> MemoryFileSystem:
        """The disk after the process has ended in order."""
        self.machine.stop()
        self.ledger.durable_end_offset = self.log.offsets.log_end_offset
        return self.disk
