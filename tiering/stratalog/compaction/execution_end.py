"""The end of an execution in another process, as that process sends it back."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from typing import NamedTuple

from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.job_execution import JobExecution, JobResult
from stratalog.compaction.slice_at_work import SliceAtWork


class Done(NamedTuple):
    """The job was executed; its commit is the sender's of the order."""

    result: JobResult


class Failed(NamedTuple):
    """The job was given up, and has stored nothing that counts."""

    error: Exception
    current: TopicIdPartition | None
    at_work: SliceAtWork

    @staticmethod
    def of(execution: JobExecution, error: Exception) -> Failed:
        """The end of that execution by an error."""
        return Failed(_sendable(error), execution.current, execution.at_work)


def execute_to_end(execution: JobExecution, on_run: Callable[[int, int], None]) -> Done | Failed:
    """Execute a job, and return its end, whichever it is; the sender of the order decides."""
    try:
        return Done(execution.execute(on_run))
    except Exception as error:  # noqa: BLE001 - the sender decides
        return Failed.of(execution, error)


def _sendable(error: Exception) -> Exception:
    """The error as one that can be pickled; a defect has its trace as a note."""
    if not isinstance(error, LogStoreError | OSError):
        error.add_note("".join(traceback.format_exception(error)))
    error.__context__ = error.__cause__ = None
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - a class of another library may fail by anything
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
