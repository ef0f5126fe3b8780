"""A place of tasks whose first attempts end badly when all is done: what they have stored stays behind.

Markers in a directory that all executors share tell attempts of each other, and a test what has happened.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from stratalog.pipeline.jobs.task_place import OpenPlace, TaskMeans

_TIMEOUT_S = 240.0


class Fault(Enum):
    """The end of a first attempt."""

    FAIL = "fail"
    """Each raises."""
    KILL = "kill"
    """One of each stage takes its executor along."""
    HANG = "hang"
    """One of each stage waits until its speculative twin has ended."""


@dataclass(frozen=True, slots=True)
class FaultyPlace:
    """Implements `OpenPlace` by another. Immutable, pickled to the executors."""

    inner: OpenPlace
    fault: Fault
    directory: str

    @contextmanager
    def __call__(self) -> Generator[TaskMeans]:
        with self.inner() as means:
            yield means
            strike(self.fault, self.directory)


def strike(fault: Fault, directory: str) -> None:
    """End this attempt of a task badly if it is its turn."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    stage, task = context.stageId(), context.partitionId()
    if context.attemptNumber() > 0:
        _mark(directory, f"again-{stage}-{task}")
        return
    if fault is Fault.FAIL:
        _mark(directory, f"fail-{stage}-{task}")
        raise RuntimeError("injected: the task fails when all is done")
    if not _mark(directory, f"{fault.value}-{stage}"):
        return
    if fault is Fault.KILL:
        os.kill(_executor_pid(), signal.SIGKILL)
    deadline_s = time.monotonic() + _TIMEOUT_S
    while fault is Fault.KILL or not Path(directory, f"again-{stage}-{task}").exists():
        if time.monotonic() > deadline_s:
            raise TimeoutError("this attempt was neither ended nor repeated")
        time.sleep(0.05)


def _mark(directory: str, name: str) -> bool:
    """Whether the marker was missing."""
    try:
        os.close(os.open(Path(directory, name), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
    except FileExistsError:
        return False
    return True


def _executor_pid() -> int:
    """The JVM: the parent of the daemon that has forked this worker."""
    stat = Path(f"/proc/{os.getppid()}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])
