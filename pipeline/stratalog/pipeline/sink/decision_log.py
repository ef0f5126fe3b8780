"""The decisions of the driver, in a partition of the staging topic: the last record is the state.

A decision is made once for each batch: a record is appended at the offset at which the log ended when the
former state was read, or not at all. So two drivers never decide differently.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable
from contextlib import aclosing
from typing import NamedTuple

from stratalog.base.errors import (
    CorruptRecordError,
    LogStoreError,
    UnexpectedOffsetError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import TopicPartition
from stratalog.client.append_record import AppendRecord
from stratalog.client.client import Client
from stratalog.client.messages import fetched_parts
from stratalog.client.retry import LONG_WORK, Patience
from stratalog.pipeline.sink.log_answers import log_answers
from stratalog.pipeline.sink.staging_topic import DECISIONS, StagedTask
from stratalog.pipeline.sink.target_batches import Target

_VERSION = 1


class ChosenTask(NamedTuple):
    """The attempt of a task whose rows are appended. Fields as in `StagedTask`."""

    attempt: str
    start_offset: int
    end_offset: int
    batch_count: int

    @classmethod
    def of(cls, task: StagedTask) -> ChosenTask:
        return cls(task.attempt, task.start_offset, task.end_offset, task.batch_count)


class TargetPlan(NamedTuple):
    """The part of a batch that one partition gets."""

    target: Target
    record_count: int
    end_offset: int
    """The end of the partition before the decision: the records lie behind it."""


class TopicCount(NamedTuple):
    """The rows of a batch for one topic."""

    topic: str
    topic_id: str
    record_count: int

    @classmethod
    def of(cls, counts: Iterable[tuple[Target, int]]) -> tuple[TopicCount, ...]:
        """The sums of what partitions get, by topic."""
        sums: Counter[tuple[str, str]] = Counter()
        for target, count in counts:
            sums[target.topic, target.topic_id] += count
        return tuple(sorted(cls(*topic, count) for topic, count in sums.items()))


class Decision(NamedTuple):
    """The rows of a batch, and the producer that appends them: sequences begin at 0 in each partition."""

    batch: int
    """The number of a stream's batch; 0 in a job."""
    producer_id: int
    producer_epoch: int
    """Each decision has one of its own, so that a driver that is late appends nothing more."""
    tasks: tuple[ChosenTask, ...]
    plans: tuple[TargetPlan, ...]
    is_applied: bool = False
    """All rows are appended; then there are neither tasks nor plans."""
    record_count: int | None = None
    """The rows that were appended, once all are; None before that, and if an older version wrote them."""
    topics: tuple[TopicCount, ...] = ()
    """The rows that each topic got, once all are appended; none before that, and if an older version wrote
    them."""

    def applied(self) -> Decision:
        topics = TopicCount.of((plan.target, plan.record_count) for plan in self.plans)
        record_count = sum(topic.record_count for topic in topics)
        return self._replace(tasks=(), plans=(), is_applied=True, record_count=record_count, topics=topics)

    def to_json(self) -> str:
        plans = [[*target, count, end] for target, count, end in self.plans]
        return json.dumps({"version": _VERSION, **self._asdict(), "plans": plans})

    @classmethod
    def from_json(cls, text: bytes | None) -> Decision:
        """The decision of a record. Raises CorruptRecordError."""
        try:
            fields = json.loads(text or b"")
            version = fields.pop("version")
            if version != _VERSION:
                raise ValueError(f"version {version}")
            tasks = tuple(ChosenTask(*one) for one in fields.pop("tasks"))
            plans = tuple(TargetPlan(Target(*one[:3]), *one[3:]) for one in fields.pop("plans"))
            topics = tuple(TopicCount(*one) for one in fields.pop("topics", ()))
            return cls(**fields, tasks=tasks, plans=plans, topics=topics)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptRecordError(
                "the last decision of a staging topic cannot be read; a newer version may have written it",
                reason=error,
            ) from None


class DecisionLog:
    """The decisions of a query or a job. Belongs to one event loop."""

    def __init__(self, client: Client, topic: str) -> None:
        self._client = client
        self._partition = TopicPartition(topic, DECISIONS)

    async def read(self) -> tuple[Decision | None, int]:
        """The last decision, None before the first one, and the end of the log. Raises CorruptRecordError for
        a decision that cannot be read, LogStoreError."""
        try:
            ends = await self._client.offsets([self._partition], "latest")
        except UnknownTopicOrPartitionError:
            return None, 0
        end_offset = ends[self._partition]
        if end_offset == 0:
            return None, 0
        last: bytes | None = None
        async with aclosing(
            log_answers(self._client, self._partition, end_offset - 1, end_offset)
        ) as answers:
            async for answer in answers:
                for part in fetched_parts(answer, end_offset - 1, end_offset):
                    for record in part.records:
                        last = record.value
        return Decision.from_json(last), end_offset

    async def write(self, decision: Decision, end_offset: int) -> bool:
        """Append a decision where the log ended. Returns False if another one is there. Raises
        LogStoreError."""
        topic, number = self._partition
        records = [AppendRecord(None, decision.to_json())]
        patience = Patience(LONG_WORK)
        start_s = asyncio.get_running_loop().time()
        while True:
            try:
                await self._client.append(topic, number, records, expected_offset=end_offset)
            except UnexpectedOffsetError:
                # An earlier try may be stored, and its answer lost.
                last, _ = await self.read()
                return last == decision
            except LogStoreError as error:
                await patience.bear(error, start_s)
            else:
                return True
