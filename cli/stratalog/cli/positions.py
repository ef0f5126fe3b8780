"""Positions in partitions, as options take them: one notation, and one way to find the offsets.

| text | position |
|---|---|
| `earliest`, `latest`, another name of `SPECS` | the offset with this name |
| `105823` | this offset |
| `-10` | ten offsets before the end of each partition |
| `2013-01-01T05:00:00Z` | the first record with this time or a later one; UTC without a zone |
| `@1357016400000` | the same, in milliseconds since 1970 |
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import click

from stratalog.base.errors import OffsetOutOfRangeError
from stratalog.base.types import TopicPartition
from stratalog.cli.int_ranges import COUNT, OFFSET, TIMESTAMP_MS
from stratalog.cli.left_out import LeftOut
from stratalog.client.client import Client
from stratalog.client.isolation_level import IsolationLevel
from stratalog.v1 import log_pb2

SPECS = {
    "earliest": log_pb2.OFFSET_SPEC_EARLIEST,
    "latest": log_pb2.OFFSET_SPEC_LATEST,
    "earliest-local": log_pb2.OFFSET_SPEC_EARLIEST_LOCAL,
    "latest-tiered": log_pb2.OFFSET_SPEC_LATEST_TIERED,
    "earliest-pending-upload": log_pb2.OFFSET_SPEC_EARLIEST_PENDING_UPLOAD,
    "compacted-upto": log_pb2.OFFSET_SPEC_COMPACTED_UPTO,
    "max-timestamp": log_pb2.OFFSET_SPEC_MAX_TIMESTAMP,
}
POSITION_HELP = (
    "earliest, latest, an offset, -N for N offsets before the end of each partition, a time in ISO 8601"
    " such as 2013-01-01T05:00:00Z (UTC without a zone), or @MILLIS since 1970."
)

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class NamedPosition(NamedTuple):
    """The offset that has a name."""

    spec: log_pb2.OffsetSpec.ValueType


class OffsetPosition(NamedTuple):
    """An offset, the same in each partition."""

    offset: int


class DistancePosition(NamedTuple):
    """So many offsets before the end of each partition."""

    offset_count: int


class TimePosition(NamedTuple):
    """The first record with this time, or a later one."""

    timestamp_ms: int


Position = NamedPosition | OffsetPosition | DistancePosition | TimePosition


def parse_position(context: click.Context, parameter: click.Parameter, text: str | None) -> Position | None:
    """Parse the notation, as the callback of an option. Raises click.BadParameter."""
    if text is None:
        return None
    if text in SPECS:
        return NamedPosition(SPECS[text])
    if text.startswith("@"):
        return TimePosition(int(TIMESTAMP_MS(text.removeprefix("@"), parameter, context)))
    if text.isdecimal():
        return OffsetPosition(int(OFFSET(text, parameter, context)))
    if text.startswith("-") and text[1:].isdecimal():
        return DistancePosition(int(COUNT(text[1:], parameter, context)))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no position; use {POSITION_HELP}") from None
    # A time without a zone means UTC, on every machine.
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    # Records have whole milliseconds: of those not before that time this is the first.
    return TimePosition(-((_EPOCH - moment) // timedelta(milliseconds=1)))


def parse_time_or_name(
    context: click.Context, parameter: click.Parameter, text: str | None
) -> Position | None:
    """Parse the notation where an offset has no meaning: a number is a time in milliseconds."""
    return parse_position(context, parameter, f"@{text}" if text is not None and text.isdecimal() else text)


class PositionFinder(NamedTuple):
    """Finds the offsets of positions in partitions. Leaves out partitions that cannot be read."""

    client: Client
    isolation: IsolationLevel
    left_out: LeftOut

    async def offsets(
        self, partitions: Sequence[TopicPartition], position: Position
    ) -> dict[TopicPartition, int]:
        """The offset of the position in each partition; its end if there is no such record. An
        `OffsetPosition` is not compared with the partitions."""
        if isinstance(position, OffsetPosition):
            return dict.fromkeys(partitions, position.offset)
        ends = await self.ends(partitions)
        if isinstance(position, DistancePosition):
            starts = await self.left_out.offsets(self.client, list(ends), log_pb2.OFFSET_SPEC_EARLIEST)
            return {one: max(start, ends[one] - position.offset_count) for one, start in starts.items()}
        answers = await self.answers(list(ends), position)
        found = {TopicPartition(answer.topic, answer.partition): answer.offset for answer in answers}
        return {one: ends[one] if offset < 0 else offset for one, offset in found.items()}

    async def answers(
        self, partitions: Sequence[TopicPartition], position: NamedPosition | TimePosition
    ) -> list[log_pb2.OffsetAnswer]:
        """The server's answers for a name or a time: -1 if there is no such record."""
        if isinstance(position, NamedPosition):
            queries = [(one, position.spec, None) for one in partitions]
            return await self.left_out.answers(self.client, queries, self.isolation)
        by_time = [(one, None, position.timestamp_ms) for one in partitions]
        return await self.left_out.answers(self.client, by_time, self.isolation)

    async def ends(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """The offset behind the last record of each partition."""
        return await self.left_out.offsets(
            self.client, partitions, log_pb2.OFFSET_SPEC_LATEST, self.isolation
        )

    async def require_inside(self, partitions: Sequence[TopicPartition], offset: int) -> list[TopicPartition]:
        """The partitions that can be read. Raises OffsetOutOfRangeError for an offset behind the end of one,
        which would look like a partition without records."""
        earliest = await self.left_out.offsets(self.client, partitions, log_pb2.OFFSET_SPEC_EARLIEST)
        latest = await self.left_out.offsets(self.client, list(earliest), log_pb2.OFFSET_SPEC_LATEST)
        for partition in latest:
            if not earliest[partition] <= offset <= latest[partition]:
                raise OffsetOutOfRangeError(
                    "the offset lies outside the partition, choose another one or a --partition that has it",
                    partition=partition,
                    offset=offset,
                    log_start_offset=earliest[partition],
                    log_end_offset=latest[partition],
                )
        return list(latest)
