"""The writers of `format("stratalog")`, as Spark calls them.

A task writes in an executor, and returns what it has staged; the driver commits. Spark makes the same writer
for the tasks and the commit of a batch job, and different ones for those of a stream, so the tasks of a
stream say in their messages which query they belong to.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage

from stratalog.base.errors import InvalidRequestError, LogStoreError, UnknownTopicOrPartitionError
from stratalog.base.randomness import SystemIdGenerator
from stratalog.pipeline.sink.sink_options import STAGING_PREFIX, SinkOptions
from stratalog.pipeline.sink.staging_topic import StagedTask, staging_topic_name
from stratalog.pipeline.spark_interface import StreamWriterBase

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.client.client import Client
    from stratalog.pipeline.sink.decision_log import Decision, TopicCount

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_QUERY_ID = "sql.streaming.queryId"
"""The property of a stream's tasks with the id of the query, which its checkpoint keeps."""
_BATCH_ID = "streaming.sql.batchId"
"""The property of a stream's tasks with the number of the batch."""


@dataclass(frozen=True, slots=True)
class StagedMessage(WriterCommitMessage):
    """The answer of a task that has staged its rows. Immutable."""

    staging_topic: str
    task: StagedTask


@dataclass(frozen=True, slots=True)
class AppendedMessage(WriterCommitMessage):
    """The answer of a task that has appended its rows. Immutable."""

    record_count: int


class TopicWriter(DataSourceArrowWriter):
    """Writes the rows of a batch job. Spark pickles it to the tasks."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._staging_topic = staging_topic_name(options.job_id or str(SystemIdGenerator().uuid()))

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]  # Spark passes Arrow batches to such a writer
        """Write the rows of a task, in an executor. Raises LogStoreError."""
        number = self._options.batch_id or 0
        named = _Batch(self._staging_topic, number, is_first_try=self._options.job_id is None)
        return _write(self._options, named, iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Append what the tasks have staged. Raises InvalidRequestError if the batch that the job names was
        committed before with another number of rows for a topic, LogStoreError."""
        tasks = [one.task for one in messages if isinstance(one, StagedMessage)]
        if tasks:
            _run(self._options, lambda client: self._commit(client, tasks))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Delete what the tasks have staged, unless the commit has begun to append it."""
        if self._options.is_exactly_once:
            with contextlib.suppress(LogStoreError):
                _run(self._options, self._abort, is_patient=False)

    async def _commit(self, client: Client, tasks: list[StagedTask]) -> None:
        from stratalog.pipeline.sink.batch_commit import BatchCommit

        decided = BatchCommit(client, self._staging_topic, self._options.durability)
        try:
            former = await decided.commit(self._options.batch_id or 0, tasks)
        except LogStoreError as error:
            error.fields["jobId"] = self._staging_topic.removeprefix(STAGING_PREFIX)
            raise
        if former is not None:
            if self._options.batch_id is not None:
                _require_same_rows(former, tasks, self._staging_topic)
            logger.warning(
                "a job of this jobId has decided on the rows of this batch before: those are written, and the"
                " rows of this run are left out: jobId=`%s` batchId=`%s` written_record_count=`%s`"
                " left_out_record_count=`%d`",
                self._options.job_id,
                "" if self._options.batch_id is None else self._options.batch_id,
                "unknown" if former.record_count is None else former.record_count,
                sum(count for task in tasks for _, count in task.record_counts),
            )
        with contextlib.suppress(LogStoreError):
            if self._options.job_id is None:
                await client.topics.delete(self._staging_topic)
            else:
                # A job that is run again has staged its rows in vain.
                await decided.forget(tasks)

    async def _abort(self, client: Client) -> None:
        from stratalog.pipeline.sink.batch_commit import BatchCommit

        commit = BatchCommit(client, self._staging_topic, self._options.durability)
        if not await commit.has_decided():
            with contextlib.suppress(UnknownTopicOrPartitionError):
                await client.topics.delete(self._staging_topic)


class TopicStreamWriter(StreamWriterBase):
    """Writes the batches of a stream. Spark pickles it to the tasks, and makes another one to commit."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:  # type: ignore[override]  # Spark passes Arrow batches to such a writer
        """Write the rows of a task, in an executor. Raises LogStoreError."""
        named = _Batch(staging_topic_name(_property(_QUERY_ID)), int(_property(_BATCH_ID)))
        return _write(self._options, named, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Append what the tasks of a batch have staged, once. Raises InvalidRequestError if the batch was
        committed before with another number of rows for a topic, LogStoreError."""
        staged = [one for one in messages if isinstance(one, StagedMessage)]
        if not staged:
            return

        async def commit(client: Client) -> None:
            from stratalog.pipeline.sink.batch_commit import BatchCommit

            decided = BatchCommit(client, staged[0].staging_topic, self._options.durability)
            tasks = [one.task for one in staged]
            former = await decided.commit(batchId, tasks)
            if former is not None:
                _require_same_rows(former, tasks, staged[0].staging_topic)

        _run(self._options, commit)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Leave everything as it is: the batch will be made again, and its commit deletes what was staged."""


def _require_same_rows(former: Decision, tasks: list[StagedTask], staging_topic: str) -> None:
    """Raise InvalidRequestError if these tasks have other rows than a batch that is committed, which leaves
    theirs out. Only topics and their numbers of rows are compared: a batch that is made again may have its
    rows in another order, and those without a key in other partitions."""
    from stratalog.pipeline.sink.decision_log import TopicCount

    left_out = TopicCount.of(count for task in tasks for count in task.record_counts)
    # An older version did not note what the topics got.
    if not former.topics or former.topics == left_out:
        return
    raise InvalidRequestError(
        "this batch was committed before with other rows, and those of this one are not written: a checkpoint"
        " that two queries share, or an older one, or a jobId that two writes of a foreachBatch share; start"
        " one of the queries with another checkpointLocation, behind the rows that are written, and give each"
        " write of a foreachBatch, and each new checkpoint, a jobId of its own",
        staging_topic=staging_topic,
        batch=former.batch,
        written=_counts_text(former.topics),
        left_out=_counts_text(left_out),
    )


def _counts_text(counts: Iterable[TopicCount]) -> str:
    return ", ".join(f"{one.record_count} to {one.topic} ({one.topic_id})" for one in counts) or "nothing"


class _Batch(NamedTuple):
    """The batch of a task."""

    staging_topic: str
    number: int
    is_first_try: bool = False
    """No other try may have decided on it."""


def _write(options: SinkOptions, batch: _Batch, batches: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
    from pyspark import TaskContext

    # Many tasks have no rows. These neither load grpc nor connect to the service.
    filled = (one for one in batches if one.num_rows)
    first = next(filled, None)
    if first is None:
        nothing = StagedTask("", 0, 0, 0, ())
        return StagedMessage(batch.staging_topic, nothing) if options.is_exactly_once else AppendedMessage(0)
    batches = chain((first,), filled)
    from stratalog.client.retry import LONG_WORK

    context = TaskContext.get()
    number = 0 if context is None else context.partitionId()
    if not options.is_exactly_once:
        from stratalog.pipeline.sink.task_appends import append_rows, require_undecided

        if not batch.is_first_try:
            _run(options, lambda client: require_undecided(client, batch.staging_topic, batch.number))
        with options.service.sync_client(LONG_WORK) as client:
            return AppendedMessage(append_rows(client, batches, options))
    from stratalog.pipeline.sink.task_staging import TaskStaging

    with options.service.sync_client(LONG_WORK) as client:
        staging = TaskStaging(client, batch.staging_topic, str(SystemIdGenerator().uuid()), options)
        return StagedMessage(batch.staging_topic, staging.stage(batches, number))


def _property(name: str) -> str:
    """A property that Spark gives the tasks of a stream."""
    from pyspark import TaskContext

    context = TaskContext.get()
    value = None if context is None else context.getLocalProperty(name)
    if value is None:
        raise InvalidRequestError(
            "a stream's task does not know its query; write with Spark's writeStream", property=name
        )
    return value


def _run(options: SinkOptions, work: Callable[[Client], Awaitable[_T]], *, is_patient: bool = True) -> _T:
    """Do the work with a client of its own. One that is not patient gives a silent server up soon."""
    from stratalog.client.retry import LONG_WORK, RetryPolicy

    async def run() -> _T:
        async with options.service.client(LONG_WORK if is_patient else RetryPolicy()) as client:
            return await work(client)

    return asyncio.run(run())
