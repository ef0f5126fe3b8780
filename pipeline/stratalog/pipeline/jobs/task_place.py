"""The place of a task: its store, scratch and seams, made on the machine that runs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import NamedTuple

from stratalog.base.clock import Clock, SystemClock
from stratalog.base.filesystem import FileSystem
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.randomness import IdGenerator, SystemIdGenerator
from stratalog.objectstore.open_store import open_store
from stratalog.objectstore.protocol import ObjectStore


class TaskMeans(NamedTuple):
    """The seams of a task."""

    filesystem: FileSystem
    clock: Clock
    ids: IdGenerator
    store: ObjectStore
    scratch_directory: str
    """An empty directory of the task alone."""


OpenPlace = Callable[[], AbstractContextManager[TaskMeans]]
"""Makes the means of a task, and gives them back at its end. Pickled to the machines, so it has plain values
only."""


@dataclass(frozen=True, slots=True)
class ExecutorPlace:
    """Implements `OpenPlace` on an executor, which finds credentials as boto3 does. Immutable."""

    store_url: str

    @contextmanager
    def __call__(self) -> Generator[TaskMeans]:
        filesystem, clock, ids = PosixFileSystem(), SystemClock(), SystemIdGenerator()
        with (
            closing(open_store(self.store_url, filesystem=filesystem, clock=clock, ids=ids)) as store,
            TemporaryDirectory(prefix="stratalog-", dir=_local_directory()) as directory,
        ):
            yield TaskMeans(filesystem, clock, ids, store, directory)


def _local_directory() -> str | None:
    """A directory that Spark deletes with the executor, also if the task is killed; None: that of the
    system."""
    found = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return found if os.path.isdir(found) else None
