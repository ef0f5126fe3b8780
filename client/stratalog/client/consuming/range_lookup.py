"""Finds where a reader of partitions begins and ends.

Ends are looked up before starts: a log that grows meanwhile does not end before it begins. Both are those of
the moment when the owner of a partition answers. So partitions of several owners may be looked up one after
the other, each when its owner can be asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Self

from stratalog.base.errors import OffsetOutOfRangeError
from stratalog.base.types import TopicPartition
from stratalog.client.channel import ServerChannel
from stratalog.client.consuming.consumer_settings import ConsumedRange, OffsetReset
from stratalog.client.consuming.followed_partition import FollowedPartition
from stratalog.client.consuming.offset_lookup import OffsetLookup
from stratalog.client.consuming.position_finder import PositionFinder
from stratalog.client.messages import OffsetAnswer
from stratalog.client.owner_channels import OwnerChannels
from stratalog.client.position import (
    LATEST,
    OffsetPosition,
    Position,
    Positions,
    position_in,
    position_of,
)


class RangeLookup(NamedTuple):
    """Looks up starts and ends in the partitions of a topic; those that cannot be read are left out, or raise
    DataDirectoryError, as the finder says. Raises LogStoreError. Belongs to one event loop."""

    wanted: ConsumedRange
    reset: OffsetReset
    finder: PositionFinder

    def at(self, owners: OwnerChannels, owner: ServerChannel) -> Self:
        """The look-up that asks this server alone, and once."""
        return self._replace(finder=self.finder._replace(source=OffsetLookup(owners, owner)))

    async def ranges(self, starts: Mapping[int, Position]) -> dict[int, FollowedPartition]:
        """The partitions at these positions, with their ends if the range has one. A partition that is left
        out keeps an offset that was given, for a later consumer."""
        wanted = self.wanted
        latest = [] if wanted.follows else await self.latest(starts)
        ends = {} if wanted.until is None else await self.offsets(starts, wanted.until)
        found = {
            number: FollowedPartition(offset, ends.get(number))
            for number, offset in (await self.start_offsets(starts)).items()
        }
        for answer in latest:
            if answer.partition in found:
                found[answer.partition].end_with(answer)
        return found

    async def start_offsets(self, starts: Mapping[int, Position]) -> dict[int, int]:
        """Where each partition begins. A given offset lies inside of the log, or at its end: the server would
        not say so before all partitions are read, nor for a partition without a record to read. Raises
        OffsetOutOfRangeError, unless the settings say how to go on."""
        found = await self.offsets(starts, starts)
        given = [self._place(one) for one in found if isinstance(starts[one], OffsetPosition)]
        outside: list[int] = []
        for (topic, number), (log_start_offset, log_end_offset) in (await self.finder.bounds(given)).items():
            if log_start_offset <= found[number] <= log_end_offset:
                continue
            if self.reset == "error":
                raise OffsetOutOfRangeError(
                    "the partition does not have this offset; begin inside of its log, or at its end",
                    topic=topic,
                    partition=number,
                    offset=found[number],
                    log_start_offset=log_start_offset,
                    log_end_offset=log_end_offset,
                )
            outside.append(number)
        return found | await self.offsets(outside, position_of(self.reset)) if outside else found

    async def latest(self, numbers: Collection[int]) -> list[OffsetAnswer]:
        """The present end of each partition, with the leader epoch."""
        return await self.finder.answers(list(map(self._place, numbers)), LATEST)

    async def ends(self, numbers: Collection[int]) -> dict[int, int]:
        """The offset behind the last record of each partition now."""
        found = await self.finder.ends(list(map(self._place, numbers)))
        return {place.partition: offset for place, offset in found.items()}

    async def offsets(self, numbers: Collection[int], positions: Positions) -> dict[int, int]:
        """The offset of each partition at its position."""
        found: dict[int, int] = {}
        by_position: dict[Position, list[TopicPartition]] = {}
        for number in numbers:
            by_position.setdefault(position_in(positions, number), []).append(self._place(number))
        for position, partitions in by_position.items():
            for one, offset in (await self.finder.offsets(partitions, position)).items():
                found[one.partition] = offset
        return found

    def _place(self, number: int) -> TopicPartition:
        return TopicPartition(self.wanted.topic, number)
