"""Bad ends of the first attempts of tasks, when all is done: what they have stored stays behind.

Markers in a directory that all executors share tell attempts of each other, and a test what has happened.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pytest
from click.testing import CliRunner, Result

from stratalog.cli.main import stratalog
from stratalog.pipeline.jobs import spark_cluster, task_place
from stratalog.pipeline.jobs.cluster import Stage
from stratalog.pipeline.jobs.spark_cluster import SparkCluster
from stratalog.pipeline.jobs.task_place import ExecutorPlace, TaskMeans

if TYPE_CHECKING:
    from pyspark import SparkContext

Item = TypeVar("Item")
Value = TypeVar("Value")

_TIMEOUT_S = 240.0


class Fault(Enum):
    """The end of a first attempt."""

    FAIL = "fail"
    """Each raises."""
    KILL = "kill"
    """One of each stage takes its executor along."""
    HANG = "hang"
    """One of each stage waits until its speculative twin has ended."""


class FaultyTasks(NamedTuple):
    """Faults of tasks, with the directory of their markers. Pickled to the executors."""

    fault: Fault
    directory: str

    @classmethod
    def below(cls, directory: Path, fault: Fault) -> FaultyTasks:
        """Faults with markers in a new folder."""
        marks = directory / "marks"
        marks.mkdir(parents=True)
        return cls(fault, str(marks))

    def in_jobs(self, patch: pytest.MonkeyPatch) -> None:
        """From now on each stage of a job of `stratalog spark` has the fault."""
        patch.setattr(task_place, "ExecutorPlace", partial(FaultyPlace, tasks=self))
        patch.setattr(spark_cluster, "SparkCluster", partial(FaultyCluster, self))

    def run(self, patch: pytest.MonkeyPatch, *arguments: str, exit_code: int = 0) -> Result:
        """Run a job of `stratalog spark` beside the fault, assert its end, and `check`. Nothing stays
        patched."""
        with patch.context() as own:
            self.in_jobs(own)
            done = CliRunner().invoke(stratalog, ["spark", *arguments, "--json"])
        assert done.exit_code == exit_code, done.output
        self.check()
        return done

    def strike(self) -> None:
        """End this attempt of a task badly if it is its turn. A driver has no attempts."""
        from pyspark import TaskContext

        context = TaskContext.get()
        if context is None:
            return
        stage, task = context.stageId(), context.partitionId()
        if context.attemptNumber() > 0:
            _mark(self.directory, f"again-{stage}-{task}")
            return
        if self.fault is Fault.FAIL:
            _mark(self.directory, f"fail-{stage}-{task}")
            raise RuntimeError("injected: the task fails when all is done")
        if not _mark(self.directory, f"{self.fault.value}-{stage}"):
            return
        if self.fault is Fault.KILL:
            os.kill(_executor_pid(), signal.SIGKILL)
        twin = Path(self.directory, f"again-{stage}-{task}")
        deadline_s = time.monotonic() + _TIMEOUT_S
        while self.fault is Fault.KILL or not twin.exists():
            if time.monotonic() > deadline_s:
                raise TimeoutError("this attempt was neither ended nor repeated")
            time.sleep(0.05)

    def check(self) -> None:
        """Assert that attempts have ended badly, and others came after them."""
        names = os.listdir(self.directory)
        # On a busy machine a twin may end before any attempt has come to the place where it waits.
        beginnings = ["again"] if self.fault is Fault.HANG else [self.fault.value, "again"]
        for beginning in beginnings:
            assert any(name.startswith(beginning) for name in names), names


@dataclass(frozen=True, slots=True)
class FaultyPlace(ExecutorPlace):
    """A place whose tasks have a fault when they leave it. Immutable, pickled to the executors."""

    tasks: FaultyTasks

    @contextmanager
    def __call__(self) -> Generator[TaskMeans]:
        with ExecutorPlace.__call__(self) as means:
            yield means
            self.tasks.strike()


class FaultyCluster(SparkCluster):
    """A cluster whose tasks have a fault at their end. Thread-safe, as its base."""

    def __init__(self, tasks: FaultyTasks, context: SparkContext) -> None:
        super().__init__(context)
        self._tasks = tasks

    def each(self, function: Callable[[Item], Value], items: Sequence[Item]) -> list[Value]:
        return super().each(partial(_call, self._tasks, function), items)

    def exchanged(
        self, items: Sequence[Any], stages: Sequence[Stage], last: Callable[[Iterator[Any]], Iterator[Value]]
    ) -> list[Value]:
        struck = [stage._replace(run=partial(_drain, self._tasks, stage.run)) for stage in stages]
        return super().exchanged(items, struck, partial(_drain, self._tasks, last))


def _call(tasks: FaultyTasks, function: Callable[[Item], Value], item: Item) -> Value:
    done = function(item)
    tasks.strike()
    return done


def _drain(
    tasks: FaultyTasks, function: Callable[[Iterator[Any]], Iterator[Value]], values: Iterator[Any]
) -> Iterator[Value]:
    yield from function(values)
    tasks.strike()


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
