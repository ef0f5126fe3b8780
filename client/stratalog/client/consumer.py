"""Consumers read partitions from given offsets, in one session that reconnects.

A consumer holds one FetchStream over all its partitions. When the connection breaks it opens another one at
its positions. Nothing is skipped or repeated, because a position moves only when its records are handed out.
There are no consumer groups: to continue later, keep the positions.

A response is a few mebibytes of batches, which may decompress to any size. It stays compressed until its
records are handed out, some thousands or a few mebibytes at a time; one batch at a time is decompressed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import grpc

from stratalog.base.errors import DataDirectoryError, LogStoreError
from stratalog.base.types import TopicPartition
from stratalog.client.channel import ServerChannel
from stratalog.client.errors import error_of_call, error_of_status
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.messages import FetchedRecords, fetch_request, fetched_parts
from stratalog.client.retry import Patience, RetryPolicy
from stratalog.record.record import Record
from stratalog.v1 import log_pb2, log_pb2_grpc

STREAM_MAX_BYTES = 4 << 20
"""Limit of one response of a session."""


class ConsumedRecord(NamedTuple):
    """A record with its topic and partition."""

    topic: str
    partition: int
    record: Record


@dataclass(slots=True)
class _Position:
    """The position in a partition. Belongs to its consumer's event loop."""

    next_offset: int


class Consumer:
    """Iterates over the records of partitions. Belongs to one event loop. One iteration at a time. Leaving it
    ends the session; a new iteration continues there.
    """

    def __init__(
        self,
        channel: ServerChannel,
        positions: Mapping[TopicPartition, int],
        end_offsets: Mapping[TopicPartition, int] | None,
        retry: RetryPolicy,
        on_broken: Callable[[LogStoreError], None] | None = None,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
        on_offline: Callable[[TopicPartition, DataDirectoryError], None] | None = None,
    ) -> None:
        """`on_broken` is called once each time the session breaks and is retried.

        `on_offline` is called for a partition whose log is offline or fails to read; the consumer continues
        without that partition, for good. Without a callback the error is raised.
        """
        self._channel = channel
        self._stub = log_pb2_grpc.LogServiceStub(channel.grpc)
        self._positions = {key: _Position(offset) for key, offset in positions.items()}
        self._end_offsets = None if end_offsets is None else dict(end_offsets)
        self._retry = retry
        self._on_broken = on_broken
        self._isolation = isolation
        self._on_offline = on_offline
        self._offline: set[TopicPartition] = set()

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The next offset of each partition, to continue later."""
        return {key: position.next_offset for key, position in self._positions.items()}

    async def __aiter__(self) -> AsyncIterator[ConsumedRecord]:
        """Yields single records, in the order of offsets within a partition. The next iteration begins behind
        the last yielded record.
        """
        async for fetched in self.fetches():
            topic, partition = fetched.topic_partition
            position = self._positions[fetched.topic_partition]
            for record in fetched.records:
                # The session is already behind all of these records. Set nothing after a yield: a reader may
                # leave there, and this generator is closed later, when another iteration has moved on.
                position.next_offset = record.offset + 1
                yield ConsumedRecord(topic, partition, record)
            position.next_offset = fetched.next_offset

    async def fetches(self) -> AsyncGenerator[FetchedRecords, None]:
        """Yields records in groups as they are decoded, which is cheaper. Ends at the end offsets, if given.

        Raises LogStoreError for a partition that cannot be read (OffsetOutOfRangeError once its offset was
        deleted), and for a server that is away for longer than the retry policy's deadline after the session
        broke.
        """
        loop = asyncio.get_running_loop()
        patience = Patience(self._retry)
        while self._pending():
            try:
                async for fetched in self._session(patience):
                    patience.succeed()
                    yield fetched
            except LogStoreError as error:
                pause_s = patience.next_pause_s(loop.time(), error.retry_delay_s) if error.retriable else None
                if pause_s is None:
                    raise
                if self._on_broken is not None and patience.failure_count == 1:
                    self._on_broken(error)
                await asyncio.sleep(pause_s)

    def _pending(self) -> dict[TopicPartition, int]:
        """The partitions that are neither at their ends nor offline."""
        ends = self._end_offsets
        return {
            key: offset
            for key, offset in self.positions.items()
            if key not in self._offline and (ends is None or offset < ends.get(key, 0))
        }

    async def _session(self, patience: Patience) -> AsyncGenerator[FetchedRecords, None]:
        """One FetchStream, until all partitions are at their ends or it breaks."""
        request = fetch_request(self._pending(), 0, 1, STREAM_MAX_BYTES, STREAM_MAX_BYTES, self._isolation)
        call = self._stub.FetchStream(request)
        try:
            # Without new records a working session may be silent for hours.
            await call.wait_for_connection()
            patience.begin(asyncio.get_running_loop().time())
            async for response in call:
                for answer in response.partitions:
                    for fetched in self._advance(answer):
                        yield fetched
                if not self._pending():
                    return
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error, self._channel.address) from None
        finally:
            call.cancel()

    def _advance(self, answer: log_pb2.FetchedPartition) -> Iterator[FetchedRecords]:
        """The records of a response below the end offset; the position moves with each part."""
        topic_partition = TopicPartition(answer.topic, answer.partition)
        if answer.HasField("error"):
            error = error_of_status(answer.error)
            if self._on_offline is None or not isinstance(error, DataDirectoryError):
                raise error
            # The server's session has dropped the partition as well.
            self._offline.add(topic_partition)
            self._on_offline(topic_partition, error)
            return
        end_offset = None if self._end_offsets is None else self._end_offsets.get(topic_partition, 0)
        position = self._positions[topic_partition]
        for fetched in fetched_parts(answer, position.next_offset, end_offset):
            position.next_offset = fetched.next_offset
            yield fetched
