"""Finds the offsets of positions in partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from stratalog.base.errors import DataDirectoryError
from stratalog.base.types import TopicPartition
from stratalog.client.isolation_level import IsolationLevel, IsolationLike
from stratalog.client.messages import OffsetAnswer
from stratalog.client.position import (
    EARLIEST,
    LATEST,
    DistancePosition,
    NamedPosition,
    OffsetPosition,
    Place,
    Position,
    TimePosition,
)

OffsetQuery = tuple[TopicPartition, Place | Position]
"""A partition, and a place in it."""

OnOffline = Callable[[TopicPartition, DataDirectoryError], None]
"""Called for a partition that cannot be read, because its log is offline or its disk fails."""


class OffsetSource(Protocol):
    """The part of a client that looks offsets up."""

    async def offset_answers(
        self, queries: Iterable[OffsetQuery], *, isolation: IsolationLike
    ) -> list[OffsetAnswer]: ...


class PositionFinder(NamedTuple):
    """Finds offsets. With `on_offline` partitions that cannot be read are left out; otherwise they raise
    DataDirectoryError."""

    source: OffsetSource
    isolation: IsolationLike
    on_offline: OnOffline | None = None
    require_topic_id: Callable[[str], None] | None = None
    """Called with the id of the topic of each answer; raises for another topic than the caller's."""

    async def offsets(
        self, partitions: Sequence[TopicPartition], position: Position
    ) -> dict[TopicPartition, int]:
        """The offset of the position in each partition; its end if there is no such record. An
        `OffsetPosition` is not compared with the partitions."""
        if isinstance(position, OffsetPosition):
            return dict.fromkeys(partitions, position.offset)
        ends = await self.ends(partitions)
        if position == LATEST:
            return ends
        if isinstance(position, DistancePosition):
            starts = await self._named(list(ends), EARLIEST)
            return {one: max(start, ends[one] - position.offset_count) for one, start in starts.items()}
        answers = await self.answers(list(ends), position)
        found = {TopicPartition(answer.topic, answer.partition): answer.offset for answer in answers}
        return {one: ends[one] if offset < 0 else offset for one, offset in found.items()}

    async def answers(
        self, partitions: Sequence[TopicPartition], position: NamedPosition | TimePosition
    ) -> list[OffsetAnswer]:
        """The server's answers for a name or a time: -1 if there is no such record."""
        return await self._answers([(one, position) for one in partitions])

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset behind the last record of each partition."""
        return await self._named(partitions, LATEST)

    async def bounds(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """The log start of each partition and the end of its visible records, whatever becomes of
        transactions."""
        starts = await self._named(partitions, EARLIEST)
        ends = await self._replace(isolation=IsolationLevel.READ_UNCOMMITTED).ends(list(starts))
        return {one: (starts[one], end) for one, end in ends.items()}

    async def _named(
        self, partitions: Sequence[TopicPartition], position: NamedPosition
    ) -> dict[TopicPartition, int]:
        answers = await self.answers(partitions, position)
        return {TopicPartition(answer.topic, answer.partition): answer.offset for answer in answers}

    async def _answers(self, queries: Sequence[OffsetQuery]) -> list[OffsetAnswer]:
        """The answers of the partitions that can be read. Raises the error of a query that failed for another
        reason."""
        found: list[OffsetAnswer] = []
        for answer in await self.source.offset_answers(queries, isolation=self.isolation) if queries else ():
            error = answer.error
            if error is None:
                if self.require_topic_id is not None:
                    self.require_topic_id(answer.topic_id)
                found.append(answer)
                continue
            if self.on_offline is None or not isinstance(error, DataDirectoryError):
                raise error
            self.on_offline(TopicPartition(answer.topic, answer.partition), error)
        return found
