"""Reads the partitions of a topic in one session that reconnects: the part that all consumers share.

A follower holds one FetchStream over all its partitions, or one for each owner where they have several: each
begins, goes on and fails by itself. Before its first session an owner says where its partitions begin. So the
partitions of an owner that is away have no positions yet, and the others are read meanwhile. When a session
breaks the follower opens another one at its positions. Nothing is skipped or repeated, because a position
moves only when its records are handed out.

The next response is received while the records of the last one are in use. A response is some mebibytes of
batches, which may decompress to any size. It stays compressed until its records are handed out, some
thousands or a few mebibytes at a time; one batch at a time is decompressed.

A task waits for the next answer, and not the caller. So a caller may be cancelled, and come back: the session
goes on meanwhile, and its answer is there for the next call. After an error the next call opens a session at
the positions, and so does a call after `close`.

A follower without an end asks for the topic now and then. It adds new partitions, from their log starts, and
raises InconsistentTopicIdError if the topic was deleted and another one has its name.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import grpc

from stratalog.base.errors import (
    DataDirectoryError,
    FencedLeaderEpochError,
    InconsistentTopicIdError,
    InvalidRequestError,
    LogStoreError,
    NotOwnerError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import TopicPartition
from stratalog.client.admin import Admin
from stratalog.client.channel import ServerChannel
from stratalog.client.consuming.consumer_settings import ConsumedRange, ConsumerSettings
from stratalog.client.consuming.fetch_decoding import (
    ReceivedPartition,
    ReceivedResponse,
    decode_fetch_response,
)
from stratalog.client.consuming.followed_partition import FollowedPartition
from stratalog.client.consuming.offset_lookup import OffsetLookup
from stratalog.client.consuming.position_finder import PositionFinder
from stratalog.client.consuming.range_lookup import RangeLookup
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.messages import FetchedRecords, FetchStart, fetch_request, fetched_parts
from stratalog.client.owner_channels import OwnedPartitions, OwnerChannels
from stratalog.client.position import (
    EARLIEST,
    OffsetPosition,
    Position,
    Positions,
    position_in,
    position_of,
)
from stratalog.client.retry import Patience
from stratalog.v1 import log_pb2

if TYPE_CHECKING:
    from stratalog.record.native.consumer_records import ConsumerRecord

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

_FETCH_STREAM = f"/{log_pb2.DESCRIPTOR.services_by_name['LogService'].full_name}/FetchStream"

STREAM_MAX_BYTES = 2 << 20
"""Limit of one response of a session. Larger ones leave a processor's cache before they are decoded."""

PARTITION_MAX_BYTES = 1 << 20
"""Limit of one partition in a response: Kafka's `max.partition.fetch.bytes`."""


class FollowedClient(Protocol):
    """The part of a client that consumers use."""

    admin: Admin
    channel: ServerChannel

    owners: OwnerChannels


class _Answered(NamedTuple):
    """An answer with news, and the partition that it belongs to."""

    answer: ReceivedPartition
    followed: FollowedPartition


class TopicFollower:
    """Reads the partitions of a topic. Belongs to one event loop. One reader at a time."""

    def __init__(self, client: FollowedClient, wanted: ConsumedRange, settings: ConsumerSettings) -> None:
        self._client = client
        self._wanted = wanted
        self._settings = settings
        lookup = OffsetLookup(client.owners)
        finder = PositionFinder(lookup, settings.isolation, self._leave_out_or_raise, self._require_topic_id)
        self._lookup = RangeLookup(wanted, settings.auto_offset_reset, finder)
        self._partitions: dict[int, FollowedPartition] = {}
        self._late_starts: dict[int, Position] = {}
        """Where the partitions begin that have no offset yet: their owner has not answered."""
        self._offline: set[int] = set()
        self._topic_id = wanted.topic_id
        self._is_open = False
        self._opening = asyncio.Lock()
        self._changed = asyncio.Event()
        """The session has to begin anew: its partitions or positions have changed, or there is a failure."""
        self._failure: LogStoreError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._answers: AsyncGenerator[_Answered, None] | None = None
        """All answers from the positions on; None before the first one, behind the last one and after an
        error."""
        self._arriving: asyncio.Task[_Answered | None] | None = None
        """Waits for the next answer; a caller that was cancelled has left it behind."""
        self._is_awaited = False
        self._decoding: tuple[_Answered, Iterator[FetchedRecords]] | None = None
        """The answer whose records are handed out."""
        self.on_positions: Callable[[], None] = lambda: None
        """Called when an owner has said where its partitions begin."""

    @property
    def topic_id(self) -> str:
        """The topic's id; empty before it was looked up."""
        return self._topic_id

    @property
    def positions(self) -> dict[int, int]:
        """The next offset of each partition. One whose owner has not answered yet has only an offset that was
        given."""
        late = {
            number: at.offset for number, at in self._late_starts.items() if isinstance(at, OffsetPosition)
        }
        offsets = late | {number: one.next_offset for number, one in self._partitions.items()}
        return dict(sorted(offsets.items()))

    @property
    def readable_positions(self) -> dict[int, int]:
        """The next offset of each partition that is not left out, without those whose owner has not answered
        yet."""
        return {
            number: one.next_offset
            for number, one in sorted(self._partitions.items())
            if number not in self._offline
        }

    @property
    def has_all_positions(self) -> bool:
        """Whether the owners of all partitions have said where these begin."""
        return self._is_open and not self._late_starts

    async def open(self) -> None:
        """Look up the topic, unless that is done. Waits for a server that is away as a session does. Raises
        LogStoreError."""
        async with self._opening:
            if not self._is_open:
                numbers = await self._patiently(partial(self._of_meant_topic, self._look_up))
                self._late_starts = {number: position_in(self._wanted.start, number) for number in numbers}
                self._is_open = True

    async def _look_up(self) -> list[int]:
        """The partitions to read. Their owners are known then."""
        numbers = await self._wanted_numbers()
        if len(numbers) > 1:
            await self._client.owners.look_up([self._wanted.topic])
        return numbers

    async def _patiently(self, look_up: Callable[[], Awaitable[_T]]) -> _T:
        """The result of the look-up, which is repeated after retriable errors until the deadline of the retry
        policy. Raises LogStoreError."""
        patience = Patience(self._settings.retry)
        while True:
            attempt_s = asyncio.get_running_loop().time()
            try:
                return await look_up()
            except LogStoreError as error:
                await patience.bear(error, attempt_s, self._settings.on_broken)

    async def _wanted_numbers(self) -> list[int]:
        """The partitions to read. Raises UnknownTopicOrPartitionError for others than those of the topic."""
        wanted = self._wanted
        partition_count = await self._partition_count()
        numbers = list(range(partition_count) if wanted.partitions is None else wanted.partitions)
        for number in [*numbers, *_named_in(wanted.start), *_named_in(wanted.until)]:
            if number >= partition_count:
                raise UnknownTopicOrPartitionError(
                    "the topic has fewer partitions; choose a lower number",
                    topic=wanted.topic,
                    partition=number,
                    partition_count=partition_count,
                )
        if isinstance(wanted.until, Mapping):
            numbers = [number for number in numbers if number in wanted.until]
        return numbers

    async def seek(self, partition: int, position: Position) -> None:
        """Go on from another position of the partition. Raises UnknownTopicOrPartitionError, and as at the
        start."""
        await self.open()
        if partition not in self._partitions and partition not in self._late_starts:
            raise UnknownTopicOrPartitionError(
                "the consumer does not read this partition", topic=self._wanted.topic, partition=partition
            )
        starts = {partition: position}
        if partition in self._late_starts:
            ranges = partial(self._lookup.ranges, starts)
            found = await self._patiently(partial(self._of_meant_topic, ranges))
            self._begin(starts, found)
            offsets = {number: one.next_offset for number, one in found.items()}
        else:
            start_offsets = partial(self._lookup.start_offsets, starts)
            offsets = await self._patiently(partial(self._of_meant_topic, start_offsets))
        for number, offset in offsets.items():
            self._move(self._partitions[number], offset)

    def step_back(self, upcoming: ConsumerRecord) -> None:
        """Set the position to a record of the last part, which was not handed out."""
        self._move(self._partitions[upcoming.partition], upcoming.offset)

    async def ends(self) -> dict[int, int]:
        """The offsets behind the last records of the partitions now."""
        ends = partial(self._lookup.ends, self.readable_positions)
        return await self._patiently(partial(self._of_meant_topic, ends))

    async def next_part(self) -> FetchedRecords | None:
        """The next records, in a part of bounded size, which may be empty; None at the ends of all
        partitions. Positions move behind a part when it is returned. Otherwise as `next_answer`."""
        while (part := self._next_decoded()) is None:
            answered = await self.next_answer()
            if answered is None:
                return None
            answer, followed = answered
            parts = fetched_parts(
                answer,
                followed.next_offset,
                followed.end_offset,
                decode_key=self._settings.decode_key,
                decode_value=self._settings.decode_value,
            )
            self._decoding = answered, parts
        return part

    def _next_decoded(self) -> FetchedRecords | None:
        """The next records of the answer at hand; None if there are none, or if the position has changed."""
        if self._decoding is None:
            return None
        (answer, followed), parts = self._decoding
        try:
            part = None if self._changed.is_set() else next(parts, None)
        except BaseException:
            # The session is behind the whole answer, and the position before what cannot be decoded.
            self._decoding = None
            self._changed.set()
            raise
        if part is None:
            self._decoding = None
        else:
            followed.next_offset = part.next_offset
            followed.pass_epoch(answer, part.last_epoch)
        return part

    async def next_answer(self) -> _Answered | None:
        """The next answer, which the caller reads from the partition's position on, and moves it. None at the
        ends of all partitions, if they have ends, and after `close`. A caller that is cancelled misses
        nothing: the next call returns the same answer.

        Raises LogStoreError for a partition that cannot be read, and for a server that is away for longer
        than the retry policy's deadline after the session broke; the next call begins at the positions.
        Raises InvalidRequestError while another caller waits, and ClientClosedError.
        """
        if self._is_awaited:
            raise InvalidRequestError(
                "another iteration waits for records of this consumer; make a consumer for each",
                topic=self._wanted.topic,
            )
        self._is_awaited = True
        try:
            while True:
                arriving = self._arriving or self._begin_arriving()
                await asyncio.wait((arriving,))
                if self._arriving is not arriving:
                    # Closed, by its reader or with the client.
                    with self._client.channel.open():
                        return None
                self._arriving = None
                answered = await self._of_meant_topic(partial(self._arrived, arriving))
                # An answer from before a change belongs to another position.
                if answered is None or not self._changed.is_set():
                    return answered
        finally:
            self._is_awaited = False

    def _begin_arriving(self) -> asyncio.Task[_Answered | None]:
        self._loop = asyncio.get_running_loop()
        if self._answers is None:
            self._answers = self._all_answers()
        self._arriving = asyncio.ensure_future(anext(self._answers, None))
        # It may fail while no caller waits; asyncio complains about errors that no code looks at.
        self._arriving.add_done_callback(lambda done: done.cancelled() or done.exception())
        return self._arriving

    async def _arrived(self, arriving: asyncio.Task[_Answered | None]) -> _Answered | None:
        """The result of the task, which is done. Raises its error. Either the error or the end is that of all
        answers."""
        answers, self._answers = self._answers, None
        answered = arriving.result()
        if answered is not None:
            self._answers = answers
        return answered

    async def close(self) -> None:
        """End the session; a caller that waits gets None. May be repeated. Another call of `next_part` opens
        a session at the positions."""
        arriving, answers = self._arriving, self._answers
        self._arriving = self._answers = self._decoding = None
        if arriving is not None:
            arriving.cancel()
            await asyncio.wait((arriving,))
        if answers is not None:
            await answers.aclose()

    def abandon(self) -> None:
        """Close soon, because no reader is left. Thread-safe."""
        if self._answers is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: asyncio.ensure_future(self.close()))

    async def _all_answers(self) -> AsyncGenerator[_Answered, None]:
        """Yields answers of one session after the other, of each owner. Ends at the ends of all
        partitions."""
        await self.open()
        self._failure = None
        patience_with: dict[ServerChannel, Patience] = {}
        refreshing = asyncio.ensure_future(self._refresh()) if self._wanted.is_endless else None
        try:
            while left := self._left():
                self._changed.clear()
                groups = self._client.owners.groups(self._wanted.topic, left)
                sources = [
                    self._answers_of(
                        one, patience_with.setdefault(one.channel, Patience(self._settings.retry))
                    )
                    for one in groups
                ]
                async with aclosing(merged(sources)) as answers:
                    async for answered in answers:
                        yield answered
                self._is_changed()
        finally:
            if refreshing is not None:
                refreshing.cancel()

    async def _answers_of(
        self, owned: OwnedPartitions, patience: Patience
    ) -> AsyncGenerator[_Answered, None]:
        """Yields the answers of one owner, in one session after the other, until its partitions are at their
        ends, or sessions have to begin anew."""
        while self._left(owned.numbers) and not self._is_changed():
            session = self._session(owned, patience)
            try:
                while (answered := await self._next_of(session)) is not None:
                    patience.succeed()
                    yield answered
            except LogStoreError as error:
                await patience.bear(error, on_first=partial(self._tell_broken, owned))
                if isinstance(error, NotOwnerError) or not owned.channel.follows:
                    await self._look_up_owners()
            finally:
                await session.aclose()

    def _tell_broken(self, owned: OwnedPartitions, error: LogStoreError) -> None:
        """Report a session that cannot begin or go on. Where the partitions have several owners, the others
        go on without a word, so a warning names those of this one."""
        if not owned.channel.follows:
            waiting = ",".join(map(str, self._left(owned.numbers)))
            if isinstance(error, ServerUnavailableError):
                error.fields = {"topic": self._wanted.topic, "partitions": waiting, **error.fields}
            logger.warning(
                "partitions %s of topic %s wait for their owner at %s, and the others are read meanwhile: %s",
                waiting,
                self._wanted.topic,
                owned.channel.address,
                error.message,
            )
        if self._settings.on_broken is not None:
            self._settings.on_broken(error)

    async def _look_up_owners(self) -> None:
        """Begin the sessions anew if a partition has another owner than before, where there are several."""
        try:
            if await self._client.owners.look_up([self._wanted.topic]):
                self._changed.set()
        except LogStoreError as error:
            # The next session fails, too, and counts.
            if not error.retriable:
                raise

    async def _next_of(self, session: AsyncGenerator[_Answered, None]) -> _Answered | None:
        """The next answer of the session; None at its end. Raises ClientClosedError."""
        with self._client.channel.open():
            return await anext(session, None)

    async def _of_meant_topic(self, call: Callable[[], Awaitable[_T]]) -> _T:
        """The result of a call about the topic. Raises InconsistentTopicIdError if the topic is unknown
        because it was deleted and another one has its name by now."""
        try:
            return await call()
        except UnknownTopicOrPartitionError as error:
            try:
                await self._partition_count()
            except InconsistentTopicIdError as reason:
                raise reason from error
            except LogStoreError:
                # The first error says more.
                pass
            raise

    async def _session(self, owned: OwnedPartitions, patience: Patience) -> AsyncGenerator[_Answered, None]:
        """One FetchStream, until the owner's partitions are at their ends, it breaks, or it has to begin
        anew."""
        channel, numbers = owned
        await self._find_late_starts(owned)
        if self._is_changed():
            return
        await self._compare_ends(numbers)
        if not self._pending(numbers):
            return
        server = channel.address
        fetch_stream = channel.grpc.unary_stream(
            _FETCH_STREAM,
            request_serializer=log_pb2.FetchRequest.SerializeToString,
            response_deserializer=decode_fetch_response,
        )
        call = fetch_stream(self._request(numbers))
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
                if not isinstance(response, ReceivedResponse):
                    raise channel.no_answer("the server ended the session early; try again", server)
                reading = asyncio.ensure_future(call.read())
                # Lets it begin: the transport receives while the records are in use.
                await asyncio.sleep(0)
                for answer in response.partitions:
                    if self._is_changed():
                        return
                    followed = self._partitions[answer.partition]
                    if await self._is_sound(answer, followed, channel, server):
                        yield _Answered(answer, followed)
                if self._is_changed() or not self._pending(numbers):
                    return
        except grpc.aio.AioRpcError as error:
            raise channel.failure(error, server) from None
        finally:
            changing.cancel()
            if reading is not None:
                reading.cancel()
                # It may have failed meanwhile; asyncio complains about errors that no code looks at.
                reading.add_done_callback(lambda done: done.cancelled() or done.exception())
            call.cancel()

    async def _find_late_starts(self, owned: OwnedPartitions) -> None:
        """Ask the owner where those of its partitions begin and end that have no offset yet. Returns without
        an answer once the session has to begin anew: an owner that hangs would hold up the others."""
        channel, numbers = owned
        starts = {number: at for number, at in self._late_starts.items() if number in numbers}
        if not starts:
            return
        # The client's connection finds the owners of partitions by itself.
        lookup = self._lookup if channel.follows else self._lookup.at(self._client.owners, channel)
        finding = asyncio.ensure_future(lookup.ranges(starts))
        changing = asyncio.ensure_future(self._changed.wait())
        try:
            await asyncio.wait((finding, changing), return_when=asyncio.FIRST_COMPLETED)
            if finding.done():
                self._begin(starts, finding.result())
        finally:
            finding.cancel()
            changing.cancel()
        if self._client.owners.groups(self._wanted.topic, numbers) != [owned]:
            # The answers came from other owners than this one.
            self._changed.set()

    def _begin(self, starts: Collection[int], found: Mapping[int, FollowedPartition]) -> None:
        """Begin with partitions whose owner has answered, unless that was done meanwhile."""
        for number in starts:
            if self._late_starts.pop(number, None) is not None and number in found:
                self._partitions[number] = found[number]
        self.on_positions()

    async def _compare_ends(self, numbers: Collection[int]) -> None:
        """Compare the ends of these partitions with the log as it is now, where its leader epoch is not
        known: another server, or a restarted one, may have lost records that were there when the ends were
        looked up."""
        if self._wanted.follows:
            return
        unknown = [number for number, one in self._pending(numbers).items() if not one.leader_epoch]
        for answer in await self._lookup.latest(unknown):
            followed = self._partitions[answer.partition]
            # Otherwise records that were read are lost. The session raises that, or goes on from elsewhere.
            if followed.next_offset <= answer.offset:
                followed.end_with(answer)

    def _request(self, numbers: Collection[int]) -> log_pb2.FetchRequest:
        starts = {
            self._place(number): FetchStart(one.next_offset, one.last_epoch, one.leader_epoch)
            for number, one in self._pending(numbers).items()
        }
        settings = self._settings
        return fetch_request(
            starts, 0, 1, STREAM_MAX_BYTES, PARTITION_MAX_BYTES, settings.isolation, self._topic_id
        )

    def _pending(self, numbers: Collection[int] | None = None) -> dict[int, FollowedPartition]:
        """Those of the partitions, or of all, that are neither at their ends nor offline."""
        return {
            number: one
            for number, one in self._partitions.items()
            if number not in self._offline and not one.is_done and (numbers is None or number in numbers)
        }

    def _left(self, numbers: Collection[int] | None = None) -> list[int]:
        """Those of the partitions, or of all, that are pending, or have no offset yet; sorted."""
        late = [number for number in self._late_starts if numbers is None or number in numbers]
        return sorted([*self._pending(numbers), *late])

    def _is_changed(self) -> bool:
        """Whether the session has to begin anew. Raises the failure that the refresh found."""
        if self._failure is not None:
            raise self._failure
        return self._changed.is_set()

    async def _is_sound(
        self,
        answer: ReceivedPartition,
        followed: FollowedPartition,
        channel: ServerChannel,
        server: str,
    ) -> bool:
        """Whether the answer of that server has records. Raises LogStoreError for one that has an error,
        unless the settings say how to go on. FencedLeaderEpochError is retriable then."""
        self._require_topic_id(answer.fields.topic_id)
        if not answer.fields.HasField("error"):
            followed.end_before_newer(answer)
            return True
        error = channel.failure(answer.fields.error, server)
        error.fields = {"topic": self._wanted.topic, "partition": answer.partition, **error.fields}
        if isinstance(error, FencedLeaderEpochError):
            followed.leader_epoch = 0
            # The next session begins after a pause: servers that disagree about the owner refuse it, too.
            error.retriable = True
            raise error
        if isinstance(error, DataDirectoryError):
            # The server's session has dropped the partition as well.
            self._leave_out_or_raise(self._place(answer.partition), error)
        elif isinstance(error, OffsetOutOfRangeError) and self._settings.auto_offset_reset != "error":
            reset = position_of(self._settings.auto_offset_reset)
            offsets = await self._lookup.offsets([answer.partition], reset)
            self._move(followed, offsets.get(answer.partition, followed.next_offset))
        else:
            raise error
        return False

    def _leave_out_or_raise(self, place: TopicPartition, error: DataDirectoryError) -> None:
        if self._settings.on_offline is None:
            raise error
        if place.partition not in self._offline:
            # The callback may raise: then the partition is not left out.
            self._settings.on_offline(place, error)
            self._offline.add(place.partition)

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
        known = self._partitions.keys() | self._offline | self._late_starts.keys()
        added = [number for number in range(partition_count) if number not in known]
        if self._wanted.partitions is not None or not added:
            return
        await self._client.owners.look_up([self._wanted.topic])
        self._late_starts |= dict.fromkeys(added, EARLIEST)
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

    def _place(self, number: int) -> TopicPartition:
        return TopicPartition(self._wanted.topic, number)


async def merged(sources: Sequence[AsyncGenerator[_T, None]]) -> AsyncGenerator[_T, None]:
    """Yields the items of all sources as they come. The source of an item goes on once the next item is asked
    for. Raises the first error, and closes all sources at the end."""
    waiting: dict[asyncio.Task[_T | None], AsyncGenerator[_T, None]] = {}

    def begin(source: AsyncGenerator[_T, None]) -> None:
        waiting[asyncio.ensure_future(anext(source, None))] = source

    try:
        for source in sources:
            begin(source)
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                source = waiting[task]
                item = task.result()
                del waiting[task]
                if item is not None:
                    yield item
                    begin(source)
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for source in sources:
            await source.aclose()


def _named_in(positions: Positions | None) -> list[int]:
    return list(positions) if isinstance(positions, Mapping) else []
