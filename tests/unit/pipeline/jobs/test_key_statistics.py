"""Statistics of keys are those of the records, and a compaction leaves as many records as they say. Those of
topics that are not compacted are counted where that was asked for, or costs no read of data."""

from __future__ import annotations

from random import Random

import pytest

from stratalog.base.errors import UnknownTopicOrPartitionError
from stratalog.pipeline.jobs.key_statistics import key_statistics
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.inline_cluster import InlineCluster, InlinePlace
from tests.support.spark.plain_store import PlainStore
from tests.support.tiered.compaction_history import CompactionHistory


@pytest.mark.parametrize("seed", range(4))
def test_keys_and_what_a_compaction_leaves(seed: int) -> None:
    history = CompactionHistory(seed)
    for _ in range(8):
        history.upload()
    place = InlinePlace(MemoryFileSystem(), history.clock, SequentialIds(5), history.store)
    cluster = InlineCluster(Random(seed))
    found = {(one.topic, one.partition): one for one in key_statistics(cluster, place, ())}
    kept: dict[tuple[str, int], int] = {}
    for tip, oracle in history.oracles.items():
        records = history.tiered.records(tip)
        if not records:
            continue
        name = history.tiered.topic(tip).name
        one = found[name, tip.partition]
        assert one.record_count == len(records)
        assert one.tombstone_count == sum(record.value is None for record in records)
        assert one.compacted == oracle.is_compacted
        if oracle.is_compacted:
            keys = {record.key for record in records if record.key is not None}
            keyless_count = sum(record.key is None for record in records)
            assert (one.key_count, one.keyless_count) == (len(keys), keyless_count)
            kept[name, tip.partition] = one.kept_record_count
            assert 0 < one.kept_bytes <= one.size_bytes == one.dirty_bytes
        else:
            assert (one.keys_counted, one.unread_bytes, one.key_count) == (False, one.size_bytes, 0)
    with pytest.raises(UnknownTopicOrPartitionError):
        key_statistics(cluster, place, ["others"])
    history.clock.advance(10_000)
    history.bounds = {"max_inputs_per_job": 64, "max_job_bytes": 1 << 30}
    history.settle()
    for tip in history.oracles:
        place_of = history.tiered.topic(tip).name, tip.partition
        if place_of in kept and history.tiered.partition(tip).compacted_upto:
            assert len(history.tiered.records(tip)) <= kept[place_of]


def test_what_compaction_would_save_of_a_plain_topic() -> None:
    """The numbers with which `cleanup.policy=compact` would begin."""
    found = PlainStore()
    found.create("plain")
    found.create("keyed", cleanup_policy="compact")
    for _ in range(3):
        found.upload({("plain", 0): 20, ("keyed", 0): 20})
    place = InlinePlace(MemoryFileSystem(), found.clock, SequentialIds(5), found.store)
    cluster = InlineCluster(Random(1))
    keyed, plain = key_statistics(cluster, place, (), reads_keys=True)
    assert (plain.topic, plain.compacted, plain.keys_counted) == ("plain", False, True)
    # Keys are those of `PlainStore.record`.
    assert (plain.key_count, plain.kept_record_count, plain.record_count) == (7, 7, 60)
    assert 0 < plain.kept_bytes < plain.size_bytes / 4
    assert plain.kept_bytes == keyed.kept_bytes


def test_a_topic_that_was_compacted_once_needs_no_data() -> None:
    """Its slices have key streams still."""
    found = PlainStore()
    found.create("t", cleanup_policy="compact")
    found.upload({("t", 0): 20})
    found.tiered.catalog.alter(found.tips["t"][0].topic_id, config={"cleanup.policy": "delete"})
    place = InlinePlace(MemoryFileSystem(), found.clock, SequentialIds(5), found.store)
    (one,) = key_statistics(InlineCluster(Random(1)), place, ())
    assert (one.compacted, one.keys_counted, one.key_count) == (False, True, 7)
    found.upload({("t", 0): 20})
    (one,) = key_statistics(InlineCluster(Random(1)), place, ())
    assert (one.keys_counted, one.key_count) == (False, 0)
    assert 0 < one.unread_bytes < one.size_bytes


def test_a_key_that_lies_below_log_start_does_not_count() -> None:
    """The key stream of the slice has it still."""
    found = PlainStore()
    found.create("t", cleanup_policy="compact")
    found.upload({("t", 0): 10})
    (tip,) = found.tips["t"]
    found.tiered.advance_log_start(tip, 5)
    place = InlinePlace(MemoryFileSystem(), found.clock, SequentialIds(5), found.store)
    (one,) = key_statistics(InlineCluster(Random(1)), place, ())
    assert (one.record_count, one.key_count, one.kept_record_count) == (10, 5, 5)
