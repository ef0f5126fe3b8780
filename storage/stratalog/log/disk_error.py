"""The errors of a disk operation that failed: the reason, and what to do."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import NO_SPACE
from stratalog.log.directory_health import DISK_FAILURES


def disk_error(failure: OSError, path: str) -> DataDirectoryError:
    """The error to raise for this failure, met at that path."""
    return DataDirectoryError(_advice(failure), path=path, reason=str(failure))


@contextmanager
def disk_errors(path: str) -> Generator[None]:
    """Raise a DataDirectoryError with `path` if the block fails with an OSError."""
    try:
        yield
    except OSError as failure:
        raise disk_error(failure, path) from failure


def _advice(failure: OSError) -> str:
    if failure.errno in NO_SPACE:
        return "the local disk is full; free space (delete a topic, or make the disk larger), then try again"
    if failure.errno in DISK_FAILURES:
        return "the local disk failed; repair it and restart the server"
    return "the system refused an operation on the local disk; correct what the reason says, then try again"
