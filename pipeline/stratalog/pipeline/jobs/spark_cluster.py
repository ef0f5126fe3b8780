"""A cluster of Spark's executors."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

from stratalog.base.errors import InvalidRequestError, LogStoreError
from stratalog.pipeline.jobs.cluster import Stage

if TYPE_CHECKING:
    from pyspark import SparkContext

Item = TypeVar("Item")
Result = TypeVar("Result")


class SparkCluster:
    """Implements `Cluster` by a Spark context. Thread-safe, as that is: each thread has its own tags.

    Spark runs a task again that was lost with its executor, and beside a slow one if speculation is on.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    @property
    def lane_count(self) -> int:
        return self._context.defaultParallelism

    def each(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """Run tasks as `Cluster.each`."""
        with own_errors():
            return self._context.parallelize(items, len(items)).map(function).collect()

    def exchanged(
        self, items: Sequence[Any], stages: Sequence[Stage], last: Callable[[Iterator[Any]], Iterator[Result]]
    ) -> list[Result]:
        """Run tasks as `Cluster.exchanged`."""
        with own_errors():
            values = self._context.parallelize(items, len(items))
            for stage in stages:
                values = (
                    values.mapPartitions(cast(Any, stage.run))
                    .partitionBy(stage.bucket_count, _bucket_of)
                    .mapPartitions(cast(Any, _values))
                )
            return values.mapPartitions(cast(Any, last)).collect()

    @contextmanager
    def tagged(self, tag: str, description: str) -> Generator[None]:
        """Tag calls as `Cluster.tagged`."""
        self._context.addJobTag(tag)
        self._context.setJobDescription(description)
        try:
            yield
        finally:
            self._context.removeJobTag(tag)

    def cancel(self, tag: str) -> None:
        """End calls as `Cluster.cancel`."""
        self._context.cancelJobsWithTag(tag)


def _bucket_of(number: int) -> int:
    return number


def _values(pairs: Iterator[tuple[int, Any]]) -> Iterator[Any]:
    return (value for _, value in pairs)


@contextmanager
def own_errors() -> Generator[None]:
    """Turn Spark's error, with the traces of two languages, into one line. Raises InvalidRequestError for
    paths, SQL and options that Spark does not take, LogStoreError for other errors."""
    try:
        yield
    except LogStoreError:
        raise
    except Exception as error:
        lines = str(error).strip().splitlines() or [repr(error)]
        said = next((line for line in lines if "Exception" in line or "Error:" in line), lines[0])
        if isinstance(error, _analysis_error()):
            raise InvalidRequestError(
                "the table cannot be read as it is asked for; correct the paths, the SQL or the options",
                reason=said.strip()[:300],
            ) from error
        raise LogStoreError(
            "the tasks of a job were given up by Spark; its log, and those of its executors, have the reason",
            reason=said.strip()[:300],
        ) from error


def _analysis_error() -> type[Exception]:
    """The error of a query that Spark refuses to plan."""
    from pyspark.errors import AnalysisException

    return AnalysisException
