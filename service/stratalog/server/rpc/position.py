"""Resolves a `Position` to an offset: by offset, by timestamp, by name, or counted from the end of the log.

By timestamp the answer is the first record, in the order of offsets, whose timestamp is at or behind the
wanted one. The object store is asked for what lies below the local log start, the local log for the rest, so
one bounded look into each tier is enough, and a range that lies in both is searched once. Local segments can
be deleted between the two looks: then neither saw their range, and both look again.

The isolation level says where the log ends, in either tier: a transaction may be open below the tiered end.
That end only grows, and the tier that is asked last is asked up to an end that is no older, so no record is
passed over between the two.

A search is a row of looks, each into one tier: `Search`. So its user runs each look on the threads of that
tier: a disk that hangs keeps no thread of the object store, nor the reverse.

A reader begins at the end of the log if all records are older. That end is looked up before the search, so
a record that is appended during the search lies behind the start.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeAlias, TypeVar

from stratalog.base.errors import InvalidRequestError, OffsetOutOfRangeError
from stratalog.log.isolation import Isolation
from stratalog.segment.timestamp_offset import TimestampOffset
from stratalog.server.fetch.fetch_cursor import out_of_range
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.v1 import log_pb2

NO_OFFSET = -1
NO_TIMESTAMP = -1


class Look(NamedTuple):
    """A step of a search: a look that may wait."""

    is_tiered: bool
    """Whether it asks the object store, or else the local log."""
    run: Callable[[], object]
    """Returns what the search goes on with. Any thread may call."""


class Found(NamedTuple):
    """An offset, and the timestamp of its record if it is a record's."""

    offset: int
    timestamp_ms: int = NO_TIMESTAMP


NOT_FOUND = Found(NO_OFFSET)

_Result = TypeVar("_Result")
Search: TypeAlias = "Generator[Look, Any, _Result]"
"""Yields looks, gets their results, and returns the result of the whole."""


def at_once(search: Search[_Result]) -> _Result:
    """The result of a search whose looks run here. Raises what they raise."""
    try:
        look = next(search)
        while True:
            look = search.send(look.run())
    except StopIteration as ended:
        result: _Result = ended.value
        return result


def searches_records(position: log_pb2.Position) -> bool:
    """Whether the position is found in the records, with reads of disk and object store. Any other is known
    in memory."""
    kind = position.WhichOneof("at")
    return kind == "timestamp_ms" or (kind == "spec" and position.spec == log_pb2.OFFSET_SPEC_MAX_TIMESTAMP)


def find(partition: HostedPartition, position: log_pb2.Position, isolation: Isolation) -> Search[Found]:
    """The place of the position, `NOT_FOUND` if there is none.

    Raises InvalidRequestError without a meaning, OffsetOutOfRangeError for an offset outside the log, and
    DataDirectoryError if a failed disk had to answer.
    """
    kind = position.WhichOneof("at")
    if kind == "timestamp_ms":
        return (yield from _at_timestamp(partition, position.timestamp_ms, isolation))
    if kind == "spec":
        return (yield from _at_spec(partition, position.spec, isolation))
    if kind == "tail_count":
        if position.tail_count < 0:
            raise InvalidRequestError(
                "a tail_count is not negative; 0 is the end of the log", tail_count=position.tail_count
            )
        partition.log.availability.require_disk()
        marks = partition.watermarks()
        return Found(max(marks.end_offset(isolation) - position.tail_count, marks.log_start_offset))
    if kind == "offset":
        if not partition.log_start_offset <= position.offset <= partition.log_end_offset:
            raise out_of_range(position.offset, partition.log_start_offset, partition.log_end_offset)
        return Found(position.offset)
    raise InvalidRequestError("a position is empty; give it an offset, a time, a spec or a tail_count")


def start_of(partition: HostedPartition, position: log_pb2.Position, isolation: Isolation) -> Search[int]:
    """The offset at which a read from the position begins. The range of a given offset is not checked: the
    read does that. Raises as `find`, and OffsetOutOfRangeError if the partition has no such offset."""
    if position.WhichOneof("at") == "offset":
        return position.offset
    end_offset = partition.watermarks().end_offset(isolation)
    found = yield from find(partition, position, isolation)
    if found.offset != NO_OFFSET:
        return found.offset
    if searches_records(position):
        return end_offset
    raise OffsetOutOfRangeError(
        "the partition has no offset of this name now; choose another position",
        spec=log_pb2.OffsetSpec.Name(position.spec),
        log_start_offset=partition.log_start_offset,
        log_end_offset=partition.log_end_offset,
    )


def _at_spec(
    partition: HostedPartition, spec: log_pb2.OffsetSpec.ValueType, isolation: Isolation
) -> Search[Found]:
    find_spec = _BY_SPEC.get(spec)
    if find_spec is None and spec != log_pb2.OFFSET_SPEC_MAX_TIMESTAMP:
        raise InvalidRequestError("the offset spec is unknown, use one of OffsetSpec", spec=int(spec))
    if not partition.is_tiered or spec not in _TOLD_BY_STORE:
        partition.log.availability.require_disk()
    if find_spec is None:
        return (yield from _max_timestamp(partition, isolation))
    return find_spec(partition, isolation)


def _at_timestamp(partition: HostedPartition, timestamp_ms: int, isolation: Isolation) -> Search[Found]:
    """The first record at or above the log start whose timestamp is at least `timestamp_ms`."""
    if timestamp_ms < 0:
        raise InvalidRequestError(
            "a timestamp must not be negative, name an offset instead", timestamp_ms=timestamp_ms
        )

    def look(local_log_start_offset: int) -> Search[Found]:
        if partition.log_start_offset < local_log_start_offset:
            tiered: TimestampOffset | None = yield Look(
                True, lambda: partition.tiered_offset_for_timestamp(timestamp_ms)
            )
            if tiered is not None and tiered.offset < local_log_start_offset:
                is_seen = tiered.offset < partition.watermarks().end_offset(isolation)
                return Found(tiered.offset, tiered.timestamp_ms) if is_seen else NOT_FOUND
        local: TimestampOffset | None = yield Look(
            False, lambda: partition.log.reader.offset_for_timestamp(timestamp_ms, isolation)
        )
        return NOT_FOUND if local is None else Found(local.offset, local.timestamp_ms)

    return (yield from _in_both_tiers(partition, look))


def _max_timestamp(partition: HostedPartition, isolation: Isolation) -> Search[Found]:
    """The first record with the largest timestamp of either tier."""

    def look(local_log_start_offset: int) -> Search[Found]:
        candidates: list[Found] = []
        local: TimestampOffset | None = yield Look(
            False, lambda: partition.log.reader.max_timestamp(isolation)
        )
        if local is not None:
            candidates.append(Found(local.offset, local.timestamp_ms))
        if partition.log_start_offset < local_log_start_offset:
            tiered: TimestampOffset | None = yield Look(
                True, lambda: partition.tiered_max_timestamp(partition.watermarks().end_offset(isolation))
            )
            if tiered is not None:
                candidates.append(Found(tiered.offset, tiered.timestamp_ms))
        return max(candidates, key=lambda found: (found.timestamp_ms, -found.offset), default=NOT_FOUND)

    return (yield from _in_both_tiers(partition, look))


def _in_both_tiers(partition: HostedPartition, look: Callable[[int], Search[Found]]) -> Search[Found]:
    """The result of `look(local_log_start_offset)` while that offset does not move. It moves only when local
    segments are deleted, so a second look is rare.
    """
    while True:
        local_log_start_offset = partition.local_log_start_offset
        found = yield from look(local_log_start_offset)
        if partition.local_log_start_offset == local_log_start_offset:
            return found


_BY_SPEC: dict[int, Callable[[HostedPartition, Isolation], Found]] = {
    log_pb2.OFFSET_SPEC_EARLIEST: lambda partition, _: Found(partition.log_start_offset),
    log_pb2.OFFSET_SPEC_LATEST: lambda partition, isolation: Found(
        partition.watermarks().end_offset(isolation)
    ),
    log_pb2.OFFSET_SPEC_EARLIEST_LOCAL: lambda partition, _: Found(
        partition.watermarks().local_log_start_offset
    ),
    # The inclusive form: -1 where nothing is committed in the object store.
    log_pb2.OFFSET_SPEC_LATEST_TIERED: lambda partition, _: Found(partition.tiered_end_offset - 1),
    log_pb2.OFFSET_SPEC_EARLIEST_PENDING_UPLOAD: lambda partition, _: Found(
        partition.log.offsets.earliest_pending_upload_offset if partition.is_tiered else NO_OFFSET
    ),
    log_pb2.OFFSET_SPEC_COMPACTED_UPTO: lambda partition, _: Found(partition.compacted_upto),
}
# The object store has these offsets of a tiered topic, also when a local disk fails.
_TOLD_BY_STORE = frozenset(
    {
        log_pb2.OFFSET_SPEC_EARLIEST,
        log_pb2.OFFSET_SPEC_LATEST_TIERED,
        log_pb2.OFFSET_SPEC_COMPACTED_UPTO,
    }
)
