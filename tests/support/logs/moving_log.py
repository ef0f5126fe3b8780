"""A log of several segments on a machine with two log directories, for tests that move it from one to the
other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.manifest import MANIFEST_FILE
from stratalog.manager.log_manager import LogManager
from stratalog.manager.moves.log_move import LogMove
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.cleaner.stepped_throttler import SteppedThrottler
from tests.support.logs.log_ledger import LogLedger
from tests.support.logs.log_machine import (
    DATA_DIR,
    DATA_DIRS,
    OTHER_DIR,
    PARTITION,
    SMALL_SEGMENTS,
    machine_on,
)

OTHER_PARTITION_DIR = f"{OTHER_DIR}/{PARTITION}"


class MovingLog:
    """A machine with two directories and a log of several segments in the first. Used by one thread."""

    def __init__(
        self,
        disk: FaultyFileSystem | None = None,
        config: LogConfig = SMALL_SEGMENTS,
        *,
        free_bytes: int = 1 << 40,
    ) -> None:
        self.disk = disk or FaultyFileSystem(MemoryFileSystem(free_bytes=free_bytes))
        self.machine = machine_on(self.disk, config)
        self.ledger = LogLedger()
        self.log: UnifiedLog = self.machine.start()
        for number in range(12):
            self.append()
            if number % 4 == 2:
                self.end_transaction(committed=number == 6)

    def append(self) -> None:
        self.ledger.append(
            self.log,
            [self.ledger.batch(5), self.ledger.producer_batch(1, 2, is_transactional=True)],
        )

    def end_transaction(self, *, committed: bool) -> None:
        self.ledger.end_transaction(self.log, 1, committed=committed, now_ms=self.machine.clock.now_ms())

    @property
    def manager(self) -> LogManager:
        return self.machine.manager

    def begin(self, work: Callable[[int], None] = lambda _: None, target: str = OTHER_DIR) -> LogMove:
        """`work` is done after each step."""
        self.manager.moves.throttler = SteppedThrottler(self.machine.clock, work)
        return self.manager.begin_move(PARTITION, target)

    def files(self, directory: str) -> dict[str, bytes | None]:
        """The contents of the files below it, by name."""
        return {
            path.removeprefix(directory + "/"): data
            for path, data in self.disk.inner.contents().items()
            if path.startswith(directory + "/")
        }

    def restart(self) -> None:
        self.machine.stop()
        self.log = self.machine.start()

    def left_over(self) -> list[str]:
        """Directories that a move has made or left, and that were not removed."""
        paths = [path for path in self.disk.inner.contents() if path.endswith("-delete")]
        for directory in DATA_DIRS:
            path = f"{directory}/{PARTITION}"
            if path != self.log.local_log.directory and self.disk.inner.exists(path):
                paths.append(path)
        return paths


def flip_of(trace: Sequence[str], target: str = OTHER_DIR) -> int:
    """The number of the operation by which the target of the first move becomes the partition: the second
    change of its manifest since that lists the copy."""
    path = f"{target}/{PARTITION}"
    begin = next(number for number, one in enumerate(trace) if one.startswith(f"make_directories {path}"))
    return 1 + next(
        number
        for number, one in enumerate(trace)
        if number > begin and one == f"rename {target}/{MANIFEST_FILE}.tmp {target}/{MANIFEST_FILE}"
    )


def aside_of(trace: Sequence[str], source: str = DATA_DIR) -> int:
    """The number of the operation that takes the partition's name from the source of a move."""
    return next(
        number for number, one in enumerate(trace, start=1) if one.startswith(f"rename {source}/{PARTITION} ")
    )
