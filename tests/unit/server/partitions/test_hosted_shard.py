"""A shard that looks at its head: who claimed it, and for how long that was unknown."""

from __future__ import annotations

from random import Random

import pytest

from stratalog.base.errors import NotOwnerError, StoreUnavailableError
from stratalog.remote.metadata.ownership.ownership import ClaimedShard
from stratalog.server.partitions.hosted_shard import HostedShard
from stratalog.server.partitions.shard_set import ShardSet
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault, Operation
from tests.support.tiered.metadata_harness import MetadataHarness

MAX_SILENCE_MS = 60_000


class Bench:
    """A claimed shard whose store a test switches off, or makes slow."""

    def __init__(self, max_silence_ms: int = MAX_SILENCE_MS) -> None:
        self.harness = MetadataHarness()
        self.clock = self.harness.clock
        self.is_away = False
        self.answer_ms = 0
        self.fenced_count = 0
        store = FaultyObjectStore(self.harness.store, Random(1), self._plan)
        metadata = self.harness.log(store=store)
        epoch = metadata.claim("owner-1", self.harness.ids.uuid())
        self.shard = HostedShard(
            self.clock, metadata, ClaimedShard(epoch, 0), self._count_fenced, max_silence_ms
        )

    def _plan(self, operation: Operation) -> Fault:
        self.clock.advance(self.answer_ms)
        return Fault.FAILS if self.is_away else Fault.NONE

    def _count_fenced(self) -> None:
        self.fenced_count += 1

    def look_in_vain(self) -> None:
        with pytest.raises(StoreUnavailableError):
            self.shard.refresh()

    def ensure_silent(self) -> StoreUnavailableError:
        with pytest.raises(StoreUnavailableError) as caught:
            self.shard.contact.ensure_heard()
        assert caught.value.retriable
        return caught.value


def test_a_silence_counts_from_the_claim_and_ends_with_an_answer() -> None:
    bench = Bench()
    bench.clock.advance(MAX_SILENCE_MS)
    bench.shard.contact.ensure_heard()
    bench.clock.advance(1)
    assert bench.ensure_silent().fields["silence_ms"] == MAX_SILENCE_MS + 1
    bench.shard.refresh()
    bench.clock.advance(MAX_SILENCE_MS)
    bench.shard.contact.ensure_heard()


def test_looks_in_vain_do_not_count_and_other_work_goes_on() -> None:
    bench = Bench()
    bench.is_away = True
    for _ in range(7):
        bench.clock.advance(10_000)
        bench.look_in_vain()
    assert "has not answered for 70 s" in str(bench.ensure_silent())
    assert bench.shard.leader_epoch() == bench.shard.claimed.epoch
    assert not bench.shard.is_fenced
    bench.is_away = False
    bench.shard.refresh()
    bench.shard.contact.ensure_heard()


def test_an_answer_is_as_old_as_its_question() -> None:
    bench = Bench()
    bench.answer_ms = MAX_SILENCE_MS + 1
    bench.shard.refresh()
    bench.ensure_silent()


def test_a_jump_of_the_wall_clock_is_no_silence() -> None:
    bench = Bench()
    bench.clock.set_wall_ms(bench.clock.now_ms() + 10 * MAX_SILENCE_MS)
    bench.shard.contact.ensure_heard()


def test_zero_is_no_bound() -> None:
    bench = Bench(max_silence_ms=0)
    bench.clock.advance(1_000 * MAX_SILENCE_MS)
    bench.shard.contact.ensure_heard()


def test_another_claim_is_noticed_once_and_for_good() -> None:
    bench = Bench()
    shards = ShardSet([bench.shard])
    shards.confirm_owned()
    bench.harness.log("other").claim("owner-2", bench.harness.ids.uuid())
    assert bench.shard.leader_epoch() == bench.shard.claimed.epoch, "no look at the head yet"
    for _ in range(2):
        with pytest.raises(NotOwnerError):
            shards.confirm_owned()
    assert shards.is_replaced
    assert bench.fenced_count == 1


def test_the_first_of_other_claims_is_the_takeover() -> None:
    bench = Bench()
    for number in (2, 3):
        bench.harness.log("other").claim(f"owner-{number}", bench.harness.ids.uuid())
    before = bench.shard.takeover
    assert before is None, "no look at the head yet"
    bench.shard.refresh()
    [_, expected, _] = bench.shard.metadata.state().claims
    assert bench.shard.takeover == expected
    assert expected.owner == "owner-2"


def test_ownership_cannot_be_confirmed_without_the_store() -> None:
    bench = Bench()
    bench.is_away = True
    with pytest.raises(StoreUnavailableError):
        ShardSet([bench.shard]).confirm_owned()
    assert not bench.shard.is_fenced
