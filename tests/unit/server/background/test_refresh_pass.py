"""A look at the heads: it wakes the readers of a followed shard, and follows the catalog in any case."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from stratalog.base.disk_calls import DIRECT_DISK_CALLS
from stratalog.base.errors import StoreNotUsableError
from stratalog.base.scheduler import run_here
from stratalog.server.background.pass_rounds import PassRounds, hanging_shard
from stratalog.server.background.tier_manager import TierManager, TierWaits
from stratalog.testing.manual_clock import ManualClock


class Shard:
    """A shard that this server follows, or that is another server's."""

    is_followed = True

    def __init__(self, number: int) -> None:
        self.metadata = self
        self.shard = number
        self.seq = 1
        self.next_seq = 1
        self.failure: StoreNotUsableError | None = None

    def state(self) -> SimpleNamespace:
        return SimpleNamespace(seq=self.seq)

    def refresh(self) -> None:
        if self.failure is not None:
            raise self.failure
        self.seq = self.next_seq


class Bench:
    """A manager of one followed shard with one partition, and of a shard of another server."""

    def __init__(self) -> None:
        self.shard, self.foreign = Shard(0), Shard(1)
        self.wake_count = self.follow_count = 0
        partition = SimpleNamespace(shard=self.shard, signal=SimpleNamespace(notify=self.wake))
        self.manager = TierManager(
            ManualClock(),
            cast(Any, None),
            cast(Any, [SimpleNamespace(shard=self.shard)]),
            cast(Any, SimpleNamespace(partitions=lambda: [partition])),
            cast(Any, SimpleNamespace(follow_catalog=self.follow)),
            TierWaits(PassRounds(ManualClock(), run_here, hanging_shard), DIRECT_DISK_CALLS),
            cast(Any, [self.foreign]),
        )

    def wake(self) -> None:
        self.wake_count += 1

    def follow(self) -> None:
        self.follow_count += 1


def test_readers_wake_for_news_that_another_one_has_found() -> None:
    bench = Bench()
    bench.manager.refresh_pass()
    assert bench.wake_count == 0
    bench.shard.next_seq = 2
    # A reader that missed an object.
    bench.shard.refresh()
    bench.manager.refresh_pass()
    assert bench.wake_count == 1
    bench.manager.refresh_pass()
    assert bench.wake_count == 1, "nothing is new"


def test_an_unreadable_head_of_another_server_does_not_hold_up_the_catalog() -> None:
    bench = Bench()
    bench.foreign.failure = StoreNotUsableError("newer software has written the head")
    bench.shard.next_seq = 2
    assert bench.manager.refresh_pass().failed_shards == {1: bench.foreign.failure}
    assert (bench.wake_count, bench.follow_count) == (1, 1)
    bench.shard.failure = bench.foreign.failure
    with pytest.raises(StoreNotUsableError):
        bench.manager.refresh_pass()
    assert bench.follow_count == 1, "the own heads come first"
