"""The queries and jobs that have a staging topic, for people who look after a service.

No program can know whether a query will go on. So people see when it wrote last, and whether a decision is
pending: then some of its rows may be appended, and only the query itself can append the others.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError, InvalidRequestError, UnknownTopicOrPartitionError
from stratalog.base.types import TopicPartition
from stratalog.client.client import Client
from stratalog.pipeline.sink.decision_log import DecisionLog
from stratalog.pipeline.sink.sink_options import STAGING_PREFIX
from stratalog.pipeline.sink.staging_topic import PARTITION_COUNT, staging_topic_name


class DecisionState(Enum):
    """The state of the last batch of a query."""

    NONE = "none"
    """Nothing was decided on."""
    PENDING = "pending"
    """Rows may be missing in their topics."""
    APPLIED = "applied"
    """All rows are appended."""
    UNREADABLE = "unreadable"
    """Newer software may have written the decision."""

    @property
    def may_need_rows(self) -> bool:
        """Whether a write may go on with the staged rows."""
        return self in (DecisionState.PENDING, DecisionState.UNREADABLE)


class StagedQuery(NamedTuple):
    """A query, or a batch job, with a staging topic."""

    query: str
    """Its id: of a stream that of Spark, of a job its `jobId`."""
    topic: str
    """The staging topic."""
    written_ms: int | None
    """The time of the newest record of the topic; None if it has none."""
    size_bytes: int
    """The size of the topic, on local disks and in the object store together."""
    decision: DecisionState
    batch: int | None
    """The number of the last batch that was decided on; None without any."""


async def staged_queries(client: Client) -> list[StagedQuery]:
    """All of a service, by their ids. Raises LogStoreError."""
    found: list[StagedQuery] = []
    for one in await client.admin.list_topics():
        if one.name.startswith(STAGING_PREFIX) and one.partition_count == PARTITION_COUNT:
            try:
                found.append(await _staged_query(client, one.name))
            except UnknownTopicOrPartitionError:
                # The query has ended meanwhile.
                continue
    return found


async def delete_staged(client: Client, query: str, *, is_forced: bool) -> StagedQuery:
    """Delete the staging topic of a query, which may be named by its topic, too. Returns its last state.
    Raises UnknownTopicOrPartitionError, and InvalidRequestError if a decision is pending, unless
    `is_forced`: the rows of that batch that are not appended yet are lost, or doubled when the query makes
    the batch again."""
    found = await _staged_query(client, staging_topic_name(query.removeprefix(STAGING_PREFIX)))
    if found.decision.may_need_rows and not is_forced:
        raise InvalidRequestError(
            "a decision of the query is pending: its rows may be appended in part. Start the query again, or"
            " the job with its jobId, and it appends the rest; --force deletes the staged rows as they are",
            topic=found.topic,
            decision=found.decision.value,
            batch=found.batch,
        )
    await client.topics.delete(found.topic)
    return found


async def _staged_query(client: Client, topic: str) -> StagedQuery:
    places = [TopicPartition(topic, number) for number in range(PARTITION_COUNT)]
    newest = await client.list_offsets([(place, "max-timestamp") for place in places])
    written_ms = max(answer.timestamp_ms for answer in newest)
    logs = await client.admin.describe_log(topic)
    state, batch = await _decision(client, topic)
    return StagedQuery(
        query=topic.removeprefix(STAGING_PREFIX),
        topic=topic,
        written_ms=None if written_ms < 0 else written_ms,
        size_bytes=sum(max(log.local_size_bytes, 0) + log.tiered_size_bytes for log in logs),
        decision=state,
        batch=batch,
    )


async def _decision(client: Client, topic: str) -> tuple[DecisionState, int | None]:
    try:
        last, _ = await DecisionLog(client, topic).read()
    except CorruptRecordError:
        return DecisionState.UNREADABLE, None
    if last is None:
        return DecisionState.NONE, None
    return DecisionState.APPLIED if last.is_applied else DecisionState.PENDING, last.batch
