"""The connections to the servers that own partitions, where a store has several owners.

Most stores have one owner, and the client's connection follows that one. A refusal because of another owner
may be the sign of several. Then `Metadata` says where each partition of the topic is, and each owner gets a
connection of its own, which stays there. After another refusal, or a call without an answer, the owners are
looked up again: a partition may have got another one.

Calls that ask about many partitions go through `answers`, which divides them among the owners, and asks again
about those that were refused. Readers divide their partitions by themselves (`groups`) and ask each owner by
`answers_of`, so that no partition waits for another one's owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import NamedTuple, TypeVar

import grpc
from google.rpc.status_pb2 import Status

from stratalog.base.errors import (
    InvalidRequestError,
    LogStoreError,
    NotOwnerError,
    OverloadedError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.types import TopicPartition
from stratalog.client.channel import CALL_TIMEOUT_S, AnswerPart, ServerChannel, no_parts
from stratalog.client.errors import error_of_status
from stratalog.client.pages import pages
from stratalog.client.retry import Patience
from stratalog.v1 import log_pb2, log_pb2_grpc

_T = TypeVar("_T")


PartT = TypeVar("PartT", bound=AnswerPart)

Ask = Callable[[ServerChannel, Sequence[int]], Awaitable[Sequence[PartT]]]
"""Asks a server about the partitions with these indexes; returns the answers in the same order."""


REFUSALS = (NotOwnerError, UnknownTopicOrPartitionError)
"""Errors of a server that does not have a partition. If they are retriable, another server may have it, or
this one soon."""

_WITHOUT_EFFECT = (*REFUSALS, OverloadedError)


class OwnedPartitions(NamedTuple):
    """Partitions of a topic that one server owns, and the connection to it."""

    channel: ServerChannel
    numbers: tuple[int, ...]


class _OwnerChannel(ServerChannel):
    """A connection to one owner, which neither follows nor repeats: its user looks the owners up again.
    Belongs to one event loop."""

    follows = False

    async def call(
        self,
        call: Awaitable[_T],
        *,
        is_repeatable: bool = False,
        parts: Callable[[_T], Iterable[AnswerPart]] = no_parts,
        wait_s: float = 0.0,
    ) -> _T:
        """One attempt. Raises LogStoreError."""
        return await self.attempt(call, Patience(self._retry), parts)

    def failure(self, failed: grpc.RpcError | Status, server: str) -> LogStoreError:
        """The error as of `ServerChannel`, but an unknown topic or partition is retriable, too: another
        server knows it, and the owner follows the catalog. Its user looks the owners up before it asks
        again."""
        error = super().failure(failed, server)
        if isinstance(error, UnknownTopicOrPartitionError) and self._retry.deadline_s > 0:
            error.retriable = True
        return error

    def _follow(self, endpoint: str, server: str) -> bool:
        return self._retry.deadline_s > 0


class OwnerChannels:
    """The connections of one client to the owners of partitions. Belongs to one event loop."""

    def __init__(self, channel: ServerChannel) -> None:
        """`channel` is the client's connection, which follows."""
        self.channel = channel
        """The client's connection."""
        self._stub = log_pb2_grpc.LogServiceStub(channel.grpc)
        self._endpoints: dict[str, dict[int, str]] = {}
        """The owner of each partition by number, of topics with several owners."""
        self._owners: dict[str, ServerChannel] = {}

    def groups(self, topic: str, numbers: Collection[int]) -> list[OwnedPartitions]:
        """These partitions by owner, as of the last look; all on the client's connection if the topic has
        one owner, as far as is known. Asks nothing."""
        endpoints = self._endpoints.get(topic, {})
        by_channel: dict[ServerChannel, list[int]] = {}
        for number in numbers:
            by_channel.setdefault(self.channel_to(endpoints.get(number, "")), []).append(number)
        return [OwnedPartitions(channel, tuple(found)) for channel, found in by_channel.items()]

    def channel_of(self, partition: TopicPartition) -> ServerChannel:
        """The connection to the owner of a partition, as of the last look. Asks nothing."""
        return self.channel_to(self._endpoints.get(partition.topic, {}).get(partition.partition, ""))

    async def call_owner(
        self, partition: TopicPartition, call: Callable[[ServerChannel], Awaitable[_T]]
    ) -> _T:
        """Make a call to the owner of a partition, as far as it is known; again after refusals without
        effect, until the retry policy's deadline. Raises LogStoreError."""
        patience = Patience(self.channel.retry)
        start_s = asyncio.get_running_loop().time()
        while True:
            channel = self.channel_of(partition)
            try:
                return await channel.call(call(channel))
            except _WITHOUT_EFFECT as error:
                # The client's own connection has followed the owner as far as it could.
                if channel is self.channel:
                    raise
                await patience.bear(error, start_s)
            await self.look_up({partition.topic})

    async def look_up(self, topics: Collection[str]) -> bool:
        """Ask where the partitions of topics are; returns whether an owner has changed. Raises
        LogStoreError."""
        found = await self._ask_for_owners(topics)
        changes = [self._note(topic, endpoints) for topic, endpoints in found.items()]
        return any(changes)

    async def elsewhere(
        self, places: Collection[TopicPartition]
    ) -> dict[ServerChannel, list[TopicPartition]]:
        """Those of the partitions that other servers own than the one of the client's connection, as of now,
        by the connections to these. Raises LogStoreError."""
        by_topic = await self._ask_for_owners({place.topic for place in places})
        by_channel: dict[ServerChannel, list[TopicPartition]] = {}
        for place in places:
            endpoint = by_topic[place.topic].get(place.partition, "")
            if endpoint != self.channel.address:
                by_channel.setdefault(self.channel_to(endpoint), []).append(place)
        by_channel.pop(self.channel, None)
        return by_channel

    async def _ask_for_owners(self, topics: Collection[str]) -> dict[str, dict[int, str]]:
        """The endpoint of each partition's owner, by topic and number. Raises LogStoreError."""
        found: dict[str, dict[int, str]] = {topic: {} for topic in topics}
        request = log_pb2.MetadataRequest(topics=found)

        def call(token: str) -> Awaitable[log_pb2.MetadataResponse]:
            request.page_token = token
            return self._stub.Metadata(request, timeout=CALL_TIMEOUT_S)

        async for page in pages(self.channel, call, parts=lambda page: page.topics):
            for one in page.topics:
                if one.topic in found:
                    found[one.topic].update((part.partition, part.endpoint) for part in one.partitions)
        return found

    def _note(self, topic: str, endpoints: dict[int, str]) -> bool:
        """Note the owners of a topic; returns whether one has changed."""
        is_divided = len({endpoint for endpoint in endpoints.values() if endpoint}) > 1
        former = self._endpoints.pop(topic, {})
        if is_divided:
            self._endpoints[topic] = endpoints
        return former != self._endpoints.get(topic, {})

    async def answers(
        self, partitions: Sequence[TopicPartition], ask: Ask[PartT], *, is_repeatable: bool = True
    ) -> list[PartT]:
        """Ask the owners of the partitions, and return an answer for each, in order. Repeats the question
        about those that a server refuses because another one owns them, until the retry policy's deadline;
        if it is repeatable, also about those of an owner that does not answer. Raises LogStoreError."""
        patience = Patience(self.channel.retry)
        start_s = asyncio.get_running_loop().time()
        found: dict[int, PartT] = {}
        left = list(range(len(partitions)))
        while True:
            failure = await self._ask(partitions, left, ask, found, is_repeatable=is_repeatable)
            left = [index for index in left if index not in found]
            if failure is None:
                return [found[index] for index in range(len(partitions))]
            await patience.bear(failure, start_s)
            await self.look_up({partitions[index].topic for index in left})

    async def answers_of(
        self, channel: ServerChannel, partitions: Sequence[TopicPartition], ask: Ask[PartT]
    ) -> Sequence[PartT]:
        """Ask one owner about the partitions, once, and return an answer for each, in order. Raises
        LogStoreError: a refusal, too, if another server may have the partition, or this one soon."""
        answers = await ask(channel, range(len(partitions)))
        for answer in answers:
            refusal = _refusal(channel, answer, channel.address)
            if refusal is not None:
                raise refusal
        return answers

    async def _ask(
        self,
        partitions: Sequence[TopicPartition],
        indexes: Sequence[int],
        ask: Ask[PartT],
        found: dict[int, PartT],
        *,
        is_repeatable: bool,
    ) -> LogStoreError | None:
        """Ask all owners at once, and note the answers; returns a failure after which some are left. Raises
        LogStoreError."""
        failure: LogStoreError | None = None
        divided = self._divided(partitions, indexes)
        asked = await asyncio.gather(*(ask(*one) for one in divided), return_exceptions=True)
        for (channel, some), answers in zip(divided, asked, strict=True):
            if isinstance(answers, LogStoreError):
                may_repeat = is_repeatable or isinstance(answers, _WITHOUT_EFFECT)
                if channel is self.channel or not (may_repeat and answers.retriable):
                    raise answers
                failure = answers
                continue
            if isinstance(answers, BaseException):
                raise answers
            server = channel.address
            for index, answer in zip(some, answers, strict=True):
                refusal = _refusal(channel, answer, server)
                if refusal is None:
                    found[index] = answer
                else:
                    failure = refusal
        return failure

    def _divided(
        self, partitions: Sequence[TopicPartition], indexes: Sequence[int]
    ) -> list[tuple[ServerChannel, list[int]]]:
        by_channel: dict[ServerChannel, list[int]] = {}
        for index in indexes:
            topic, number = partitions[index]
            endpoint = self._endpoints.get(topic, {}).get(number, "")
            by_channel.setdefault(self.channel_to(endpoint), []).append(index)
        # A question about no partition is judged by a server, too.
        return list(by_channel.items()) or [(self.channel, [])]

    def channel_to(self, endpoint: str) -> ServerChannel:
        """The connection to an owner; the client's if no owner is known."""
        if endpoint and endpoint not in self._owners:
            try:
                self._owners[endpoint] = _OwnerChannel(endpoint, self.channel.retry, self.channel.credentials)
            except InvalidRequestError:
                # The owner has an address that no client can use.
                return self.channel
        return self._owners.get(endpoint, self.channel)

    async def close(self) -> None:
        """Close the connections to owners; the client's stays."""
        for channel in self._owners.values():
            await channel.close()


def _refusal(channel: ServerChannel, answer: AnswerPart, server: str) -> LogStoreError | None:
    """The refusal in an answer of that address, if it is one and retriable."""
    refusal = channel.failure(answer.error, server) if is_refusal(answer) else None
    return refusal if refusal is not None and refusal.retriable else None


def is_refusal(answer: AnswerPart) -> bool:
    """Whether the server does not have the partition of the answer."""
    return answer.HasField("error") and isinstance(error_of_status(answer.error), REFUSALS)
