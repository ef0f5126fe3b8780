"""A long opening of logs reports its progress, and a short one nothing."""

from __future__ import annotations

import logging

import pytest

from stratalog.base.types import TopicPartition
from stratalog.log.recovery.log_recovery import LoadProgress
from stratalog.server.partitions.partition_opener import MIB, OpeningProgress
from stratalog.testing.manual_clock import ManualClock

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_it_tells_now_and_then_what_is_left(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock()
    progress = OpeningProgress(clock, 3)
    with caplog.at_level(logging.INFO):
        progress.walked(A, LoadProgress("/data/t-0", 9, 900 * MIB))
        clock.advance(4_999)
        progress.walked(B, LoadProgress("/data/t-1", 5, 50 * MIB))
        assert caplog.messages == []
        clock.advance(1)
        progress.walked(A, LoadProgress("/data/t-0", 8, 800 * MIB))
        progress.finished(B)
        clock.advance(5_000)
        progress.walked(A, LoadProgress("/data/t-0", 7, 700 * MIB))
        clock.advance(5_000)
        progress.finished(A)
        clock.advance(5_000)
        progress.finished(TopicPartition("u", 0))
    assert caplog.messages == [
        "opening logs: 3 of 3 remain; of t-0 8 segments, 800 MiB; of t-1 5 segments, 50 MiB",
        "opening logs: 2 of 3 remain; of t-0 7 segments, 700 MiB",
        "opening logs: 1 of 3 remain",
    ]
