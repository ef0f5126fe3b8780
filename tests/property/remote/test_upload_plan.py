"""The plan of uploads: no partition starves, nothing is planned twice, objects are worth their request."""

from __future__ import annotations

import itertools
from random import Random
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.base.types import TopicIdPartition
from stratalog.remote.tier.upload_plan import (
    MAX_CLOSED_AGE_MS,
    SHARES_PER_OBJECT,
    WaitingPartition,
    WaitingTail,
    is_object_due,
    plan_object,
    tails_to_roll,
)
from tests.support.logs.sampling import examples_of

OBJECT_BYTES = 800
SHARE_BYTES = OBJECT_BYTES // SHARES_PER_OBJECT


def tip(number: int) -> TopicIdPartition:
    return TopicIdPartition(UUID(int=number // 3), number % 3)


@st.composite
def waiting_partitions(draw: st.DrawFn) -> list[WaitingPartition]:
    count = draw(st.integers(1, 30))
    return [
        WaitingPartition(
            topic_id_partition=tip(number),
            size_bytes=draw(st.integers(1, 50) | st.integers(1, 20 * OBJECT_BYTES)),
            since_ms=draw(st.integers(0, 1_000)),
            max_age_ms=draw(st.integers(1, 1_000)),
            is_pressed=draw(st.booleans()),
        )
        for number in range(count)
    ]


@settings(max_examples=examples_of(2))
@given(waiting_partitions(), st.randoms(use_true_random=False))
def test_no_partition_waits_behind_more_than_a_round_and_nothing_is_planned_twice(
    waiting: list[WaitingPartition], random: Random
) -> None:
    """Copying takes whole batches, so it takes less than a share sometimes."""
    left = {one.topic_id_partition: one for one in waiting}
    share_counts = [2 if one.is_pressed else 1 for one in waiting]
    round_count = 1 + -(-sum(share_counts) * SHARE_BYTES // OBJECT_BYTES)
    unserved = set(left)
    object_count = 0
    while left:
        shares = plan_object(left.values(), OBJECT_BYTES)
        object_count += 1
        assert len({share.topic_id_partition for share in shares}) == len(shares) > 0
        total_bytes = sum(share.size_bytes for share in shares)
        assert total_bytes == min(OBJECT_BYTES, sum(one.size_bytes for one in left.values()))
        for share in shares:
            one = left[share.topic_id_partition]
            assert 0 < share.size_bytes <= one.size_bytes
            assert share.size_bytes <= share.share_count * SHARE_BYTES
            # At least half of it, as where no batch is larger than half of a share.
            copied_bytes = random.randint(-(-share.size_bytes // 2), share.size_bytes)
            one = one._replace(
                size_bytes=one.size_bytes - copied_bytes, share_count=one.share_count + share.share_count
            )
            left[share.topic_id_partition] = one
            unserved.discard(share.topic_id_partition)
            if one.size_bytes == 0:
                del left[share.topic_id_partition]
        assert not unserved or object_count < round_count


@given(waiting_partitions())
def test_a_partition_that_needs_an_object_gets_the_one_of_its_turn(waiting: list[WaitingPartition]) -> None:
    needy = [one._replace(needs_object=True) for one in waiting]
    [share] = plan_object(needy, OBJECT_BYTES)
    first = min(waiting, key=lambda one: (not one.is_pressed, one.since_ms, one.topic_id_partition))
    assert share.topic_id_partition == first.topic_id_partition


@given(waiting_partitions())
def test_the_oldest_of_a_full_directory_comes_first(waiting: list[WaitingPartition]) -> None:
    first = min(waiting, key=lambda one: (not one.is_pressed, one.since_ms, one.topic_id_partition))
    assert plan_object(waiting, OBJECT_BYTES)[0].topic_id_partition == first.topic_id_partition


@pytest.mark.parametrize(("is_pressed", "share_counts"), [(True, [6, 2]), (False, [4, 4])])
def test_a_partition_on_a_full_directory_takes_two_shares_a_turn(
    share_counts: list[int], *, is_pressed: bool
) -> None:
    waiting = [
        WaitingPartition(tip(number), 10 * OBJECT_BYTES, 0, 1, is_pressed=is_pressed and number == 0)
        for number in range(2)
    ]
    shares = plan_object(waiting, OBJECT_BYTES)
    assert [share.share_count for share in shares] == share_counts
    assert [share.size_bytes for share in shares] == [count * SHARE_BYTES for count in share_counts]


@given(waiting_partitions(), st.integers(0, 3_000))
def test_an_object_is_sent_when_it_is_full_or_old_or_frees_a_full_disk(
    waiting: list[WaitingPartition], now_ms: int
) -> None:
    is_full = sum(one.size_bytes for one in waiting) >= OBJECT_BYTES
    is_old = any(now_ms >= one.since_ms + one.max_age_ms for one in waiting)
    is_pressed = any(one.is_pressed for one in waiting)
    assert is_object_due(waiting, OBJECT_BYTES, now_ms) == (is_full or is_old or is_pressed)


def test_closed_segments_do_not_wait_for_ever_where_age_has_no_limit() -> None:
    one = WaitingPartition(tip(0), 1, 0, 2**63 - 1)
    assert not is_object_due([one], OBJECT_BYTES, MAX_CLOSED_AGE_MS - 1)
    assert is_object_due([one], OBJECT_BYTES, MAX_CLOSED_AGE_MS)


@given(st.lists(st.integers(0, 5_000), min_size=1, max_size=50))
def test_many_quiet_partitions_are_rolled_in_few_passes_and_none_waits_too_long(
    appends_ms: list[int],
) -> None:
    """One record each, at any time in five seconds, a maximum age of one second, a pass each 50 ms."""
    max_age_ms, period_ms = 1_000, 50
    waiting: dict[TopicIdPartition, int] = {}
    coming = sorted((at_ms, tip(number)) for number, at_ms in enumerate(appends_ms))
    rolled_at_ms: list[int] = []
    for now_ms in range(0, 7_000, period_ms):
        while coming and coming[0][0] <= now_ms:
            at_ms, partition = coming.pop(0)
            waiting[partition] = at_ms
        rolled = tails_to_roll(
            [WaitingTail(partition, at_ms, max_age_ms) for partition, at_ms in waiting.items()], now_ms
        )
        if rolled:
            rolled_at_ms.append(now_ms)
        for partition in rolled:
            assert now_ms - waiting.pop(partition) <= max_age_ms + period_ms
    assert not waiting, "each was rolled, once"
    gaps_ms = [later - earlier for earlier, later in itertools.pairwise(rolled_at_ms)]
    assert all(gap_ms >= max_age_ms / 2 for gap_ms in gaps_ms)
