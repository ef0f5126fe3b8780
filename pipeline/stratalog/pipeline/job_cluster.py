"""The cluster of a job, whose session starts with the first task.

Spark takes 10 to 20 seconds to start. A job that finds its store, its topic or its target wrong, or has
nothing to do, ends before that.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

from stratalog.pipeline.job_session import job_session
from stratalog.pipeline.jobs.cluster import Stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from stratalog.pipeline.jobs.spark_cluster import SparkCluster

Item = TypeVar("Item")
Result = TypeVar("Result")


class JobCluster:
    """Implements `Cluster` by a session of Spark that starts when it is first needed; `start` makes it. Use
    it in one thread until it has started; it is thread-safe from then on."""

    def __init__(self, start: Callable[[], SparkSession]) -> None:
        self._start = start

    @cached_property
    def session(self) -> SparkSession:
        """The session. Raises InvalidConfigError if Spark does not start."""
        return self._start()

    @cached_property
    def _cluster(self) -> SparkCluster:
        from stratalog.pipeline.jobs.spark_cluster import SparkCluster

        return SparkCluster(self.session.sparkContext)

    @property
    def lane_count(self) -> int:
        return self._cluster.lane_count

    def each(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Run tasks as `Cluster.each`."""
        return self._cluster.each(function, items)

    def exchanged(
        self, items: Sequence[Any], stages: Sequence[Stage], last: Callable[[Iterator[Any]], Iterator[Result]]
    ) -> list[Result]:
        """Run tasks as `Cluster.exchanged`."""
        return self._cluster.exchanged(items, stages, last)

    def tagged(self, tag: str, description: str) -> AbstractContextManager[None]:
        """Tag calls as `Cluster.tagged`."""
        return self._cluster.tagged(tag, description)

    def cancel(self, tag: str) -> None:
        """End calls as `Cluster.cancel`."""
        self._cluster.cancel(tag)


@contextmanager
def job_cluster(name: str, master: str, conf: Mapping[str, str]) -> Generator[JobCluster]:
    """The cluster of a job of this name. Its session, if one was started, ends with the block. Arguments as
    those of `job_session`, whose errors come with the first task."""
    with ExitStack() as sessions:
        yield JobCluster(partial(_started, sessions, name, master, conf))


def _started(sessions: ExitStack, name: str, master: str, conf: Mapping[str, str]) -> SparkSession:
    return sessions.enter_context(job_session(name, master, conf))
