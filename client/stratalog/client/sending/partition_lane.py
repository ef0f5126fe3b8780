"""The sealed batches of one partition on their way to the server, in order.

Several batches are in flight at a time. The server answers them in order; behind a failed one it refuses all
others until a batch resumes the partition. So after a failure without effect the lane queues the later
batches again, in order, and the next one resumes. Answers to the requests from before are ignored.

If the failed batch may be stored, so may those behind it that the server had written by then. Each of them is
settled by its own answer, and nothing is sent meanwhile: only those that the server has refused unwritten
(`NOT_STORED`) go again. An idempotent producer that repeats the failed batch repeats the others with it,
because the server recognises what it has.

* The server has no room (`OverloadedError`): the oldest batch was not applied. The lane sends it again with
  all later ones, after growing pauses; at the retry policy's deadline all of them fail.
* Another server owns the data (`NotOwnerError`): the same, over a stream to that one. It is the same if the
  owner does not know the topic yet, which another server knows.
* The server refuses a batch: that batch fails, and the later ones are sent again unless they may be stored.
* The batch is larger than its topic accepts (`RecordTooLargeError`): a batch of several records is replaced
  by its halves, and so is every batch of that size from then on. A single record that is too large fails.

The batches of an idempotent producer have sequence numbers. A batch gets them when it is first sent, and
keeps them while it may be stored: if the connection fails, it is sent again with the same ones, and the
server recognises it. When a batch fails, its numbers are missing.

* It is certainly not stored: neither are those behind it, so they get new numbers from its first one on.
* It may be stored, or the server does not know the sequence (`OUT_OF_ORDER_SEQUENCE`, `PRODUCER_FENCED`): the
  numbers are of no use any more. The others that may be stored fail, too, and the rest waits for a new
  producer id, under which numbers begin at 0.

The server does not know the producer id (`UNKNOWN_PRODUCER_ID`): batches in doubt fail, the others are sent
again, under a new id.

Each batch names the id of the topic that its records were placed for, and is written to no other one. After
the topic was deleted and made anew, the server refuses one (`INCONSISTENT_TOPIC_ID`), and all batches of that
topic fail. The numbers of each topic begin at 0.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.base.errors import (
    InconsistentTopicIdError,
    InvalidRequestError,
    LimitExceededError,
    LogStoreError,
    NotOwnerError,
    OutOfOrderSequenceError,
    OverloadedError,
    PrecedingAppendFailedError,
    RecordTooLargeError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import Durability, TopicPartition
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.owner_channels import REFUSALS
from stratalog.client.retry import Patience, RetryPolicy
from stratalog.client.sending.batch_receipt import UNKNOWN_OFFSET
from stratalog.client.sending.producer_identities import ProducerIdentity
from stratalog.client.sending.sealed_batch import EncodedBatch, SealedBatch
from stratalog.record.batch_producer import MAX_SEQUENCE, BatchProducer, add_to_sequence
from stratalog.record.builder import NO_PRODUCER
from stratalog.v1 import log_pb2

MAX_IN_FLIGHT_COUNT = 5
"""A server recognises the last five batches of a producer in a partition."""

SURE_BYTES = 1_000_000
"""The transport of every server accepts a message with a batch of this size."""

WITHOUT_EFFECT = (OverloadedError, PrecedingAppendFailedError)
"""The refused append may be repeated as it is."""

NOT_STORED = (
    *WITHOUT_EFFECT,
    NotOwnerError,
    InvalidRequestError,
    LimitExceededError,
    UnknownTopicOrPartitionError,
)
"""The refused append is certainly not stored. After other errors it may be."""

UNKNOWN_PRODUCER_CODE = "UNKNOWN_PRODUCER_ID"
"""The refused append may be repeated with another producer id, if it is not in doubt."""


class TakenBatch(NamedTuple):
    """A batch that the lane has passed on to the stream."""

    batch: EncodedBatch
    resume: bool
    """Whether its request begins the partition anew."""
    topic_id: str
    """The only topic that may take it; empty if any may."""


class PartitionLane:
    """The batches of one partition. Belongs to one event loop."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        retry: RetryPolicy,
        on_settled: Callable[[SealedBatch, LogStoreError | None], None],
        on_split: Callable[[SealedBatch, Sequence[SealedBatch]], None],
        on_pause_over: Callable[[PartitionLane], None],
        is_idempotent: bool = False,
    ) -> None:
        """`on_settled`, `on_split`: as for `SenderEvents`. `on_pause_over` is called when a pause ends."""
        self.topic_partition = topic_partition
        self._is_idempotent = is_idempotent
        self._identity: ProducerIdentity | None = None
        """The identity of the sequence numbers; None before the first one, and after they are of no use."""
        self._spent: ProducerIdentity | None = None
        """The last identity; its numbers must not begin anew."""
        self._next_sequence = 0
        self._topic_id = ""
        """The topic of the batch that got the last numbers. Another topic of the name has its own."""
        self._on_settled = on_settled
        self._on_split = on_split
        self._on_pause_over = on_pause_over
        self._patience = Patience(retry)
        """Counts refusals that had no effect."""
        self._pause: asyncio.TimerHandle | None = None
        """The end of the pause after such a refusal."""
        self._queued: deque[SealedBatch] = deque()
        self._in_flight: deque[tuple[int, SealedBatch]] = deque()
        """With the sequences of their requests."""
        self._failure: LogStoreError | None = None
        """The failure of a batch that may be stored, while those behind it wait for their answers."""
        self._unwritten: list[SealedBatch] = []
        """Batches behind that failure that the server has refused unwritten. They go again."""
        self._recognised: list[SealedBatch] = []
        """Batches that the server has and no longer knows the place of, while others are behind them."""
        self._needs_resume = False
        """Whether the server may refuse the next batch unless it resumes the partition."""
        self._refused_bytes: int | None = None
        """Size of the smallest batch of several records that was too large; larger ones are split before
        sending.
        """

    def needs_identity(self, identity: ProducerIdentity | None) -> bool:
        """Whether its batches wait for another identity than this one."""
        return self._is_idempotent and self._identity is None and identity in (None, self._spent)

    @property
    def in_flight_count(self) -> int:
        return len(self._in_flight)

    @property
    def batch_count(self) -> int:
        """Its batches that are queued or in flight."""
        return len(self._queued) + len(self._unwritten) + len(self._in_flight)

    @property
    def is_busy(self) -> bool:
        """Whether it has batches."""
        return self.batch_count > 0

    def check(self) -> None:
        """Assert the invariants of the state."""
        sequences = [sequence for sequence, _ in self._in_flight]
        assert sequences == sorted(set(sequences))
        assert len(sequences) <= MAX_IN_FLIGHT_COUNT
        if self._failure is not None:
            assert self._in_flight, "it waits for answers"
            # Their numbers are of no use any more.
            return
        assert not self._unwritten
        batches = [*(batch for _, batch in self._in_flight), *self._queued]
        numbered = [batch for batch in batches if batch.producer not in (None, NO_PRODUCER)]
        assert numbered == batches[: len(numbered)], "batches get their numbers in order"
        end_sequence, topic_id = self._next_sequence, self._topic_id
        for batch in reversed(numbered):
            if batch.topic_id != topic_id:
                # The numbers of each topic begin at 0.
                assert end_sequence == 0
                assert batch.producer is not None
                end_sequence = add_to_sequence(batch.producer.base_sequence, batch.record_count)
                topic_id = batch.topic_id
            assert self._identity is not None
            assert batch.producer is not None
            assert batch.producer[:2] == self._identity
            assert add_to_sequence(batch.producer.base_sequence, batch.record_count) == end_sequence
            end_sequence = batch.producer.base_sequence
        doubted = [batch.is_in_doubt for batch in batches]
        assert doubted == sorted(doubted, reverse=True), "the oldest batches are in doubt"

    def queue(self, batch: SealedBatch) -> None:
        if not self.is_busy:
            # Failures before the last idle time no longer count.
            self._patience.succeed()
        self._queued.append(batch)

    def may_send(self, max_request_bytes: int | None, identity: ProducerIdentity | None = None) -> bool:
        """Whether the oldest queued batch may be sent beside those in flight. `max_request_bytes` is the
        limit of the server; None before it is known. `identity` is that of the producer.
        """
        if self._pause is not None or not self._queued or self._queued[0].section is None:
            return False
        if self._failure is not None or self.needs_identity(identity):
            return False
        size_bytes = self._queued[0].encoded_bytes
        has_room = len(self._in_flight) < MAX_IN_FLIGHT_COUNT
        if max_request_bytes is None:
            return has_room and size_bytes <= SURE_BYTES
        # A batch that is too large fails in its turn.
        return (has_room and size_bytes <= max_request_bytes) or not self._in_flight

    def take(
        self,
        sequence: int,
        max_request_bytes: int | None,
        identity: ProducerIdentity | None = None,
        max_batch_bytes: int | None = None,
    ) -> TakenBatch | None:
        """Take the oldest queued batch, or its beginning if batches of that size are refused.
        `max_batch_bytes` is the limit of the topic; None if it is unknown. Returns None if no batch may be
        sent, or it is a record that is too large for the server, which has failed.
        """
        if not self.may_send(max_request_bytes, identity):
            return None
        batch = self._queued.popleft()
        while batch.record_count > 1 and self._is_refused(
            batch.encoded_bytes, max_request_bytes, max_batch_bytes
        ):
            self._split(batch)
            batch = self._queued.popleft()
        size_bytes = batch.encoded_bytes
        if max_request_bytes is not None and size_bytes > max_request_bytes:
            refusal = RecordTooLargeError(
                "the request is larger than the server accepts; send less at once",
                size_bytes=size_bytes,
                max_bytes=max_request_bytes,
            )
            self._fail_one(batch, _too_large_alone(refusal))
            return None
        encoded = batch.encode(batch.producer or self._number(batch, identity))
        resume, self._needs_resume = self._needs_resume, False
        self._in_flight.append((sequence, batch))
        return TakenBatch(encoded, resume, batch.topic_id)

    def acknowledge(self, sequence: int, ack: log_pb2.AppendResponse) -> None:
        """Settle the oldest batch in flight, which has the answer `ack`."""
        if self._is_past(sequence):
            return
        _, batch = self._in_flight.popleft()
        assert ack.last_offset - ack.base_offset + 1 == batch.record_count
        self._patience.succeed()
        durability = Durability(ack.durability)
        self._acknowledge_recognised(durability, batch.topic_id)
        batch.acknowledge(ack.base_offset, durability)
        self._on_settled(batch, None)
        self._end_wait()

    def refuse(self, sequence: int, cause: LogStoreError) -> None:
        """Act on the refusal of the oldest batch in flight."""
        if self._is_past(sequence):
            return
        self._needs_resume = True
        if self._failure is not None:
            self._refuse_behind(cause)
            return
        oldest = self._in_flight[0][1]
        if oldest.is_in_doubt and _is_stored(oldest, cause):
            self._in_flight.popleft()
            self.put_back()
            self._patience.succeed()
            # A server forgets where a batch lies when it starts. How durable it is, the next answer tells.
            self._recognised.append(oldest)
            self._end_recognised()
            return
        if isinstance(cause, InconsistentTopicIdError):
            self._fail_topic(oldest.topic_id, cause)
            return
        is_elsewhere = isinstance(cause, REFUSALS) and cause.retriable
        has_no_effect = is_elsewhere or isinstance(cause, WITHOUT_EFFECT)
        begins_anew = cause.code == UNKNOWN_PRODUCER_CODE and not oldest.is_in_doubt
        is_repeatable = has_no_effect or begins_anew or (self._is_idempotent and cause.retriable)
        if not is_repeatable:
            self.fail_oldest(cause)
            return
        if not has_no_effect and not begins_anew:
            self._doubt_in_flight()
        if not self._may_try_again(cause):
            self.give_up(cause)
            return
        self.put_back()
        if begins_anew:
            self._begin_anew(cause)

    def lose(self) -> None:
        """Queue the batches in flight again after their connection failed, each with the same numbers. They
        fail if these are of no use any more."""
        self._doubt_in_flight()
        self.put_back()

    def put_back(self) -> None:
        """Queue the batches in flight again, in order, and wait for no answer."""
        self._queued.extendleft(batch for _, batch in reversed(self._in_flight))
        self._queued.extendleft(reversed(self._unwritten))
        self._in_flight.clear()
        self._unwritten.clear()
        failure, self._failure = self._failure, None
        if failure is not None:
            self._begin_anew(failure)

    def fail_oldest(self, cause: LogStoreError) -> None:
        """Fail the oldest batch, or replace it by its halves if it is too large. Queue the others again, once
        none of them may be stored."""
        if self._failure is not None or (self._in_flight and not isinstance(cause, NOT_STORED)):
            self._failure = self._failure or cause
            self._refuse_behind(cause)
            return
        batch = self._take_back_oldest(cause)
        if not isinstance(cause, RecordTooLargeError):
            self._fail_one(batch, cause)
        elif batch.record_count == 1:
            self._fail_one(batch, _too_large_alone(cause))
        else:
            if cause.fields.get("size_bytes", batch.encoded_bytes) == batch.encoded_bytes:
                # The size as sent, not the size in the topic's own compression.
                self._refused_bytes = batch.encoded_bytes
            self._split(batch)

    def give_up(self, cause: LogStoreError) -> None:
        """Fail all batches after refusals up to the deadline, so that not each of them waits for as long."""
        if self._failure is None:
            # The oldest decides about the numbers, and fails those in doubt.
            self._fail_one(self._take_back_oldest(cause), cause)
        else:
            # One has decided already.
            self.put_back()
        failed = list(self._queued)
        self._queued.clear()
        for batch in failed:
            self._settle_failed(batch, cause)

    def fail_in_flight(self, cause: LogStoreError) -> None:
        """Fail the batches in flight, whose outcome is unknown."""
        self._doubt_in_flight()
        failed = [batch for _, batch in self._in_flight]
        self._in_flight.clear()
        for batch in failed:
            self._settle_failed(batch, cause)
        self.put_back()
        self._begin_anew(cause)

    def fail_all(self, cause: LogStoreError) -> None:
        """Fail all batches. Those that were in flight are in doubt."""
        self.lose()
        failed = list(self._queued)
        self._queued.clear()
        self._begin_anew(cause)
        for batch in failed:
            self._settle_failed(batch, cause)

    def abandon(self) -> None:
        """Forget all batches. Those that were in flight are in doubt."""
        self.lose()
        self._queued.clear()
        self._recognised.clear()
        self._begin_anew(None)
        self._needs_resume = True
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def forget_limits(self) -> None:
        """Send batches of every size again: the topic's limits may have changed."""
        self._refused_bytes = None

    def _number(self, batch: SealedBatch, identity: ProducerIdentity | None) -> BatchProducer:
        """The producer fields for a batch that is sent for the first time."""
        if not self._is_idempotent:
            return NO_PRODUCER
        if self._identity is None:
            assert identity is not None
            self._identity = self._spent = identity
            self._next_sequence = 0
        elif batch.topic_id != self._topic_id:
            # No batch of the former topic comes any more.
            self._next_sequence = 0
        self._topic_id = batch.topic_id
        producer = BatchProducer(*self._identity, self._next_sequence)
        self._next_sequence = add_to_sequence(self._next_sequence, batch.record_count)
        return producer

    def _begin_anew(self, cause: LogStoreError | None) -> None:
        """Give up the sequence numbers, fail the queued batches that are in doubt, and let the others wait
        for a new identity.
        """
        self._identity = None
        doubted = [batch for batch in self._queued if batch.is_in_doubt]
        self._queued = deque(batch for batch in self._queued if not batch.is_in_doubt)
        for batch in self._queued:
            batch.producer = None
        for batch in doubted:
            self._settle_failed(
                batch,
                ServerUnavailableError(
                    "the records may or may not be stored: they were sent and not acknowledged, and the "
                    "server cannot recognise them any more",
                    reason=cause,
                ),
            )

    def _refuse_behind(self, cause: LogStoreError) -> None:
        """Settle the oldest batch in flight, which failed by `cause`: it goes again if it is not stored."""
        assert self._failure is not None
        _, batch = self._in_flight.popleft()
        if isinstance(cause, NOT_STORED):
            self._unwritten.append(batch)
        else:
            batch.is_in_doubt = True
            self._settle_failed(batch, cause)
        self._end_wait()

    def _end_wait(self) -> None:
        """Queue the batches behind a failed one again, once all answers are there."""
        if not self._in_flight and self._failure is not None:
            self.put_back()

    def _doubt_in_flight(self) -> None:
        for _, batch in self._in_flight:
            batch.is_in_doubt = True

    def _take_back_oldest(self, cause: LogStoreError) -> SealedBatch:
        """Queue the batches in flight again, and take the oldest of all. It is in doubt if it was in flight,
        and the cause does not exclude that it is stored.
        """
        is_sent = bool(self._in_flight)
        self.put_back()
        batch = self._queued.popleft()
        batch.is_in_doubt |= is_sent and not isinstance(cause, NOT_STORED)
        return batch

    def _is_past(self, sequence: int) -> bool:
        """Whether the batch of the request has been put back since."""
        if not self._in_flight or sequence < self._in_flight[0][0]:
            return True
        assert sequence == self._in_flight[0][0], "a partition's answers come in order"
        return False

    def _is_refused(self, size_bytes: int, *limits: int | None) -> bool:
        is_known = self._refused_bytes is not None and size_bytes >= self._refused_bytes
        return is_known or any(limit is not None and size_bytes > limit for limit in limits)

    def _split(self, batch: SealedBatch) -> None:
        halves = batch.halves()
        self._queued.extendleft(reversed(halves))
        self._on_split(batch, halves)

    def _fail_one(self, batch: SealedBatch, cause: LogStoreError) -> None:
        """Fail the oldest batch, when the others are queued."""
        if batch.producer not in (None, NO_PRODUCER):
            if batch.is_in_doubt or not isinstance(cause, NOT_STORED):
                self._begin_anew(cause)
            else:
                self._topic_id, self._next_sequence = batch.topic_id, batch.producer.base_sequence
                for later in self._queued:
                    later.producer = None
        self._settle_failed(batch, cause)

    def _fail_topic(self, topic_id: str, cause: InconsistentTopicIdError) -> None:
        """Fail the batches that were placed for a topic that is no more. They are the oldest."""
        self.put_back()
        failed: list[SealedBatch] = []
        while self._queued and self._queued[0].topic_id == topic_id:
            failed.append(self._queued.popleft())
        self._begin_anew(cause)
        for batch in failed:
            self._settle_failed(batch, _placed_for_another(cause))

    def _settle_failed(self, batch: SealedBatch, cause: LogStoreError) -> None:
        self._on_settled(batch, batch.fail(cause))
        self._end_recognised()

    def _acknowledge_recognised(self, durability: Durability, topic_id: str) -> None:
        """Settle the batches whose place the server does not know. They are as durable as the records behind
        them in the topic, and on disk at least: a start flushes what it finds."""
        recognised, self._recognised = self._recognised, []
        for batch in recognised:
            is_before = batch.topic_id == topic_id
            batch.acknowledge(
                UNKNOWN_OFFSET, max(durability, Durability.DISK) if is_before else Durability.DISK
            )
            self._on_settled(batch, None)

    def _end_recognised(self) -> None:
        """Settle them if no other batch will be acknowledged."""
        if self._recognised and not self.is_busy:
            self._acknowledge_recognised(Durability.DISK, "")

    def _may_try_again(self, cause: LogStoreError) -> bool:
        """Count a refusal without effect, and pause. Returns False if the next attempt would be too late; the
        deadline begins anew for later batches then.
        """
        loop = asyncio.get_running_loop()
        pause_s = self._patience.next_pause_s(loop.time(), cause)
        if pause_s is None:
            self._patience.succeed()
            return False
        assert self._pause is None, "a paused lane has no batches in flight"
        self._pause = loop.call_later(pause_s, self._end_pause)
        return True

    def _end_pause(self) -> None:
        self._pause = None
        self._on_pause_over(self)


def _is_stored(batch: SealedBatch, cause: LogStoreError) -> bool:
    """Whether the refusal shows that the server has the batch: it expects a later number of the producer, and
    takes numbers without gaps only.
    """
    producer = batch.producer
    if not isinstance(cause, OutOfOrderSequenceError) or producer is None:
        return False
    fields = cause.fields
    expected, base_sequence = fields.get("expected_sequence"), producer.base_sequence
    is_of_this = (fields.get("producer_id"), fields.get("epoch"), fields.get("sequence")) == (
        producer.producer_id,
        producer.producer_epoch,
        base_sequence,
    )
    if not is_of_this or not isinstance(expected, int):
        return False
    end_sequence = add_to_sequence(base_sequence, batch.record_count)
    # Numbers begin again behind the highest one.
    return add_to_sequence(expected, -end_sequence) <= MAX_SEQUENCE // 2


def _placed_for_another(cause: InconsistentTopicIdError) -> InconsistentTopicIdError:
    """The error for records of a topic that was deleted."""
    return InconsistentTopicIdError(
        "the topic was deleted and made again after the record was placed in a partition of the former one;"
        " send the record again if the new topic is to have it",
        **cause.fields,
    )


def _too_large_alone(cause: RecordTooLargeError) -> RecordTooLargeError:
    """The error for a record that is too large although it is alone in its batch."""
    fields = {**cause.fields, "reason": cause.message}
    return RecordTooLargeError(
        "a record is too large even alone; make it smaller or raise the limit that the reason names",
        **fields,
    )
