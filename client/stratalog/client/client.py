"""The client of one server: single appends, fetches and offset look-ups, and producers, consumers and
admin.

Methods import the record format when they need it: a program that only administrates starts in half the time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from stratalog.base.errors import InvalidRequestError, OverloadedError
from stratalog.base.filesystem import Buffer
from stratalog.base.types import Durability, TopicPartition
from stratalog.client.admin import Admin
from stratalog.client.channel import CALL_TIMEOUT_S, ServerChannel
from stratalog.client.consuming.consumer_settings import ConsumedRange, ConsumerOptions, consumer_settings
from stratalog.client.consuming.position_finder import OffsetQuery
from stratalog.client.errors import error_of_status, refusing_misfits
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.messages import fetch_request, wire_durability, wire_isolation
from stratalog.client.operations import Operations
from stratalog.client.position import Places
from stratalog.client.retry import RetryPolicy, retrying
from stratalog.client.topics import Topics
from stratalog.v1 import log_pb2, log_pb2_grpc

if TYPE_CHECKING:
    import pyarrow as pa

    from stratalog.client.consuming.consumer import Consumer
    from stratalog.client.consuming.table import Table
    from stratalog.client.producer import Producer
    from stratalog.record.codecs.compression import Codec
    from stratalog.record.native.consumer_records import Decoder
    from stratalog.record.record import RecordLike


class Client:
    """A connection to one server. Belongs to the event loop on which it was made; close it, or `async with`.

    Example::

        async with Client("localhost:9190") as client:
            await client.topics.create("clicks", partitions=3)
            async with client.producer() as producer:
                producer.send("clicks", "user-1", "home")
            async for record in client.consume("clicks"):
                print(record.value)
    """

    def __init__(self, address: str, *, retry: RetryPolicy | None = None) -> None:
        """`address` is HOST:PORT; connects when first used. Raises InvalidRequestError."""
        self._channel = ServerChannel(address)
        self._retry = retry or RetryPolicy()
        self.log = log_pb2_grpc.LogServiceStub(self._channel.grpc)
        """The stub, for sessions that this class does not offer."""
        self.operations = Operations(self._channel, self._retry)
        """The long work that the server does."""
        self.admin = Admin(self._channel, self._retry, self.operations)
        self.topics = Topics(self.admin)

    @property
    def address(self) -> str:
        return self._channel.address

    async def append(
        self,
        topic: str,
        partition: int,
        records: Sequence[RecordLike],
        *,
        durability: Durability | None = None,
        codec: Codec | None = None,
    ) -> log_pb2.AppendResponse:
        """Append records to one partition as one batch: all become visible together, or none. Without a
        codec it is not compressed.

        Retried only after OverloadedError: after ServerUnavailableError the outcome is unknown.
        """
        from stratalog.record.builder import encode_batch
        from stratalog.record.codecs.compression import Codec

        batch = encode_batch(records, codec=codec or Codec.NONE)
        return await self.append_batches(topic, partition, batch, durability=durability)

    async def append_batches(
        self, topic: str, partition: int, batches: Buffer, *, durability: Durability | None = None
    ) -> log_pb2.AppendResponse:
        """Append encoded record batches. Otherwise as `append`."""
        with refusing_misfits():
            request = log_pb2.AppendRequest(
                topic=topic,
                partition=partition,
                durability=wire_durability(durability),
                batches=bytes(batches),
            )
        return await retrying(
            self._retry,
            lambda: self._channel.call(self.log.Append(request, timeout=CALL_TIMEOUT_S)),
            after=OverloadedError,
        )

    async def fetch(
        self,
        positions: Mapping[TopicPartition, int],
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 0,
        partition_max_bytes: int = 0,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> list[log_pb2.FetchedPartition]:
        """Read once from each position. A partition's failure is in its own response (`error`).

        Batches may contain records that must not be read; `fetched_parts` leaves them out.
        """
        request = fetch_request(positions, max_wait_ms, min_bytes, max_bytes, partition_max_bytes, isolation)
        timeout_s = CALL_TIMEOUT_S + max_wait_ms / 1000
        response = await retrying(
            self._retry, lambda: self._channel.call(self.log.Fetch(request, timeout=timeout_s))
        )
        return list(response.partitions)

    async def list_offsets(
        self,
        queries: Iterable[OffsetQuery],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> list[log_pb2.OffsetAnswer]:
        """Offsets by name or by time. Raises the error of the first query that failed."""
        answers = await self.offset_answers(queries, isolation=isolation)
        for answer in answers:
            if answer.HasField("error"):
                raise error_of_status(answer.error)
        return answers

    async def offset_answers(
        self,
        queries: Iterable[OffsetQuery],
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> list[log_pb2.OffsetAnswer]:
        """Offsets by name or by time; a query's failure is in its own answer (`error`)."""
        request = log_pb2.ListOffsetsRequest(isolation=wire_isolation(isolation))
        with refusing_misfits():
            for topic_partition, spec, timestamp_ms in queries:
                query = request.queries.add(topic=topic_partition.topic, partition=topic_partition.partition)
                if spec is not None:
                    query.at.spec = spec
                if timestamp_ms is not None:
                    query.at.timestamp_ms = timestamp_ms
        response = await retrying(
            self._retry, lambda: self._channel.call(self.log.ListOffsets(request, timeout=CALL_TIMEOUT_S))
        )
        return list(response.answers)

    async def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic. Raises UnknownTopicOrPartitionError."""
        [description] = await self.admin.describe_topics([topic])
        return [TopicPartition(topic, partition) for partition in range(description.partition_count)]

    async def offsets(
        self,
        partitions: Sequence[TopicPartition],
        spec: log_pb2.OffsetSpec.ValueType,
        *,
        isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, int]:
        queries = [(partition, spec, None) for partition in partitions]
        answers = await self.list_offsets(queries, isolation=isolation)
        return {partition: answer.offset for partition, answer in zip(partitions, answers, strict=True)}

    async def earliest(self, topic: str) -> dict[TopicPartition, int]:
        """The log start of each partition of a topic: the positions to read everything."""
        return await self.offsets(await self.partitions(topic), log_pb2.OFFSET_SPEC_EARLIEST)

    async def latest(
        self, topic: str, *, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[TopicPartition, int]:
        """The high watermark of each partition of a topic; the last stable offset for committed records."""
        partitions = await self.partitions(topic)
        return await self.offsets(partitions, log_pb2.OFFSET_SPEC_LATEST, isolation=isolation)

    def producer(
        self,
        *,
        compression: str = "none",
        idempotent: bool = True,
        durability: Durability | None = None,
        batch_bytes: int | None = None,
        linger_ms: int | None = None,
        max_buffered_bytes: int | None = None,
    ) -> Producer:
        """A producer over this connection. `ProducerSettings` documents the settings; None is its default.

        Raises InvalidRequestError for an unknown compression.
        """
        from stratalog.client.producer import Producer
        from stratalog.client.producer_settings import ProducerSettings

        sizes = {"batch_bytes": batch_bytes, "linger_ms": linger_ms, "max_buffered_bytes": max_buffered_bytes}
        settings = ProducerSettings(
            compression=compression,
            idempotent=idempotent,
            durability=durability,
            **{name: value for name, value in sizes.items() if value is not None},
        )
        return Producer(self._channel, self.topics.describe, settings, self._retry)

    def consume(
        self,
        topic: str,
        *,
        start: Places = "earliest",
        until: Places | None = None,
        follow: bool | None = None,
        partitions: Iterable[int] | None = None,
        topic_id: str = "",
        decode: Decoder = None,
        **settings: Unpack[ConsumerOptions],
    ) -> Consumer:
        """A consumer of the records from `start` to `until` (exclusive), or for ever without it.

        Both are "earliest", "latest", a datetime with a zone, an offset, a negative number (so many offsets
        before the end), or a mapping of partitions to these. With `follow` the consumer waits for new records
        at the end of the log; without, it ends there, at the end as it was when the consumer began. The
        default is to follow without `until`, and to end with it. `decode` ("utf-8" or a function) makes keys
        and values of their bytes. `ConsumedRange` and `ConsumerSettings` have the other options.

        Raises InvalidRequestError for arguments that mean nothing. An offset that a partition does not have
        is OffsetOutOfRangeError when the first record is asked for.
        """
        from stratalog.client.consuming.consumer import Consumer
        from stratalog.client.consuming.topic_follower import TopicFollower

        wanted = ConsumedRange.of(
            topic, start=start, until=until, follow=follow, partitions=partitions, topic_id=topic_id
        )
        chosen = consumer_settings(self._retry, decode, settings)
        return Consumer(TopicFollower(self, wanted, chosen), chosen)

    def table(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        decode: Decoder = None,
        **settings: Unpack[ConsumerOptions],
    ) -> Table:
        """A table of the latest value of each key, kept up to date; `async with`. Options as `consume`, but
        without `max_records`. Raises InvalidRequestError."""
        from stratalog.client.consuming.table import Table
        from stratalog.client.consuming.topic_follower import TopicFollower

        chosen = consumer_settings(self._retry, decode, settings)
        if chosen.max_records is not None:
            raise InvalidRequestError(
                "a table has all records; leave out max_records", max_records=chosen.max_records
            )
        follower = TopicFollower(self, ConsumedRange.of(topic, partitions=partitions), chosen)
        return Table(follower, has_bytes_keys=chosen.decode_key is None)

    async def read_arrow(
        self,
        topic: str,
        *,
        start: Places = "earliest",
        until: Places = "latest",
        partitions: Iterable[int] | None = None,
        topic_id: str = "",
        columns: Sequence[str] | None = None,
        decode: Decoder = None,
        **settings: Unpack[ConsumerOptions],
    ) -> pa.Table:
        """The records as a pyarrow.Table: the columns partition, offset, timestamp, key, value and headers.

        It is a snapshot: each partition ends at `until`, or at its present end if that comes first. With
        `columns` only the named ones are decoded. Options as `consume`; keys and values are binary, or
        strings with "utf-8". Needs the extra `arrow`. Raises as `consume` and its first record.
        """
        from stratalog.client.consuming.arrow_reader import read_arrow
        from stratalog.client.consuming.topic_follower import TopicFollower

        wanted = ConsumedRange.of(
            topic, start=start, until=until, follow=False, partitions=partitions, topic_id=topic_id
        )
        chosen = consumer_settings(self._retry, decode, settings)
        return await read_arrow(TopicFollower(self, wanted, chosen), chosen, columns)

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
