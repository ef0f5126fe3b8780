"""Appends wait for each other where many come, and never where one producer waits for its answers."""

from __future__ import annotations

from stratalog.server.append.group_pace import ENOUGH_BYTES, MOST_APPENDS, GroupPace

SMALL_BYTES = 100


def group(pace: GroupPace, comes_count: int) -> bool:
    """Let so many appends come, one after the other. Whether they began a turn."""
    for count in range(1, comes_count + 1):
        if not pace.must_wait(count, count * SMALL_BYTES):
            return True
    pace.note_lost_wait(comes_count)
    return False


def busy(pace: GroupPace, count: int = 100) -> None:
    """Let so many appends find the writer at work."""
    for _ in range(count):
        pace.note_busy()


def test_a_producer_that_waits_for_its_answers_never_waits_for_others() -> None:
    pace = GroupPace()
    assert all(group(pace, 1) for _ in range(1000))


def test_a_producer_in_company_now_and_then_waits_for_no_one() -> None:
    pace = GroupPace()
    for _ in range(100):
        pace.note_busy()
        assert all(group(pace, 1) for _ in range(3))


def test_groups_grow_while_they_come_together() -> None:
    pace = GroupPace()
    busy(pace)
    assert pace.must_wait(1, SMALL_BYTES)
    for _ in range(1000):
        group(pace, MOST_APPENDS)
    assert pace.wanted_count == MOST_APPENDS


def test_two_producers_wait_for_each_other_and_rarely_for_a_third() -> None:
    pace = GroupPace()
    busy(pace)
    lost_count = sum(not group(pace, 2) for _ in range(1000))
    assert 1 <= lost_count <= 7, "each lost wait doubles the groups until the next one"
    assert pace.wanted_count == 2


def test_a_lost_wait_of_one_ends_all_waits_until_there_is_new_evidence() -> None:
    pace = GroupPace()
    busy(pace)
    assert not group(pace, 1)
    assert all(group(pace, 1) for _ in range(100))
    busy(pace)
    assert pace.must_wait(1, SMALL_BYTES)


def test_large_requests_do_not_wait() -> None:
    pace = GroupPace()
    busy(pace)
    assert not pace.must_wait(1, ENOUGH_BYTES)
