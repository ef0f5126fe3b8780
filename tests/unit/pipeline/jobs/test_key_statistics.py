"""Statistics of keys are those of the records, and a compaction leaves as many records as they say."""

from __future__ import annotations

from random import Random

import pytest

from stratalog.base.errors import UnknownTopicOrPartitionError
from stratalog.pipeline.jobs.key_statistics import key_statistics
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.inline_cluster import InlineCluster, InlinePlace
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
    with pytest.raises(UnknownTopicOrPartitionError):
        key_statistics(cluster, place, ["others"])
    history.clock.advance(10_000)
    history.bounds = {"max_inputs_per_job": 64, "max_job_bytes": 1 << 30}
    history.settle()
    for tip in history.oracles:
        place_of = history.tiered.topic(tip).name, tip.partition
        if place_of in kept and history.tiered.partition(tip).compacted_upto:
            assert len(history.tiered.records(tip)) <= kept[place_of]
