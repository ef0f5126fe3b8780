"""The part of the driver in a write: it decides on the attempts whose rows count, and appends these.

The decision is durable before the first row of it is appended. So a driver that dies on the way leaves either
nothing, or a decision, and the next one goes on with it, whatever attempts it has been given itself. A batch
that was decided and appended is never looked at again: its tasks may have run once more in vain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing

from stratalog.base.errors import (
    CorruptRecordError,
    InconsistentTopicIdError,
    InvalidRequestError,
    LogStoreError,
)
from stratalog.base.types import TopicPartition
from stratalog.client.channel import CALL_TIMEOUT_S
from stratalog.client.client import Client
from stratalog.client.messages import DurabilityLike, fetched_parts
from stratalog.pipeline.sink.decision_log import ChosenTask, Decision, DecisionLog, TargetPlan
from stratalog.pipeline.sink.log_answers import log_answers
from stratalog.pipeline.sink.staged_copies import copy_staged
from stratalog.pipeline.sink.staging_topic import DECISIONS, ROWS, StagedTask, staged_batch
from stratalog.pipeline.sink.target_appender import Appends, TargetAppender, stored_count
from stratalog.pipeline.sink.target_batches import Target, TargetBatch
from stratalog.pipeline.sink.target_lanes import TargetLanes
from stratalog.record.batch_producer import MAX_PRODUCER_EPOCH, MAX_SEQUENCE
from stratalog.v1 import log_pb2

_ADVICE = (
    "The batch is decided on, and some of its rows may be appended. Remove the cause and start the write"
    " again (a batch job with the option jobId): it goes on where it stopped. If a partition can never take"
    " the rows, delete the staging topic: the batch is then made anew, and rows may be appended twice."
)


class BatchCommit:
    """Commits the batches of a query, or a job, one after the other. Belongs to one event loop."""

    def __init__(self, client: Client, topic: str, durability: DurabilityLike | None) -> None:
        """`client` is patient, `topic` is the staging topic, which exists once anything was staged."""
        self._client = client
        self._topic = topic
        self._durability: DurabilityLike | None = durability
        self._log = DecisionLog(client, topic)

    async def commit(self, batch: int, tasks: Sequence[StagedTask]) -> Decision | None:
        """Append the rows of these tasks, unless the batch was decided on before: then those of then, as far
        as they are missing. Returns the decision of then; None if the rows are those of these tasks. Raises
        InvalidRequestError for a batch before the last one, LogStoreError; the same call may be repeated,
        also with other attempts."""
        staged = [task for task in tasks if task.batch_count]
        is_resumed = True
        while True:
            last, end_offset = await self._log.read()
            if last is not None and not last.is_applied:
                try:
                    await self._apply(last, staged, is_resumed=is_resumed)
                except LogStoreError:
                    # Another driver may have finished it meanwhile, and deleted the staged rows.
                    if (await self._log.read())[0] == last:
                        raise
                    continue
                await self._log.write(last.applied(), end_offset)
                await self._forget(last, end_offset)
            elif last is not None and last.batch > batch:
                raise InvalidRequestError(
                    "a later batch of the query is written already, so its checkpoint is an older one, and"
                    " rows would be left out; restore the newest checkpoint, or start a new query with"
                    " another checkpointLocation, and in foreachBatch with another jobId, behind the rows"
                    " that are written",
                    staging_topic=self._topic,
                    batch=batch,
                    last_batch=last.batch,
                )
            elif last is not None and last.batch == batch:
                return last if is_resumed else None
            elif not staged:
                return None
            else:
                decision = await self._decision(batch, staged, last)
                # Another driver may have decided meanwhile.
                is_resumed = not await self._log.write(decision, end_offset)

    async def has_decided(self) -> bool:
        """Whether there is a decision, so that the staging topic is needed."""
        last, _ = await self._log.read()
        return last is not None

    async def forget(self, tasks: Sequence[StagedTask]) -> None:
        """Delete what these tasks have staged, in a job that is committed. In a query, other rows may lie
        before it."""
        end_offset = max((task.end_offset for task in tasks), default=0)
        if end_offset:
            await self._delete({ROWS: end_offset})

    async def _decision(self, batch: int, tasks: Sequence[StagedTask], last: Decision | None) -> Decision:
        counts: Counter[Target] = Counter()
        for task in tasks:
            counts.update(dict(task.record_counts))
        for target, count in counts.items():
            if count > MAX_SEQUENCE:
                raise InvalidRequestError(
                    "a batch has more rows for one partition than a producer can number; divide it",
                    topic=target.topic,
                    partition=target.partition,
                    record_count=count,
                    max_record_count=MAX_SEQUENCE,
                )
        end_offsets = await self._end_offsets(list(counts))
        if last is None or last.producer_epoch == MAX_PRODUCER_EPOCH:
            call = self._client.log.InitProducer(log_pb2.InitProducerRequest(), timeout=CALL_TIMEOUT_S)
            given = await self._client.channel.call(call, is_repeatable=True)
            producer_id, producer_epoch = given.producer_id, given.producer_epoch
        else:
            producer_id, producer_epoch = last.producer_id, last.producer_epoch + 1
        return Decision(
            batch=batch,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            tasks=tuple(ChosenTask.of(task) for task in tasks),
            plans=tuple(TargetPlan(target, count, end_offsets[target]) for target, count in counts.items()),
        )

    async def _end_offsets(self, targets: Sequence[Target]) -> dict[Target, int]:
        """The ends of the partitions. Raises InconsistentTopicIdError for a topic that is not the one for
        which its rows were staged: a decision for it could never be carried out."""
        queries = [(TopicPartition(target.topic, target.partition), "latest") for target in targets]
        answers = await self._client.list_offsets(queries)
        for target, answer in zip(targets, answers, strict=True):
            if answer.topic_id != target.topic_id:
                raise InconsistentTopicIdError(
                    "the topic was deleted and created again while rows were staged; start the write again",
                    topic=target.topic,
                    topic_id=target.topic_id,
                    current_topic_id=answer.topic_id,
                )
        return {target: answer.offset for target, answer in zip(targets, answers, strict=True)}

    async def _apply(self, decision: Decision, tasks: Sequence[StagedTask], *, is_resumed: bool) -> None:
        """Append the rows of a decision, or those that are missing if it `is_resumed`. `tasks` are those of
        this driver, which the decision may not have chosen."""
        appends = Appends(self._client, decision, self._durability)
        # Of a driver that slept, the decision may be a later one than that for its tasks.
        is_resumed |= decision.tasks != tuple(map(ChosenTask.of, tasks))
        try:
            if not is_resumed and all(task.places is not None for task in tasks):
                if await copy_staged(appends, self._topic, tasks):
                    return
                is_resumed = True
            await self._append(appends, is_resumed=is_resumed)
        except LogStoreError as error:
            error.fields |= {"staging_topic": self._topic, "batch": decision.batch}
            error.add_note(_ADVICE)
            raise

    async def _append(self, appends: Appends, *, is_resumed: bool) -> None:
        """Read the rows of a decision, and append them, or those that are missing if it `is_resumed`."""
        plans = appends.decision.plans
        # Where partitions have several owners, each gets its appends by a connection of its own.
        await self._client.owners.look_up({plan.target.topic for plan in plans})
        stored = [await stored_count(appends, plan) for plan in plans] if is_resumed else [0] * len(plans)
        appenders = {
            plan.target: TargetAppender(appends, plan, count)
            for plan, count in zip(plans, stored, strict=True)
        }
        lanes = TargetLanes(appenders)
        try:
            async with aclosing(self._staged(appends.decision.tasks)) as staged:
                async for one in staged:
                    await lanes.add(one)
            await lanes.finish()
        finally:
            lanes.abandon()
            await lanes.rest()
        await self._secure(target for target, one in appenders.items() if one.has_found_records)
        for plan in plans:
            assert appenders[plan.target].record_count == plan.record_count

    async def _secure(self, targets: Iterable[Target]) -> None:
        """Give records that were found in partitions the durability."""
        if self._durability is None:
            return
        for target in targets:
            if self._durability == "object":
                await self._client.admin.upload([target.topic])
            else:
                [flushed] = await self._client.admin.flush(target.topic, [target.partition])
                if flushed.error is not None:
                    raise flushed.error

    async def _staged(self, tasks: Iterable[ChosenTask]) -> AsyncGenerator[TargetBatch]:
        """Yield the batches of these attempts in the order in which they were staged, always the same. Raises
        CorruptRecordError if one is missing."""
        left = {task.attempt.encode(): task.batch_count for task in tasks}
        start_offset = min(task.start_offset for task in tasks)
        end_offset = max(task.end_offset for task in tasks)
        rows = TopicPartition(self._topic, ROWS)
        async with aclosing(log_answers(self._client, rows, start_offset, end_offset)) as answers:
            async for answer in answers:
                for part in fetched_parts(answer, start_offset, end_offset):
                    for record in part.records:
                        if record.key in left:
                            left[record.key] -= 1
                            yield staged_batch(record.headers, record.value)
                start_offset = answer.next_fetch_offset
        if any(left.values()):
            raise CorruptRecordError(
                "staged rows of the batch are missing or doubled; delete the staging topic and start the"
                " write again, which may append rows twice",
                topic=self._topic,
                attempts=", ".join(name.decode() for name, count in left.items() if count),
            )

    async def _forget(self, decision: Decision, end_offset: int) -> None:
        """Delete the rows of a decision that is applied, those of attempts beside it, and former decisions.
        It was the last one before `end_offset`."""
        rows_end_offset = max(task.end_offset for task in decision.tasks)
        await self._delete({ROWS: rows_end_offset, DECISIONS: end_offset})

    async def _delete(self, ends: Mapping[int, int]) -> None:
        for deleted in await self._client.admin.delete_records_of(self._topic, ends):
            if deleted.error is not None:
                raise deleted.error
