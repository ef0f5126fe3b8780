"""The partitions of the recent reads: one whose reader has left has no share."""

from __future__ import annotations

from uuid import UUID

from stratalog.base.types import TopicIdPartition
from stratalog.remote.read.active_readers import ActiveReaders

RECENT_COUNT = 1024
FIRST, SECOND = (TopicIdPartition(UUID(int=1), number) for number in range(2))


def test_a_partition_counts_until_a_thousand_other_reads() -> None:
    readers = ActiveReaders()
    assert readers.note(FIRST) == 1
    assert [readers.note(SECOND) for _ in range(RECENT_COUNT)] == [2] * (RECENT_COUNT - 1) + [1]


def test_a_partition_whose_reader_has_left_counts_no_more_and_may_come_back() -> None:
    readers = ActiveReaders()
    for _ in range(10):
        readers.note(FIRST)
        readers.note(SECOND)
    readers.leave(FIRST)
    readers.leave(FIRST)
    assert readers.note(SECOND) == 1
    assert readers.note(FIRST) == 2
    # Its reads before it left are not forgotten a second time.
    counts = [readers.note(SECOND) for _ in range(RECENT_COUNT)]
    assert counts == [2] * (RECENT_COUNT - 1) + [1]
