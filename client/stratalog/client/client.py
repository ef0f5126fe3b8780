"""The client of a store: single appends, fetches and look-ups, and producers, consumers and admin.

Methods import the record format when they need it: a program that only administrates starts in half the time.
"""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack, cast

from stratalog.base.clock import SystemClock
from stratalog.base.errors import InvalidRequestError
from stratalog.base.filesystem import Buffer
from stratalog.base.types import TopicPartition
from stratalog.client.access.credentials import Credentials
from stratalog.client.admin import Admin
from stratalog.client.append_record import AppendRecord, encodable
from stratalog.client.channel import CALL_TIMEOUT_S, ServerChannel
from stratalog.client.consuming.consumer_settings import (
    ConsumedRange,
    ConsumerOptions,
    ConsumerSettings,
    consumer_settings,
)
from stratalog.client.consuming.offset_lookup import OffsetLookup
from stratalog.client.consuming.position_finder import OffsetQuery
from stratalog.client.errors import refusing_misfits
from stratalog.client.isolation_level import IsolationLevel, IsolationLike
from stratalog.client.messages import (
    AppendAck,
    DurabilityLike,
    FetchedPartition,
    FetchStart,
    OffsetAnswer,
    StoreMetadata,
    TopicMetadata,
    append_ack,
    fetch_request,
    plain_records,
    wire_durability,
)
from stratalog.client.operations import Operations
from stratalog.client.owner_channels import OwnerChannels
from stratalog.client.pages import pages
from stratalog.client.position import Place, Places, Position, position_of, wire_position
from stratalog.client.retry import LONG_WORK, RetryPolicy
from stratalog.client.topics import Topics
from stratalog.client.values.conversion import values_of
from stratalog.v1 import log_pb2, log_pb2_grpc

if TYPE_CHECKING:
    import grpc
    import pyarrow as pa

    from stratalog.client.consuming.consumer import Consumer
    from stratalog.client.consuming.table import Table
    from stratalog.client.consuming.topic_follower import TopicFollower
    from stratalog.client.producer import Producer
    from stratalog.record.codecs.compression import Codec
    from stratalog.record.native.consumer_records import Decoder
    from stratalog.record.record import RecordLike

_APPEND = f"/{log_pb2.DESCRIPTOR.services_by_name['LogService'].full_name}/Append"
_CLOCK = SystemClock()


class Client:
    """A connection to the server of a store. Belongs to the event loop on which it was made; close it, or
    `async with`.

    Example::

        async with Client("localhost:9190") as client:
            await client.topics.create("clicks", partitions=3)
            async with client.producer() as producer:
                producer.send("clicks", "user-1", "home")
            async for record in client.consume("clicks"):
                print(record.value)
    """

    def __init__(
        self, address: str, *, retry: RetryPolicy | None = None, credentials: Credentials | None = None
    ) -> None:
        """`address` is HOST:PORT, or several with commas between: servers of one store, which are tried in
        turn. Connects when first used, and follows the data if another server takes the store over. `retry`
        is for calls, producers and consumers; None: `RetryPolicy()` for calls, and `LONG_WORK`, which is more
        patient, for producers and consumers. `credentials` are TLS and a token, for servers that want them;
        None: neither. Raises InvalidRequestError.
        """
        self._long_retry = retry or LONG_WORK
        """The policy of producers and consumers."""
        self.channel = ServerChannel(address, retry, credentials)
        """The connection."""
        self.owners = OwnerChannels(self.channel)
        """The connections to single owners, where a store has several."""
        self.log = log_pb2_grpc.LogServiceStub(self.channel.grpc)
        """The stub, for sessions that this class does not offer. A call goes to the server that is current
        when it begins, and does not move on with the owner."""
        self.operations = Operations(self.channel)
        """The long work that the server does."""
        self.admin = Admin(self.owners, self.operations)
        self.topics = Topics(self.admin)
        self._producers: weakref.WeakSet[Producer] = weakref.WeakSet()
        """Those that `close` ends. The event loop keeps a producer that has records."""
        self._followers: weakref.WeakSet[TopicFollower] = weakref.WeakSet()
        """Those of consumers and tables, which `close` ends."""

    @property
    def address(self) -> str:
        """HOST:PORT of the server that gets the next call."""
        return self.channel.address

    async def append(
        self,
        topic: str,
        partition: int | None,
        records: Sequence[AppendRecord | RecordLike],
        *,
        durability: DurabilityLike | None = None,
        codec: Codec | None = None,
        expected_offset: int | None = None,
        fencing_token: str | None = None,
        topic_id: str = "",
    ) -> AppendAck:
        """Append records to one partition as one batch: all become visible together, or none. Without a
        codec it is not compressed. Partition None is the partition of the records' keys, and then the server
        encodes the batch. Records that were read may be appended, too, with their timestamps.

        `expected_offset` is the offset that the first record must get; otherwise nothing is stored, and
        UnexpectedOffsetError has the `log_end_offset`. `fencing_token` is the token that the partition must
        have (see `fence`); otherwise FencingTokenMismatchError. `topic_id` is the topic that is meant;
        otherwise InconsistentTopicIdError.

        Retried only if the server refuses it without effect: after ServerUnavailableError the outcome is
        unknown.
        """
        request = _append_request(topic, partition, durability, expected_offset, fencing_token, topic_id)
        now_ms = _CLOCK.now_ms()
        encodables = [encodable(record, now_ms) for record in records]
        if partition is None:
            if codec is not None:
                raise InvalidRequestError(
                    "the server encodes records without a partition; choose a partition, or no codec",
                    codec=codec.name,
                )
            request.records.CopyFrom(plain_records(encodables))
        else:
            from stratalog.record.builder import encode_batch
            from stratalog.record.codecs.compression import Codec

            request.batches = encode_batch(encodables, codec=codec or Codec.NONE)
        return await self._append(request)

    async def append_batches(
        self,
        topic: str,
        partition: int,
        batches: Buffer,
        *,
        durability: DurabilityLike | None = None,
        expected_offset: int | None = None,
        fencing_token: str | None = None,
        topic_id: str = "",
    ) -> AppendAck:
        """Append encoded record batches. Otherwise as `append`."""
        request = _append_request(topic, partition, durability, expected_offset, fencing_token, topic_id)
        from stratalog.client.sending.append_encoding import encode_append_request

        # protobuf would copy the batches three times.
        encoded = encode_append_request(request, (batches,))
        place = TopicPartition(topic, partition)
        response = await self.owners.call_owner(place, partial(_encoded_append, encoded))
        return append_ack(request.topic, response)

    async def _append(self, request: log_pb2.AppendRequest) -> AppendAck:
        response = await self.channel.call(self.log.Append(request, timeout=CALL_TIMEOUT_S))
        return append_ack(request.topic, response)

    async def fence(
        self, topic: str, partition: int, token: str, *, current_token: str | None = None, topic_id: str = ""
    ) -> int:
        """Set the fencing token of a partition, at most 36 bytes of UTF-8; empty for none. From then on no
        append with another token is applied. Returns the end of the log: all records of the former holder lie
        below it. Safe to repeat.

        With `current_token` it replaces only that token, so that one of several rivals wins. Raises
        FencingTokenMismatchError otherwise, which has the `current_token`.
        """
        with refusing_misfits():
            request = log_pb2.FenceRequest(
                topic=topic,
                topic_id=topic_id,
                partition=partition,
                token=token,
                current_token=current_token,
            )
        response = await self.channel.call(
            self.log.Fence(request, timeout=CALL_TIMEOUT_S), is_repeatable=True
        )
        return response.log_end_offset

    async def fetch(
        self,
        positions: Mapping[TopicPartition, Place | Position | FetchStart],
        *,
        max_wait_ms: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 0,
        partition_max_bytes: int = 0,
        isolation: IsolationLike = IsolationLevel.READ_UNCOMMITTED,
    ) -> list[FetchedPartition]:
        """Read once from each position, which is written as for `consume`, or is a `FetchStart`, which names
        leader epochs, too. A partition's failure is in its own answer (`error`): LogTruncatedError if the log
        has another epoch before the start.

        Batches may contain records that must not be read; `fetched_parts` leaves them out.
        """
        starts = {
            one: place if isinstance(place, FetchStart) else wire_position(position_of(place))
            for one, place in positions.items()
        }
        places = list(starts)

        async def ask(channel: ServerChannel, indexes: Sequence[int]) -> Sequence[log_pb2.FetchedPartition]:
            some = {places[index]: starts[places[index]] for index in indexes}
            request = fetch_request(some, max_wait_ms, min_bytes, max_bytes, partition_max_bytes, isolation)
            timeout_s = CALL_TIMEOUT_S + max_wait_ms / 1000
            call = log_pb2_grpc.LogServiceStub(channel.grpc).Fetch(request, timeout=timeout_s)
            return (await channel.call(call, is_repeatable=True, wait_s=max_wait_ms / 1000)).partitions

        return values_of(FetchedPartition, await self.owners.answers(places, ask))

    async def list_offsets(
        self,
        queries: Iterable[OffsetQuery],
        *,
        isolation: IsolationLike = IsolationLevel.READ_UNCOMMITTED,
    ) -> list[OffsetAnswer]:
        """The offset of each place in its partition; places are written as for `consume`. Raises the error of
        the first query that failed.
        """
        answers = await self.offset_answers(queries, isolation=isolation)
        for answer in answers:
            if answer.error is not None:
                raise answer.error
        return answers

    async def offset_answers(
        self,
        queries: Iterable[OffsetQuery],
        *,
        isolation: IsolationLike = IsolationLevel.READ_UNCOMMITTED,
    ) -> list[OffsetAnswer]:
        """The answers of `list_offsets`, but a query's failure is in its own answer (`error`)."""
        return await OffsetLookup(self.owners).offset_answers(queries, isolation=isolation)

    async def metadata(self, topics: Sequence[str] = ()) -> StoreMetadata:
        """The named topics, or all, with their limits, and for each partition the server that owns it. The
        failure of a topic or a partition is in its own part (`error`).
        """
        found: list[TopicMetadata] = []
        store_id, max_request_bytes = "", 0
        with refusing_misfits():
            request = log_pb2.MetadataRequest(topics=topics)

        def call(token: str) -> Awaitable[log_pb2.MetadataResponse]:
            request.page_token = token
            return self.log.Metadata(request, timeout=CALL_TIMEOUT_S)

        async for page in pages(self.channel, call, parts=lambda page: page.topics):
            store_id, max_request_bytes = page.store_id, page.max_request_bytes
            found += values_of(TopicMetadata, page.topics)
        return StoreMetadata(store_id, max_request_bytes, tuple(found))

    async def partitions(self, topic: str) -> list[TopicPartition]:
        """All partitions of a topic. Raises UnknownTopicOrPartitionError."""
        [description] = await self.admin.describe_topics([topic])
        return [TopicPartition(topic, partition) for partition in range(description.partition_count)]

    async def offsets(
        self,
        partitions: Sequence[TopicPartition],
        place: Place,
        *,
        isolation: IsolationLike = IsolationLevel.READ_UNCOMMITTED,
    ) -> dict[TopicPartition, int]:
        """The offset of the same place in several partitions."""
        queries = [(partition, place) for partition in partitions]
        answers = await self.list_offsets(queries, isolation=isolation)
        return {partition: answer.offset for partition, answer in zip(partitions, answers, strict=True)}

    async def earliest(self, topic: str) -> dict[TopicPartition, int]:
        """The log start of each partition of a topic: the positions to read everything."""
        return await self.offsets(await self.partitions(topic), "earliest")

    async def latest(
        self, topic: str, *, isolation: IsolationLike = IsolationLevel.READ_UNCOMMITTED
    ) -> dict[TopicPartition, int]:
        """The high watermark of each partition of a topic; the last stable offset for committed records."""
        partitions = await self.partitions(topic)
        return await self.offsets(partitions, "latest", isolation=isolation)

    def producer(
        self,
        *,
        compression: str = "none",
        idempotent: bool = True,
        durability: DurabilityLike | None = None,
        batch_bytes: int | None = None,
        linger_ms: int | None = None,
        max_buffered_bytes: int | None = None,
        retry: RetryPolicy | None = None,
    ) -> Producer:
        """A producer. `ProducerSettings` documents the settings; None is its default.
        `retry` is how long records wait for a server that is away; None: the client's policy, or `LONG_WORK`
        without one.

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
        producer = Producer(self.owners, self.topics.describe, settings, retry or self._long_retry)
        self._producers.add(producer)
        return producer

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

        Both are "earliest", "latest", a datetime with a zone or its ISO 8601 text, an offset, a negative
        number (so many offsets before the end), or a mapping of partitions to these. With `follow` the
        consumer waits for new records at the end of the log; without, it ends there, at the end as it was
        when the consumer began. The default is to follow without `until`, and to end with it.
        `decode` ("utf-8" or a function) makes keys and values of their bytes. `ConsumedRange` and
        `ConsumerSettings` have the other options. Raises InvalidRequestError for arguments that mean
        nothing. An offset that a partition does not have is OffsetOutOfRangeError when the first
        record is asked for.
        """
        from stratalog.client.consuming.consumer import Consumer

        wanted = ConsumedRange.of(
            topic, start=start, until=until, follow=follow, partitions=partitions, topic_id=topic_id
        )
        chosen = consumer_settings(self._long_retry, decode, settings)
        return Consumer(self._follower(wanted, chosen), chosen)

    def table(
        self,
        topic: str,
        *,
        partitions: Iterable[int] | None = None,
        topic_id: str = "",
        decode: Decoder = None,
        **settings: Unpack[ConsumerOptions],
    ) -> Table:
        """A table of the latest value of each key, kept up to date; `async with`. Options as `consume`, but
        without `max_records`. Raises InvalidRequestError."""
        from stratalog.client.consuming.table import Table

        chosen = consumer_settings(self._long_retry, decode, settings)
        if chosen.max_records is not None:
            raise InvalidRequestError(
                "a table has all records; leave out max_records", max_records=chosen.max_records
            )
        follower = self._follower(ConsumedRange.of(topic, partitions=partitions, topic_id=topic_id), chosen)
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

        wanted = ConsumedRange.of(
            topic, start=start, until=until, follow=False, partitions=partitions, topic_id=topic_id
        )
        chosen = consumer_settings(self._long_retry, decode, settings)
        return await read_arrow(self._follower(wanted, chosen), chosen, columns)

    def _follower(self, wanted: ConsumedRange, settings: ConsumerSettings) -> TopicFollower:
        from stratalog.client.consuming.topic_follower import TopicFollower

        follower = TopicFollower(self, wanted, settings)
        self._followers.add(follower)
        return follower

    async def close(self) -> None:
        """End the producers, with a ResourceWarning of records that are not stored, end the consumers, the
        tables and the calls that wait, and close the connection. May be repeated.
        """
        try:
            for producer in list(self._producers):
                producer.end()
        finally:
            await self.channel.close()
            await self.owners.close()
        # Not before: readers that wait get ClientClosedError, because the channel is closed.
        for follower in list(self._followers):
            await follower.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _encoded_append(encoded: bytes, channel: ServerChannel) -> Awaitable[log_pb2.AppendResponse]:
    """An append of a serialised request."""
    append = cast(
        "grpc.aio.UnaryUnaryMultiCallable[bytes, log_pb2.AppendResponse]",
        channel.grpc.unary_unary(_APPEND, response_deserializer=log_pb2.AppendResponse.FromString),
    )
    return append(encoded, timeout=CALL_TIMEOUT_S)


def _append_request(
    topic: str,
    partition: int | None,
    durability: DurabilityLike | None,
    expected_offset: int | None,
    fencing_token: str | None,
    topic_id: str,
) -> log_pb2.AppendRequest:
    """The request without its records. Raises InvalidRequestError."""
    with refusing_misfits():
        return log_pb2.AppendRequest(
            topic=topic,
            partition=partition,
            durability=wire_durability(durability),
            topic_id=topic_id,
            expected_offset=expected_offset,
            fencing_token=fencing_token,
        )
