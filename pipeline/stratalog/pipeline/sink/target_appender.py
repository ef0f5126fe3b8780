"""Appends the batches of a decision to one partition, each record once.

The records carry the decision's producer, and sequences from 0 on, so they are the same whenever the
decision is carried out. If the outcome of an append is unknown, or another driver has begun, the partition is
asked how far it came (`stored_count`). The server recognises an append that is under way meanwhile.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import NamedTuple

from stratalog.base.errors import (
    LogStoreError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
)
from stratalog.base.types import TopicPartition
from stratalog.client.client import Client
from stratalog.client.messages import DurabilityLike
from stratalog.client.retry import LONG_WORK, Patience
from stratalog.pipeline.sink.decision_log import Decision, TargetPlan
from stratalog.pipeline.sink.log_answers import log_answers
from stratalog.record.batch import batches, decode
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import MAX_BATCH_LENGTH, batch_of_producer, encode_batch
from stratalog.record.header import parse_header


class Appends(NamedTuple):
    """The facts that all appenders of a decision share."""

    client: Client
    decision: Decision
    durability: DurabilityLike | None
    """That of the last batch of a partition, and so of all before it; None: the topic's."""


class TargetAppender:
    """Appends to one partition in order. Belongs to one task of an event loop at a time."""

    def __init__(self, appends: Appends, plan: TargetPlan, known_count: int) -> None:
        """`known_count`: so many records of the decision are in the partition already."""
        self._appends = appends
        self._plan = plan
        self._stored_count = known_count
        self._patience = Patience(LONG_WORK)
        self._held: bytes | None = None
        """The last batch so far, without its place in the sequence."""
        self.record_count = 0
        """The records that were added, but for those of the batch that is held."""
        self.has_found_records = known_count > 0
        """Some were in the partition already, and may be less durable than they shall be."""

    async def add(self, batch: bytes) -> None:
        """Append the batch before this one, and hold this one. Raises LogStoreError."""
        await self._release(None)
        self._held = batch

    async def finish(self) -> None:
        """Append the last batch; then all that were not found have the durability. Raises LogStoreError."""
        await self._release(self._appends.durability)

    async def _release(self, durability: DurabilityLike | None) -> None:
        batch, self._held = self._held, None
        if batch is not None:
            sequence = self.record_count
            self.record_count += parse_header(batch).records_count
            await self._append(batch, sequence, durability)

    async def _append(self, batch: bytes, sequence: int, durability: DurabilityLike | None) -> None:
        """Append the records of a batch that the partition does not have, until it has all."""
        count = parse_header(batch).records_count
        start_s = asyncio.get_running_loop().time()
        while self._stored_count < sequence + count:
            skipped_count = self._stored_count - sequence
            if skipped_count > 0:
                batch, count = _records(batch, skipped_count, count), count - skipped_count
                sequence += skipped_count
            try:
                await self._send(batch, sequence, durability)
                self._stored_count = sequence + count
            except OutOfOrderSequenceError as error:
                expected = error.fields.get("expected_sequence")
                if not isinstance(expected, int) or expected <= sequence:
                    raise
                self._find(expected)
            except RecordTooLargeError:
                if count == 1:
                    raise
                await self._append(_records(batch, 0, count // 2), sequence, None)
            except LogStoreError as error:
                await self._patience.bear(error, start_s)
                # It may be stored. A server that was started anew does not recognise each producer.
                self._find(await stored_count(self._appends, self._plan))
            else:
                self._patience.succeed()

    async def _send(self, batch: bytes, sequence: int, durability: DurabilityLike | None) -> None:
        decision = self._appends.decision
        topic, topic_id, partition = self._plan.target
        producer = BatchProducer(decision.producer_id, decision.producer_epoch, sequence)
        numbered = batch_of_producer(batch, parse_header(batch), producer)
        ack = await self._appends.client.append_batches(
            topic, partition, numbered, durability=durability, topic_id=topic_id
        )
        # The next search of the log begins behind it.
        self._plan = self._plan._replace(end_offset=ack.last_offset + 1)

    def _find(self, count: int) -> None:
        if count > self._stored_count:
            self._stored_count = count
            self.has_found_records = True


def _records(batch: bytes, first: int, end: int) -> bytes:
    """These records of a batch as one of their own."""
    records = decode(batch, max_bytes=MAX_BATCH_LENGTH)[first:end]
    return encode_batch(records, codec=parse_header(batch).codec)


async def stored_count(appends: Appends, plan: TargetPlan) -> int:
    """The number of records of a decision that its partition has. Raises LogStoreError.

    The partition knows its last producers. It forgets one whose records have old times, so without an answer
    the log is read from the end at the decision on, as far as it was not deleted meanwhile."""
    topic, _, partition = plan.target
    identity = (appends.decision.producer_id, appends.decision.producer_epoch)
    for one in await appends.client.admin.list_producers(topic, partition):
        if (one.producer_id, one.producer_epoch) == identity:
            return one.last_sequence + 1
    place = TopicPartition(topic, partition)
    # A fetch at the end would wait for records to come.
    end_offset = (await appends.client.offsets([place], "latest"))[place]
    offset, count = plan.end_offset, 0
    while True:
        try:
            async with aclosing(log_answers(appends.client, place, offset, end_offset)) as answers:
                async for answer in answers:
                    for _, header in batches(answer.batches):
                        if (header.producer_id, header.producer_epoch) == identity:
                            count = max(count, header.base_sequence + header.last_offset_delta + 1)
            return count
        except OffsetOutOfRangeError as error:
            log_start = error.fields.get("log_start_offset")
            if not isinstance(log_start, int) or log_start <= offset:
                raise
            offset = log_start
