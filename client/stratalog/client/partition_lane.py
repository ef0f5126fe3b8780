"""The sealed batches of one partition on their way to the server, in order.

Several batches are in flight at a time. The server answers them in order; behind a failed one it refuses all
others until a batch resumes the partition. So after a failure the lane queues the later batches again, in
order, and the next one resumes. Answers to the requests from before the failure are ignored.

* The server has no room (`OverloadedError`): the oldest batch was not applied. The lane sends it again with
  all later ones, after growing pauses; at the retry policy's deadline it fails.
* The server refuses a batch: that batch fails, and the later ones are sent again.
* The batch is larger than its topic accepts (`RecordTooLargeError`): a batch of several records is replaced
  by its halves, and so is every batch of that size from then on. A single record that is too large fails.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.base.errors import (
    LogStoreError,
    OverloadedError,
    PrecedingAppendFailedError,
    RecordTooLargeError,
)
from stratalog.base.types import Durability, TopicPartition
from stratalog.client.retry import Patience, RetryPolicy
from stratalog.client.sealed_batch import Acknowledged, SealedBatch
from stratalog.v1 import log_pb2

MAX_IN_FLIGHT_COUNT = 8

SURE_BYTES = 1_000_000
"""The transport of every server accepts a message with a batch of this size."""


class TakenBatch(NamedTuple):
    """A batch that the lane has passed on to the stream."""

    batch: bytes
    resume: bool
    """Whether its request begins the partition anew."""


class PartitionLane:
    """The batches of one partition. Belongs to one event loop."""

    def __init__(
        self,
        topic_partition: TopicPartition,
        retry: RetryPolicy,
        on_settled: Callable[[SealedBatch, LogStoreError | None], None],
        on_split: Callable[[SealedBatch, Sequence[SealedBatch]], None],
        on_pause_over: Callable[[PartitionLane], None],
    ) -> None:
        """`on_settled`, `on_split`: as for `AppendSender`. `on_pause_over` is called when a pause ends."""
        self.topic_partition = topic_partition
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
        self._needs_resume = False
        """Whether the server may refuse the next batch unless it resumes the partition."""
        self._refused_bytes: int | None = None
        """Size of the smallest batch of several records that was too large; larger ones are split before
        sending.
        """

    @property
    def in_flight_count(self) -> int:
        return len(self._in_flight)

    @property
    def is_busy(self) -> bool:
        """Whether it has batches."""
        return bool(self._queued or self._in_flight)

    def check(self) -> None:
        """Assert the invariants of the state."""
        sequences = [sequence for sequence, _ in self._in_flight]
        assert sequences == sorted(set(sequences))
        assert len(sequences) <= MAX_IN_FLIGHT_COUNT

    def queue(self, batch: SealedBatch) -> None:
        if not self.is_busy:
            # Failures before the last idle time no longer count.
            self._patience.succeed()
        self._queued.append(batch)

    def may_send(self, max_request_bytes: int | None) -> bool:
        """Whether the oldest queued batch may be sent beside those in flight. `max_request_bytes` is the
        limit of the server; None before it is known.
        """
        if self._pause is not None or not self._queued:
            return False
        size_bytes = len(self._queued[0].batch)
        has_room = len(self._in_flight) < MAX_IN_FLIGHT_COUNT
        if max_request_bytes is None:
            return has_room and size_bytes <= SURE_BYTES
        # A batch that is too large fails in its turn.
        return (has_room and size_bytes <= max_request_bytes) or not self._in_flight

    def take(self, sequence: int, max_request_bytes: int | None) -> TakenBatch | None:
        """Take the oldest queued batch, or its beginning if batches of that size are refused. None if none
        may be sent, or it is a record that is too large for the server, which has failed.
        """
        if not self.may_send(max_request_bytes):
            return None
        batch = self._queued.popleft()
        while batch.record_count > 1 and self._is_refused(len(batch.batch), max_request_bytes):
            self._split(batch)
            batch = self._queued.popleft()
        size_bytes = len(batch.batch)
        if max_request_bytes is not None and size_bytes > max_request_bytes:
            refusal = RecordTooLargeError(
                "the request is larger than the server accepts; send less at once",
                size_bytes=size_bytes,
                max_bytes=max_request_bytes,
            )
            self._fail_one(batch, _too_large_alone(refusal))
            return None
        resume, self._needs_resume = self._needs_resume, False
        self._in_flight.append((sequence, batch))
        return TakenBatch(batch.batch, resume)

    def acknowledge(self, sequence: int, ack: log_pb2.AppendResponse) -> None:
        """Settle the oldest batch in flight, which has the answer `ack`."""
        if self._is_past(sequence):
            return
        _, batch = self._in_flight[0]
        assert ack.last_offset - ack.base_offset + 1 == batch.record_count
        self._patience.succeed()
        durability = Durability(ack.durability)
        for place, future in batch.futures:
            if not future.done():
                future.set_result(Acknowledged(self.topic_partition, ack.base_offset + place, durability))
        self._in_flight.popleft()
        self._on_settled(batch, None)

    def refuse(self, sequence: int, cause: LogStoreError) -> None:
        """Act on the refusal of the oldest batch in flight."""
        if self._is_past(sequence):
            return
        self._needs_resume = True
        had_no_effect = isinstance(cause, OverloadedError | PrecedingAppendFailedError)
        if had_no_effect and self._may_try_again(cause):
            self.put_back()
        else:
            self.fail_oldest(cause)

    def put_back(self) -> None:
        """Queue the batches in flight again, in order."""
        self._queued.extendleft(batch for _, batch in reversed(self._in_flight))
        self._in_flight.clear()

    def fail_oldest(self, cause: LogStoreError) -> None:
        """Fail the oldest batch, or replace it by its halves if it is too large. Queue the others again."""
        self.put_back()
        batch = self._queued.popleft()
        if not isinstance(cause, RecordTooLargeError):
            self._fail_one(batch, cause)
        elif batch.record_count == 1:
            self._fail_one(batch, _too_large_alone(cause))
        else:
            if cause.fields.get("size_bytes", len(batch.batch)) == len(batch.batch):
                # The size as sent, not the size in the topic's own compression.
                self._refused_bytes = len(batch.batch)
            self._split(batch)

    def fail_in_flight(self, cause: LogStoreError) -> None:
        """Fail the batches in flight."""
        while self._in_flight:
            _, batch = self._in_flight.popleft()
            self._fail_one(batch, cause)

    def fail_all(self, cause: LogStoreError) -> None:
        """Fail all batches."""
        self.put_back()
        # A callback may abandon the batches.
        while self._queued:
            self._fail_one(self._queued.popleft(), cause)

    def abandon(self) -> None:
        """Forget all batches."""
        self._queued.clear()
        self._in_flight.clear()
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None

    def _is_past(self, sequence: int) -> bool:
        """Whether the batch of the request has been put back since."""
        if not self._in_flight or sequence < self._in_flight[0][0]:
            return True
        assert sequence == self._in_flight[0][0], "a partition's answers come in order"
        return False

    def _is_refused(self, size_bytes: int, max_request_bytes: int | None) -> bool:
        is_known = self._refused_bytes is not None and size_bytes >= self._refused_bytes
        return is_known or (max_request_bytes is not None and size_bytes > max_request_bytes)

    def _split(self, batch: SealedBatch) -> None:
        halves = batch.halves()
        self._queued.extendleft(reversed(halves))
        self._on_split(batch, halves)

    def _fail_one(self, batch: SealedBatch, cause: LogStoreError) -> None:
        batch.fail(cause)
        self._on_settled(batch, cause)

    def _may_try_again(self, cause: LogStoreError) -> bool:
        """Count a refusal without effect, and pause. Returns False if the next attempt would be too late; the
        deadline begins anew for later batches then.
        """
        loop = asyncio.get_running_loop()
        pause_s = self._patience.next_pause_s(loop.time(), cause.retry_delay_s)
        if pause_s is None:
            self._patience.succeed()
            return False
        assert self._pause is None, "a paused lane has no batches in flight"
        self._pause = loop.call_later(pause_s, self._end_pause)
        return True

    def _end_pause(self) -> None:
        self._pause = None
        self._on_pause_over(self)


def _too_large_alone(cause: RecordTooLargeError) -> RecordTooLargeError:
    """The error for a record that is too large although it is alone in its batch."""
    fields = {**cause.fields, "reason": cause.message}
    return RecordTooLargeError(
        "a record is too large even alone; make it smaller or raise the limit that the reason names",
        **fields,
    )
