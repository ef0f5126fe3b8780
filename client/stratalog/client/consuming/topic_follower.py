"""Reads the partitions of a topic in one session that reconnects: the part that all consumers share.

A follower holds one FetchStream over all its partitions. When the connection breaks it opens another one at
its positions. Nothing is skipped or repeated, because a position moves only when its records are handed out.

The next response is received while the records of the last one are in use. A response is some mebibytes of
batches, which may decompress to any size. It stays compressed until its records are handed out, some
thousands or a few mebibytes at a time; one batch at a time is decompressed.

A follower without an end asks for the topic now and then. It adds new partitions, from their log starts, and
raises InconsistentTopicIdError if the topic was deleted and another one has its name.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import grpc

from stratalog.base.errors import (
    DataDirectoryError,
    InconsistentTopicIdError,
    LogStoreError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import TopicPartition
from stratalog.client.admin import Admin
from stratalog.client.channel import ServerChannel
from stratalog.client.consuming.consumer_settings import ConsumedRange, ConsumerSettings
from stratalog.client.consuming.position import EARLIEST, Place, Places, Position, position_of
from stratalog.client.consuming.position_finder import OffsetSource, PositionFinder
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.messages import FetchedRecords, FetchStart, fetch_request, fetched_parts
from stratalog.client.retry import Patience
from stratalog.v1 import log_pb2, log_pb2_grpc

if TYPE_CHECKING:
    from stratalog.record.native.consumer_records import ConsumerRecord

STREAM_MAX_BYTES = 2 << 20
"""Limit of one response of a session. Larger ones leave a processor's cache before they are decoded."""

PARTITION_MAX_BYTES = 1 << 20
"""Limit of one partition in a response: Kafka's `max.partition.fetch.bytes`."""


class FollowedClient(OffsetSource, Protocol):
    """The part of a client that consumers use."""

    admin: Admin
    channel: ServerChannel

    @property
    def log(self) -> log_pb2_grpc.LogServiceAsyncStub: ...


@dataclass(slots=True)
class FollowedPartition:
    """The position in a partition. Belongs to its follower's event loop."""

    next_offset: int
    end_offset: int | None
    last_epoch: int = -1
    """The leader epoch before the position; -1 if none is known."""

    def pass_epoch(self, answer: log_pb2.FetchedPartition, last_epoch: int) -> None:
        """Note the epoch before a new position in the answer: at its end the server says which, because no
        batch may be left of it; before that it is the one of the last batch, or -1 without any."""
        if self.next_offset == answer.next_fetch_offset and answer.last_epoch >= 0:
            last_epoch = answer.last_epoch
        if last_epoch >= 0:
            self.last_epoch = last_epoch

    @property
    def is_done(self) -> bool:
        return self.end_offset is not None and self.next_offset >= self.end_offset


class TopicFollower:
    """Reads the partitions of a topic. Belongs to one event loop. One iteration at a time."""

    def __init__(self, client: FollowedClient, wanted: ConsumedRange, settings: ConsumerSettings) -> None:
        self._client = client
        self._wanted = wanted
        self._settings = settings
        self._finder = PositionFinder(client, settings.isolation, self._leave_out_or_raise)
        self._partitions: dict[int, FollowedPartition] = {}
        self._offline: set[int] = set()
        self._topic_id = wanted.topic_id
        self._is_open = False
        self._changed = asyncio.Event()
        """The session has to begin anew: its partitions or positions have changed, or there is a failure."""
        self._failure: LogStoreError | None = None

    @property
    def topic_id(self) -> str:
        """The topic's id; empty before it was looked up."""
        return self._topic_id

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each partition."""
        return {number: one.next_offset for number, one in sorted(self._partitions.items())}

    @property
    def readable_positions(self) -> dict[int, int]:
        """The next offset of each partition that is not left out."""
        return {number: offset for number, offset in self.positions.items() if number not in self._offline}

    async def open(self) -> None:
        """Look up the topic and the positions, unless that is done. Raises LogStoreError."""
        if self._is_open:
            return
        topic, start, until, partitions, _ = self._wanted
        partition_count = await self._partition_count()
        numbers = range(partition_count) if partitions is None else sorted(set(partitions))
        for number in [*numbers, *_named_in(start), *_named_in(until)]:
            if not 0 <= number < partition_count:
                raise UnknownTopicOrPartitionError(
                    "the topic has fewer partitions; choose a lower number",
                    topic=topic,
                    partition=number,
                    partition_count=partition_count,
                )
        if isinstance(until, Mapping):
            numbers = [number for number in numbers if number in until]
        ends = {} if until is None else await self._offsets(numbers, until)
        starts = await self._offsets(numbers, start)
        for number, offset in starts.items():
            if number not in self._offline:
                is_named = isinstance(start, Mapping) and number in start
                is_behind = is_named and until == "latest" and offset > ends[number]
                begin = await self._inside(number, offset) if is_behind else offset
                self._partitions[number] = FollowedPartition(begin, ends.get(number))
        self._is_open = True

    async def _inside(self, number: int, offset: int) -> int:
        """Where to begin instead of an offset behind the end of the log, of which no fetch would tell. Raises
        OffsetOutOfRangeError, unless the settings say how to go on."""
        uncommitted = self._finder._replace(isolation=IsolationLevel.READ_UNCOMMITTED)
        [log_end_offset] = (await uncommitted.ends([self._place(number)])).values()
        if offset <= log_end_offset:
            return offset
        reset = self._settings.auto_offset_reset
        if reset != "error":
            return (await self._offsets([number], reset)).get(number, log_end_offset)
        raise OffsetOutOfRangeError(
            "the consumer begins behind the end of the log; begin at its end or before",
            topic=self._wanted.topic,
            partition=number,
            offset=offset,
            log_end_offset=log_end_offset,
        )

    async def seek(self, partition: int, place: Place) -> None:
        """Go on from another position of the partition. Raises UnknownTopicOrPartitionError."""
        await self.open()
        followed = self._partitions.get(partition)
        if followed is None:
            raise UnknownTopicOrPartitionError(
                "the consumer does not read this partition", topic=self._wanted.topic, partition=partition
            )
        offsets = await self._offsets([partition], place)
        self._move(followed, offsets[partition])

    def step_back(self, records: Sequence[ConsumerRecord], kept_count: int) -> None:
        """Set the position behind the first records of the last part: the others were not handed out."""
        if kept_count < len(records):
            upcoming = records[kept_count]
            self._partitions[upcoming.partition].next_offset = upcoming.offset

    async def ends(self) -> dict[int, int]:
        """The offsets behind the last records of the partitions now."""
        found = await self._finder.ends([self._place(number) for number in self.readable_positions])
        return {place.partition: offset for place, offset in found.items()}

    async def parts(self) -> AsyncGenerator[FetchedRecords, None]:
        """Yields records in parts of bounded size, as they are decoded; a part may be empty."""
        settings = self._settings
        answers = self.answers()
        try:
            async for answer, followed in answers:
                for part in fetched_parts(
                    answer,
                    followed.next_offset,
                    followed.end_offset,
                    decode_key=settings.decode_key,
                    decode_value=settings.decode_value,
                ):
                    followed.next_offset = part.next_offset
                    followed.pass_epoch(answer, part.last_epoch)
                    yield part
                    if self._changed.is_set():
                        break
        finally:
            await answers.aclose()

    async def answers(self) -> AsyncGenerator[tuple[log_pb2.FetchedPartition, FollowedPartition], None]:
        """Yields answers, which the caller reads from the partition's position on, and moves it. Ends at the
        ends of all partitions, if they have ends.

        Raises LogStoreError for a partition that cannot be read, and for a server that is away for longer
        than the retry policy's deadline after the session broke.
        """
        await self.open()
        loop = asyncio.get_running_loop()
        patience = Patience(self._settings.retry)
        refreshing = asyncio.ensure_future(self._refresh()) if self._wanted.until is None else None
        try:
            while self._pending():
                session = self._session(patience)
                try:
                    async for answered in session:
                        patience.succeed()
                        yield answered
                except LogStoreError as error:
                    pause_s = (
                        patience.next_pause_s(loop.time(), error.retry_delay_s) if error.retriable else None
                    )
                    if pause_s is None:
                        raise
                    if self._settings.on_broken is not None and patience.failure_count == 1:
                        self._settings.on_broken(error)
                    await asyncio.sleep(pause_s)
                finally:
                    await session.aclose()
        finally:
            if refreshing is not None:
                refreshing.cancel()

    async def _session(
        self, patience: Patience
    ) -> AsyncGenerator[tuple[log_pb2.FetchedPartition, FollowedPartition], None]:
        """One FetchStream, until all partitions are at their ends, it breaks, or it has to begin anew."""
        self._changed.clear()
        server = self._client.channel.address
        call = self._client.log.FetchStream(self._request())
        reading: asyncio.Future[object] | None = None
        changing = asyncio.ensure_future(self._changed.wait())
        try:
            # Without new records a working session may be silent for hours.
            await call.wait_for_connection()
            patience.begin(asyncio.get_running_loop().time())
            reading = asyncio.ensure_future(call.read())
            while True:
                await asyncio.wait((reading, changing), return_when=asyncio.FIRST_COMPLETED)
                if self._is_changed():
                    return
                response = reading.result()
                if not isinstance(response, log_pb2.FetchResponse):
                    raise ServerUnavailableError("the server ended the session", server=server)
                reading = asyncio.ensure_future(call.read())
                # Lets it begin: the transport receives while the records are in use.
                await asyncio.sleep(0)
                for answer in response.partitions:
                    followed = self._partitions[answer.partition]
                    if await self._is_sound(answer, followed, server):
                        yield answer, followed
                    if self._is_changed():
                        return
                if not self._pending():
                    return
        except grpc.aio.AioRpcError as error:
            raise self._client.channel.failure(error, server) from None
        finally:
            changing.cancel()
            if reading is not None:
                reading.cancel()
                # It may have failed meanwhile; asyncio complains about errors that no code looks at.
                reading.add_done_callback(lambda done: done.cancelled() or done.exception())
            call.cancel()

    def _request(self) -> log_pb2.FetchRequest:
        starts = {
            self._place(number): FetchStart(one.next_offset, one.last_epoch)
            for number, one in self._pending().items()
        }
        settings = self._settings
        return fetch_request(
            starts, 0, 1, STREAM_MAX_BYTES, PARTITION_MAX_BYTES, settings.isolation, self._topic_id
        )

    def _pending(self) -> dict[int, FollowedPartition]:
        """The partitions that are neither at their ends nor offline."""
        return {
            number: one
            for number, one in self._partitions.items()
            if number not in self._offline and not one.is_done
        }

    def _is_changed(self) -> bool:
        """Whether the session has to begin anew. Raises the failure that the refresh found."""
        if self._failure is not None:
            raise self._failure
        return self._changed.is_set()

    async def _is_sound(
        self, answer: log_pb2.FetchedPartition, followed: FollowedPartition, server: str
    ) -> bool:
        """Whether the answer of that server has records. Raises LogStoreError for one that has an error,
        unless the settings say how to go on."""
        self._require_topic_id(answer.topic_id)
        if not answer.HasField("error"):
            return True
        error = self._client.channel.failure(answer.error, server)
        reset = self._settings.auto_offset_reset
        if isinstance(error, DataDirectoryError):
            # The server's session has dropped the partition as well.
            self._leave_out_or_raise(self._place(answer.partition), error)
        elif isinstance(error, OffsetOutOfRangeError) and reset != "error":
            offsets = await self._offsets([answer.partition], reset)
            self._move(followed, offsets.get(answer.partition, followed.next_offset))
        else:
            raise error
        return False

    def _leave_out_or_raise(self, place: TopicPartition, error: DataDirectoryError) -> None:
        if self._settings.on_offline is None:
            raise error
        self._offline.add(place.partition)
        self._settings.on_offline(place, error)

    def _move(self, followed: FollowedPartition, offset: int) -> None:
        followed.next_offset, followed.last_epoch = offset, -1
        self._changed.set()

    async def _refresh(self) -> None:
        """Look for new partitions, and for another topic of the name, again and again."""
        while True:
            await asyncio.sleep(self._settings.metadata_max_age_s)
            try:
                await self._add_partitions(await self._partition_count())
            except LogStoreError as error:
                if error.retriable:
                    continue
                self._failure = error
                self._changed.set()
                return

    async def _add_partitions(self, partition_count: int) -> None:
        known = self._partitions.keys() | self._offline
        added = [number for number in range(partition_count) if number not in known]
        if self._wanted.partitions is not None or not added:
            return
        for place, offset in (await self._finder.offsets(list(map(self._place, added)), EARLIEST)).items():
            self._partitions[place.partition] = FollowedPartition(offset, None)
        self._changed.set()

    async def _partition_count(self) -> int:
        [topic] = await self._client.admin.describe_topics([self._wanted.topic])
        self._require_topic_id(topic.topic_id)
        return topic.partition_count

    def _require_topic_id(self, current_topic_id: str) -> None:
        """Raise InconsistentTopicIdError if another topic has the name. Older servers do not name the id."""
        if self._topic_id and current_topic_id and current_topic_id != self._topic_id:
            raise InconsistentTopicIdError(
                "the topic was deleted, and another one has its name; begin anew with that one",
                topic=self._wanted.topic,
                topic_id=self._topic_id,
                current_topic_id=current_topic_id,
            )
        self._topic_id = self._topic_id or current_topic_id

    async def _offsets(self, numbers: Collection[int], places: Places) -> dict[int, int]:
        """The offset of each partition at its place; partitions that cannot be read are left out."""
        found: dict[int, int] = {}
        # Positions of different kinds may be equal, as tuples.
        by_position: dict[tuple[type, Position], list[TopicPartition]] = {}
        for number in numbers:
            place = places.get(number, "earliest") if isinstance(places, Mapping) else places
            position = position_of(place)
            by_position.setdefault((type(position), position), []).append(self._place(number))
        for (_, position), partitions in by_position.items():
            for one, offset in (await self._finder.offsets(partitions, position)).items():
                found[one.partition] = offset
        return found

    def _place(self, number: int) -> TopicPartition:
        return TopicPartition(self._wanted.topic, number)


def _named_in(places: Places | None) -> list[int]:
    return list(places) if isinstance(places, Mapping) else []
