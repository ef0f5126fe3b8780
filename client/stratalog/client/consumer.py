"""Reading partitions from given offsets, as one session that the server moves on by itself.

A consumer holds one FetchStream over all its partitions. When the connection breaks it opens another from
where it stands; nothing is skipped and nothing comes twice, because a position moves only when its records
are handed out. There are no consumer groups: whoever needs to go on later keeps the positions.

An answer is a few mebibytes of batches, which may decompress to any size. It stays as it came until its
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
from stratalog.client.errors import error_of_call, error_of_info
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.messages import FetchedRecords, fetch_request, fetched_runs
from stratalog.client.retry import Patience, RetryPolicy
from stratalog.record.record import Record
from stratalog.v1 import log_pb2, log_pb2_grpc

STREAM_MAX_BYTES = 4 << 20
"""Asked for in one answer of a session."""


class ConsumedRecord(NamedTuple):
    """A record and where it came from."""

    topic: str
    partition: int
    record: Record


@dataclass(slots=True)
class _Position:
    """Where a partition goes on. Belongs to its consumer, and so to one event loop."""

    next_offset: int


class Consumer:
    """Belongs to one event loop. One iteration at a time; leaving it ends the session, a new one goes on from
    there.
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
        """`on_broken` is told once each time the session breaks and is going to be tried again. `on_offline`
        is told of a partition whose log is offline or refuses a read, and this consumer goes on without it,
        for good; where nobody is told, that is raised.
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
        """The next offset of each partition: what to begin with to go on later."""
        return {key: position.next_offset for key, position in self._positions.items()}

    async def __aiter__(self) -> AsyncIterator[ConsumedRecord]:
        """Record by record; in the order of offsets within a partition. Whoever leaves goes on behind the
        record that came last.
        """
        async for fetched in self.fetches():
            topic, partition = fetched.topic_partition
            position = self._positions[fetched.topic_partition]
            for record in fetched.records:
                # The session stands behind all of them already. Nothing may be set once the reader has left:
                # what it left is closed later, when another iteration may have moved on.
                position.next_offset = record.offset + 1
                yield ConsumedRecord(topic, partition, record)
            position.next_offset = fetched.next_offset

    async def fetches(self) -> AsyncGenerator[FetchedRecords, None]:
        """As many as are decoded at a time, which is cheaper. Ends at the end offsets, where given. Raises
        LogStoreError: for a partition that cannot be read (OffsetOutOfRangeError once its offset was
        deleted), and for a server that stays away for longer than the retry policy's deadline, from the
        moment when the session broke.
        """
        loop = asyncio.get_running_loop()
        patience = Patience(self._retry)
        while self._pending():
            try:
                async for fetched in self._session(patience):
                    patience.succeed()
                    yield fetched
            except LogStoreError as error:
                pause_s = patience.next_pause_s(loop.time()) if error.retriable else None
                if pause_s is None:
                    raise
                if self._on_broken is not None and patience.failure_count == 1:
                    self._on_broken(error)
                await asyncio.sleep(pause_s)

    def _pending(self) -> dict[TopicPartition, int]:
        """The partitions that are not at their ends, nor offline."""
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
            # Without news nothing comes for hours, and all is well.
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
        """What the answer holds up to the end offset; the position moves on with each part."""
        topic_partition = TopicPartition(answer.topic, answer.partition)
        if answer.HasField("error"):
            error = error_of_info(answer.error)
            if self._on_offline is None or not isinstance(error, DataDirectoryError):
                raise error
            # The server's session has let go of it as well.
            self._offline.add(topic_partition)
            self._on_offline(topic_partition, error)
            return
        end_offset = None if self._end_offsets is None else self._end_offsets.get(topic_partition, 0)
        position = self._positions[topic_partition]
        for fetched in fetched_runs(answer, position.next_offset, end_offset):
            position.next_offset = fetched.next_offset
            yield fetched
