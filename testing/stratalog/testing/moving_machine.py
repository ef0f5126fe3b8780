"""A machine with two log directories, between which a partition moves."""

from __future__ import annotations

from stratalog.base.filesystem import FileSystem
from stratalog.log.log_config import LogConfig
from stratalog.testing.log_machine import DATA_DIR, LogMachine
from stratalog.testing.sequential_ids import SequentialIds

OTHER_DIR = "/other"
# The records are older than any clock here.
_NEVER_MS = 2**60


def moving_machine(disk: FileSystem, config: LogConfig, seed: int = 0) -> LogMachine:
    """`seed`: of the process's ids, which no two processes share."""
    return LogMachine(
        disk,
        config,
        producer_id_expiration_ms=_NEVER_MS,
        data_dirs=(DATA_DIR, OTHER_DIR),
        ids=SequentialIds(seed),
    )
