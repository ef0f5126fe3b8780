"""Asks servers for the offsets of positions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stratalog.client.channel import CALL_TIMEOUT_S, ServerChannel
from stratalog.client.consuming.position_finder import OffsetQuery
from stratalog.client.errors import refusing_misfits
from stratalog.client.isolation_level import IsolationLike
from stratalog.client.messages import OffsetAnswer, wire_isolation
from stratalog.client.owner_channels import OwnerChannels
from stratalog.client.position import position_of, wire_position
from stratalog.client.values.conversion import values_of
from stratalog.v1 import log_pb2, log_pb2_grpc

MAX_OFFSET_QUERY_COUNT = 4_000
"""Queries of one request for offsets."""


class OffsetLookup(NamedTuple):
    """Looks offsets up at the owners of partitions. Belongs to one event loop."""

    owners: OwnerChannels
    owner: ServerChannel | None = None
    """The server that is asked, alone and once. None: the owner of each partition, until the deadline of the
    client's retry policy."""

    async def offset_answers(
        self, queries: Iterable[OffsetQuery], *, isolation: IsolationLike
    ) -> list[OffsetAnswer]:
        """The answer to each query, in order. A query's failure is in its own answer (`error`). Raises
        LogStoreError: with `owner` also the refusal of a partition that another server may have."""
        level, left = wire_isolation(isolation), list(queries)
        answers: list[OffsetAnswer] = []
        while left:
            some, left = left[:MAX_OFFSET_QUERY_COUNT], left[MAX_OFFSET_QUERY_COUNT:]
            answers += await self._answers(some, level)
        return answers

    async def _answers(
        self, queries: Sequence[OffsetQuery], isolation: log_pb2.IsolationLevel.ValueType
    ) -> Sequence[OffsetAnswer]:
        places = [wire_position(position_of(place)) for _, place in queries]

        async def ask(channel: ServerChannel, indexes: Sequence[int]) -> Sequence[log_pb2.OffsetAnswer]:
            request = log_pb2.ListOffsetsRequest(isolation=isolation)
            for index in indexes:
                topic, partition = queries[index][0]
                with refusing_misfits():
                    request.queries.add(topic=topic, partition=partition, at=places[index])
            call = log_pb2_grpc.LogServiceStub(channel.grpc).ListOffsets(request, timeout=CALL_TIMEOUT_S)
            return (await channel.call(call, is_repeatable=True)).answers

        partitions = [partition for partition, _ in queries]
        if self.owner is None:
            return values_of(OffsetAnswer, await self.owners.answers(partitions, ask))
        return values_of(OffsetAnswer, await self.owners.answers_of(self.owner, partitions, ask))
