"""The plan of uploads: which partitions go into the next object, and how much of each.

Partitions take turns. A turn is one share of an object: as much as waits, but no more than the share. The
partition with the fewest turns comes first; of these the one whose log directory is short of free space, then
the one that has waited longest. So an object has the oldest records of many partitions, and a partition with
a large backlog delays each other one by a share. A partition on a full directory takes two shares a turn.

With `n` partitions, each has a share in one of the first `1 + n * 2 * share_bytes / object_bytes` objects,
rounded up, plus one for each partition whose next batch fits into no object beside others.

All functions are pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from stratalog.base.types import TopicIdPartition

SHARES_PER_OBJECT = 8
"""A partition with a large backlog takes this part of an object in a turn, if others wait."""
MAX_CLOSED_AGE_MS = 5 * 60 * 1000
"""Records in closed segments wait no longer than this for others to fill an object."""


class WaitingPartition(NamedTuple):
    """A partition with records in closed segments that are not in the object store."""

    topic_id_partition: TopicIdPartition
    size_bytes: int
    since_ms: int
    """Wall time since which the oldest of them wait."""
    max_age_ms: int
    """They wait no longer than this for others to fill an object."""
    share_count: int = 0
    """Shares that the partition has had in this pass."""
    is_pressed: bool = False
    """Its log directory is short of free space, see `pressed_directories`."""
    needs_object: bool = False
    """Its next batch did not fit beside the shares of others."""


class Share(NamedTuple):
    """The part of an object that one partition may fill."""

    topic_id_partition: TopicIdPartition
    size_bytes: int
    share_count: int
    """Shares in it."""


class WaitingTail(NamedTuple):
    """A partition with records in its active segment."""

    topic_id_partition: TopicIdPartition
    since_ms: int
    """Wall time since which the oldest of them wait."""
    max_age_ms: int


def plan_object(waiting: Iterable[WaitingPartition], object_bytes: int) -> Sequence[Share]:
    """The shares of the next object, in the order of the turns; none if nothing waits."""
    share_bytes = max(1, object_bytes // SHARES_PER_OBJECT)
    queue = [(_turn(one, one.share_count), one, one.size_bytes, one.share_count) for one in waiting]
    heapq.heapify(queue)
    room_bytes = object_bytes
    shares: dict[TopicIdPartition, Share] = {}
    while queue and room_bytes > 0:
        _, one, left_bytes, count = heapq.heappop(queue)
        tip = one.topic_id_partition
        if one.needs_object:
            # It comes first in the next object, which nothing else is in.
            return list(shares.values()) or [Share(tip, min(left_bytes, object_bytes), 1)]
        size_bytes = min(left_bytes, share_bytes, room_bytes)
        room_bytes -= size_bytes
        before = shares.get(tip, Share(tip, 0, 0))
        shares[tip] = Share(tip, before.size_bytes + size_bytes, before.share_count + 1)
        if left_bytes > size_bytes:
            heapq.heappush(queue, (_turn(one, count + 1), one, left_bytes - size_bytes, count + 1))
    return list(shares.values())


def _turn(one: WaitingPartition, share_count: int) -> tuple[int, bool, int, TopicIdPartition]:
    turn = share_count // 2 if one.is_pressed else share_count
    return turn, not one.is_pressed, one.since_ms, one.topic_id_partition


def is_object_due(waiting: Sequence[WaitingPartition], object_bytes: int, now_ms: int) -> bool:
    """Whether an object is worth its request now: it would be full, its oldest records have waited long
    enough, or a log directory is short of free space."""
    return sum(one.size_bytes for one in waiting) >= object_bytes or any(
        one.is_pressed or now_ms - one.since_ms >= min(one.max_age_ms, MAX_CLOSED_AGE_MS) for one in waiting
    )


def tails_to_roll(tails: Sequence[WaitingTail], now_ms: int) -> Sequence[TopicIdPartition]:
    """The partitions whose active segments are rolled now. None before the oldest records of one of them have
    waited for its maximum age; then all that have waited for half of theirs, so that many quiet partitions
    share an object, and none is rolled more often than twice in its maximum age."""
    if not any(now_ms - tail.since_ms >= tail.max_age_ms for tail in tails):
        return ()
    return [tail.topic_id_partition for tail in tails if 2 * (now_ms - tail.since_ms) >= tail.max_age_ms]


def pressed_directories(
    waiting_bytes: Mapping[str, int], free_bytes: Mapping[str, int], least_bytes: int
) -> frozenset[str]:
    """The log directories that have less free space than the data that waits for its upload, or than
    `least_bytes`."""
    return frozenset(
        path for path, size in waiting_bytes.items() if free_bytes[path] < max(size, least_bytes)
    )
