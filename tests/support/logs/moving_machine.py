"""A machine with two log directories, between which a partition moves."""

from __future__ import annotations

from stratalog.base.filesystem import FileSystem
from stratalog.base.randomness import IdGenerator
from stratalog.log.log_config import LogConfig
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.log_machine import DATA_DIR, NEVER_MS, LogMachine

OTHER_DIR = "/other"
DATA_DIRS = (DATA_DIR, OTHER_DIR)


def moving_machine(
    disk: FileSystem,
    config: LogConfig,
    ids: IdGenerator | int = 0,
    data_dirs: tuple[str, ...] = DATA_DIRS,
) -> LogMachine:
    """`ids`: of the process, which no two processes share, or the seed that they follow from."""
    return LogMachine(
        disk,
        config,
        producer_id_expiration_ms=NEVER_MS,
        data_dirs=data_dirs,
        ids=SequentialIds(ids) if isinstance(ids, int) else ids,
    )
