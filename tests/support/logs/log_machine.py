"""A machine with one partition on its disk: started, stopped, killed and started again by a test."""

from __future__ import annotations

from uuid import UUID

from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.base.types import TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_manager_settings import LogManagerSettings
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.memory_filesystem import MemoryFileSystem, Survival
from stratalog.testing.sequential_ids import SequentialIds

PARTITION = TopicPartition("orders", 0)
TOPIC_ID = UUID(int=7)
DATA_DIR, OTHER_DIR = "/data", "/other"
DATA_DIRS = (DATA_DIR, OTHER_DIR)
PARTITION_DIR = f"{DATA_DIR}/{PARTITION}"
NEVER_MS = 2**60
"""For producers that are never forgotten: the records of a test may be older than any clock there."""
SMALL_SEGMENTS = LogConfig(
    segment_bytes=1024, index_interval_bytes=100, remote_storage_enable=False, retention_ms=-1
)
"""A few batches roll a segment, and retention drops none by its age."""


class LogMachine:
    """A disk, a clock, and at most one process. Used by one thread."""

    def __init__(
        self,
        disk: FileSystem | None = None,
        config: LogConfig | None = None,
        *,
        max_open: int = 8,
        producer_id_expiration_ms: int = 24 * 60 * 60 * 1000,
        data_dirs: tuple[str, ...] = (DATA_DIR,),
        cordoned_dirs: tuple[str, ...] = (),
        ids: IdGenerator | None = None,
        written_by_broker: bool = False,
        tail_bytes: int = 0,
    ) -> None:
        """`ids`: of all processes; every one begins with the same ones otherwise. `written_by_broker`: see
        LogManagerSettings."""
        self.disk: FileSystem = disk if disk is not None else MemoryFileSystem()
        self.config = config if config is not None else LogConfig()
        self.clock = ManualClock()
        self.scheduler = ManualScheduler(self.clock, collect_failures=True)
        self._manager: LogManager | None = None
        self._max_open = max_open
        self.all_failed_count = 0
        """How often the manager has said that no directory is left."""
        self._ids = ids
        self._written_by_broker = written_by_broker
        self._data_dirs = data_dirs
        self._cordoned_dirs = cordoned_dirs
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._tail_bytes = tail_bytes

    def open(self) -> LogManager:
        """Start a process, without its log."""
        # Small bounds, so that tests meet files that were closed and indexes that were forgotten.
        settings = LogManagerSettings(
            data_dirs=self._data_dirs,
            cordoned_dirs=self._cordoned_dirs,
            max_open_files=self._max_open,
            index_cache_bytes=4 * 1024,
            tail_bytes=self._tail_bytes,
            file_delete_delay_ms=1000,
            producer_id_expiration_ms=self._producer_id_expiration_ms,
            written_by_broker=self._written_by_broker,
        )
        self._manager = LogManager.open(
            self.disk,
            self.clock,
            self.scheduler,
            self._ids or SequentialIds(),
            settings,
            self._note_all_failed,
        )
        return self._manager

    @property
    def is_running(self) -> bool:
        return self._manager is not None

    @property
    def manager(self) -> LogManager:
        """The manager of the process that runs."""
        assert self._manager is not None, "no process runs"
        return self._manager

    def _note_all_failed(self) -> None:
        self.all_failed_count += 1

    def start(self, *, start_offset: int = 0) -> UnifiedLog:
        """Start a process and open the log."""
        return self.open().open_log(PARTITION, TOPIC_ID, self.config, start_offset=start_offset)

    def stop(self) -> None:
        """End the process in order."""
        self.manager.close()
        self._manager = None

    def checkpoint(self) -> None:
        checkpoint(self.manager)

    @property
    def memory(self) -> MemoryFileSystem:
        """The disk, of a machine that has it in memory."""
        assert isinstance(self.disk, MemoryFileSystem)
        return self.disk

    def crash(self, survival: Survival) -> None:
        """End the process, and lose the power: the disk keeps as much as `survival` says."""
        self.kill()
        self.disk = self.memory.after_crash(survival)

    def kill(self) -> None:
        """End the process without a word: the disk is as it is, and what was scheduled never runs."""
        self.memory.release_locks()
        self.scheduler.close()
        self.scheduler = ManualScheduler(self.clock, collect_failures=True)
        self._manager = None


def checkpoint(manager: LogManager) -> None:
    """Write the checkpoints, as a server does from time to time. Raises DataDirectoryError."""
    manager.tasks.checkpoint_recovery_points()
    manager.tasks.checkpoint_starts()


def machine_on(
    disk: FileSystem,
    config: LogConfig = SMALL_SEGMENTS,
    ids: IdGenerator | int = 0,
    data_dirs: tuple[str, ...] = DATA_DIRS,
    tail_bytes: int = 0,
) -> LogMachine:
    """A machine with two log directories. `ids`: of the process, which no two processes share, or the seed
    that they follow from."""
    return LogMachine(
        disk,
        config,
        producer_id_expiration_ms=NEVER_MS,
        data_dirs=data_dirs,
        ids=SequentialIds(ids) if isinstance(ids, int) else ids,
        tail_bytes=tail_bytes,
    )
