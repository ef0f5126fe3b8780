"""Producers that are put together from a chain of slices, against the states that made them."""

from __future__ import annotations

import random

import pytest

from stratalog.base.errors import StoreCorruptError
from stratalog.log.producers.producer_snapshot import ProducerSnapshot
from stratalog.log.producers.producer_state_entry import ProducerStateEntry
from stratalog.remote.metadata.shard.live_slice import Gap, LiveSlice
from stratalog.remote.objects.slice_index import SliceIndex
from stratalog.remote.read.producer_chain import MAX_STEP_COUNT, ChainedProducers, producers_at_end
from tests.support.tiered.sample_entry import sample_entry

Timestamps = dict[int, int]
"""The last offset of each producer, which stands for its state."""


def index_with(snapshot: bytes, since: int | None) -> SliceIndex:
    """The index of a slice without data."""
    return SliceIndex(
        data_bytes=0,
        positions=(),
        base_offsets=(),
        max_timestamps=(),
        producer_snapshot=snapshot,
        producers_since=since,
    )


class Chain:
    """A partition in which each record is of some producer, and slices with parts of the producers."""

    def __init__(self) -> None:
        self.slices: list[LiveSlice] = []
        self.indexes: dict[str, SliceIndex] = {}

    def add(self, end_offset: int, producers: Timestamps, since: int | None) -> None:
        base_offset = self.slices[-1].end_offset if self.slices else 0
        name = f"object {len(self.slices)}"
        entries = [
            ProducerStateEntry(one, 0, last_timestamp_ms=last)
            for one, last in sorted(producers.items())
            if since is None or last >= since
        ]
        snapshot = ProducerSnapshot(end_offset, tuple(entries))
        self.slices.append(LiveSlice(name, base_offset, end_offset, sample_entry(base_offset, end_offset)))
        self.indexes[name] = index_with(snapshot.to_bytes(), since)

    def before(self, offset: int) -> LiveSlice | None:
        return next((live for live in self.slices if live.end_offset >= offset), None)

    def at_end(self) -> ChainedProducers:
        return producers_at_end(self.slices[-1], self.before, lambda live: self.indexes[live.object_name])


def known(found: ChainedProducers) -> Timestamps:
    return {entry.producer_id: entry.last_timestamp_ms for entry in found.snapshot.entries}


@pytest.mark.parametrize("seed", range(40))
def test_a_chain_of_parts_gives_the_whole_state(seed: int) -> None:
    """References need not name the end of a slice: after a rebuild others may stand there."""
    choose = random.Random(seed)
    chain, producers = Chain(), Timestamps()
    end_offset = 0
    for number in range(30):
        base_offset = end_offset
        for _ in range(choose.randint(1, 6)):
            producers[choose.randrange(12)] = end_offset
            end_offset += 1
        is_whole = number == 0 or choose.random() < 0.15
        chain.add(end_offset, producers, None if is_whole else choose.randint(1, base_offset))
        found = chain.at_end()
        assert known(found) == producers, seed
        assert found.since is None


def test_producers_before_a_gap_or_the_log_start_are_forgotten() -> None:
    chain = Chain()
    chain.add(10, {1: 5, 2: 9}, None)
    chain.add(20, {1: 5, 2: 15}, 10)
    gap = LiveSlice.of_gap(chain.slices[0].entry.topic_id_partition, 0, 10, Gap("object_lost", 0, ()))
    whole, part = chain.slices
    for slices in ([gap, part], [part]):
        chain.slices = slices
        assert known(chain.at_end()) == {2: 15}
        assert chain.at_end().since == 10
    chain.slices = [whole, part]
    assert known(chain.at_end()) == {1: 5, 2: 15}


def test_a_chain_that_does_not_end_is_an_error_that_names_the_partition() -> None:
    chain = Chain()
    chain.add(1, {1: 0}, None)
    for offset in range(1, MAX_STEP_COUNT + 2):
        assert known(chain.at_end()) == {1: offset - 1}
        chain.add(offset + 1, {1: offset}, offset)
    with pytest.raises(StoreCorruptError) as raised:
        chain.at_end()
    assert raised.value.fields["partition"] == 0
    assert raised.value.fields["end_offset"] == MAX_STEP_COUNT + 2


def test_a_damaged_snapshot_names_its_object() -> None:
    chain = Chain()
    chain.add(1, {1: 0}, None)
    chain.add(2, {1: 1}, 1)
    chain.indexes["object 0"] = index_with(b"damaged", None)
    with pytest.raises(StoreCorruptError) as raised:
        chain.at_end()
    assert raised.value.fields["name"] == "object 0"
