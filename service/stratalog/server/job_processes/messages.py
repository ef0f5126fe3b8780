"""The messages between a server and a process that executes its jobs.

    server -> process   Hello, once; then a `JobOrder` at a time, and STOP to end it early
    process -> server   Progress and log records while a job runs, and `Done` or `Failed` at its end

They are pickled: both ends are the same software, the pipe belongs to them alone, and a job is exactly the
one that was planned, with whatever the planner gives it. A process that finds other software on the disk than
the server did at its start ends with `OTHER_SOFTWARE`, before it reads a message.
"""

from __future__ import annotations

import logging
from typing import NamedTuple

from stratalog.compaction.compaction_progress import Transfer
from stratalog.compaction.execution_end import Done, Failed
from stratalog.objectstore.counted import StoreUse

OTHER_SOFTWARE = 3
"""The exit code of a process that is other software than its server."""
STOP = "stop"
"""End the job at work. Without a meaning between two jobs."""


class Hello(NamedTuple):
    """The first message."""

    store_url: str
    log_level: int
    """The lowest level of log records that the process sends."""


class Progress(NamedTuple):
    """The part of a job behind the last such message."""

    transfer: Transfer
    runs: tuple[tuple[int, int], ...]
    """The records of each partition that was rewritten, and those of them that stay."""
    use: StoreUse
    """All requests to the store."""


Answer = Progress | logging.LogRecord | Done | Failed
