"""A long opening of logs reports which of them remain, and a short one nothing; an opening ends once."""

from __future__ import annotations

import logging

import pytest

from stratalog.base.types import TopicPartition
from stratalog.log.recovery.log_recovery import LoadProgress
from stratalog.server.partitions.opening.opening_progress import MIB, OpeningProgress
from stratalog.testing.manual_clock import ManualClock

A, B, C = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)
PLACES = {A: "/a", B: "/b"}


def test_it_tells_now_and_then_what_is_left_and_where(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    progress = OpeningProgress(clock, (A, B, C), PLACES.get)
    with caplog.at_level(logging.INFO):
        progress.walked(A, LoadProgress("/a/t-0", 9, 900 * MIB))
        clock.advance(4_999)
        progress.walked(B, LoadProgress("/b/t-1", 5, 50 * MIB))
        assert not progress.tell({})
        clock.advance(1)
        assert progress.tell({})
        assert progress.end(B)
        assert not progress.tell({})
        # It tells also without a step.
        clock.advance(5_000)
        assert progress.tell({"/a": 5.0, "/c": 5.0})
        clock.advance(5_000)
        assert progress.end(A)
        assert progress.tell({})
        assert progress.end(C)
        clock.advance(5_000)
        assert not progress.tell({})
    assert caplog.messages == [
        "opening logs: 3 of 3 remain, 1 in /a, 1 in /b, 1 in no log directory yet; of t-0 9 segments, 900"
        " MiB; of t-1 5 segments, 50 MiB",
        "opening logs: 2 of 3 remain, 1 in /a (whose disk has not answered for 5 s), 1 in no log directory"
        " yet; of t-0 9 segments, 900 MiB",
        "opening logs: 1 of 3 remain, 1 in no log directory yet",
    ]


def test_an_opening_ends_or_is_given_up() -> None:
    progress = OpeningProgress(ManualClock(), (A, B), PLACES.get)
    left: list[TopicPartition] = []
    assert progress.end(A)
    assert not progress.give_up(A, left.append)
    assert progress.give_up(B, left.append)
    assert left == [B]
    assert not progress.end(B)
    assert not progress.end(B, has_failed=True)
    assert not progress.has_failed
    assert not progress.wait(60)


def test_a_failure_ends_a_wait_once() -> None:
    clock = ManualClock()
    progress = OpeningProgress(clock, (A, B), PLACES.get)
    progress.end(A, has_failed=True)
    assert progress.has_failed
    # The failure is known by now.
    assert progress.wait(0)
    progress.end(B)
    assert not progress.wait(60)
