"""Statistics of keys are those of a dictionary, however small the bounds of tasks are, in random lives of
shards: with tombstones, plain topics, trims, compactions, transactions and versions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.pipeline.jobs.count_unit import CountBounds
from stratalog.pipeline.jobs.key_statistics import PartitionStatistics, key_statistics
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.inline_cluster import InlineCluster, InlinePlace
from tests.support.compaction.transactional_history import TransactionalHistory
from tests.support.compaction.versions import STRATEGIES, random_versions, winners
from tests.support.logs.sampling import examples_of
from tests.support.tiered.compaction_history import CompactionHistory
from tests.support.tiered.tiered_store import TieredStore

STEPS = 10


def found_in(
    tiered: TieredStore, clock: ManualClock, seed: int
) -> dict[tuple[str, int], PartitionStatistics]:
    """The statistics of all partitions, counted within random bounds."""
    random = Random(seed)
    place = InlinePlace(MemoryFileSystem(), clock, SequentialIds(5), tiered.store)
    bounds = CountBounds(random.choice((1, 3, 20, 1 << 19)), random.choice((1, 5 << 20, 1 << 30)))
    found = key_statistics(InlineCluster(random), place, (), reads_keys=True, bounds=bounds)
    return {(one.topic, one.partition): one for one in found}


def require_counted(
    one: PartitionStatistics, tiered: TieredStore, tip: TopicIdPartition, kept: Iterable[int], key_count: int
) -> None:
    """Hold the statistics of a partition against the offsets of the records that stay."""
    offsets = sorted(kept)
    assert one.key_count == key_count
    assert one.kept_record_count == len(offsets) == one.key_count + one.keyless_count
    kept_bytes = 0
    for live in tiered.partition(tip).slices:
        count = sum(live.base_offset <= offset < live.end_offset for offset in offsets)
        if live.entry.record_count:
            kept_bytes += live.entry.data_bytes * count // live.entry.record_count
    assert one.kept_bytes == kept_bytes
    assert one.keys_counted


def last_of_each_key(records: Iterable[Record]) -> Mapping[bytes | None, int]:
    return {record.key: record.offset for record in records if record.key is not None}


@settings(max_examples=examples_of(8))
@given(st.integers(0, 2**32))
def test_a_random_life_with_tombstones_and_plain_topics(seed: int) -> None:
    history = CompactionHistory(seed)
    for _ in range(STEPS):
        history.step()
    found = found_in(history.tiered, history.clock, seed)
    for tip in history.oracles:
        records = history.tiered.records(tip)
        one = found.get((history.tiered.topic(tip).name, tip.partition))
        if one is None:
            assert not records
            continue
        last = last_of_each_key(records)
        keyless = [record.offset for record in records if record.key is None]
        assert one.keyless_count == len(keyless)
        require_counted(one, history.tiered, tip, [*last.values(), *keyless], len(last))


@settings(max_examples=examples_of(8))
@given(st.integers(0, 2**32))
def test_a_random_life_with_transactions(seed: int) -> None:
    history = TransactionalHistory(seed)
    for _ in range(STEPS):
        history.step()
    found = found_in(history.tiered, history.clock, seed)
    for tip, written in history.written.items():
        # Compaction has dropped tombstones by now.
        left = (record for record in history.tiered.records(tip) if written.is_committed(record.offset))
        newest = last_of_each_key(record for record in left if record.offset in written.records)
        one = found.get(("t", tip.partition))
        if one is None:
            assert not newest
            continue
        require_counted(one, history.tiered, tip, newest.values(), len(newest))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("seed", range(2))
def test_the_highest_version_of_a_key_stays(strategy: str, seed: int) -> None:
    random = Random(f"{strategy} {seed}")
    clock = ManualClock()
    tiered = TieredStore(MemoryFileSystem(), MemoryObjectStore(clock), clock, SequentialIds(seed))
    config = {
        "cleanup.policy": "compact",
        "compaction.strategy": strategy,
        "compaction.strategy.header": "version",
    }
    tip = TopicIdPartition(tiered.catalog.create("t", 1, config).topic_id, 0)
    records: list[Record] = []
    for upload in range(12):
        new = [
            Record(
                len(records) + number,
                random.randrange(1, 1_000),
                b"key-%d" % random.randrange(30),
                b"value",
                random_versions(random),
            )
            for number in range(10)
        ]
        batch = encode_batch(new, base_offset=len(records), leader_epoch=1)
        records += new
        tiered.upload({tip: [batch]}, with_key_streams=upload % 4 != 3)
    kept = winners(records, strategy)
    found = found_in(tiered, clock, seed)
    require_counted(found["t", 0], tiered, tip, [record.offset for record in kept], len(kept))
    assert Counter(record.key for record in kept).most_common(1)[0][1] == 1
