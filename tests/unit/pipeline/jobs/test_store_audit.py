"""An audit finds what one machine finds, however its work is divided."""

from __future__ import annotations

from random import Random

import pytest

from stratalog.base.errors import UnknownTopicOrPartitionError
from stratalog.base.stop_signal import StopSignal
from stratalog.compaction.tier_verification import TierVerification
from stratalog.pipeline.jobs.store_audit import audit_store
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.inline_cluster import InlineCluster, InlinePlace
from tests.support.compaction.orders_log import OrdersLog
from tests.support.tiered.compaction_history import CompactionHistory


def test_it_reads_each_object_once_and_proves_each_partition() -> None:
    history = CompactionHistory(4)
    for _ in range(8):
        history.upload()
    history.compact()
    history.upload()
    place = InlinePlace(MemoryFileSystem(), history.clock, SequentialIds(5), history.store)
    report = audit_store(InlineCluster(Random(1)), place, ())
    state = history.tiered.metadata.refresh()
    assert report.finding_count == 0
    assert report.verification.object_count == len(state.objects)
    assert report.verification.record_count == sum(
        live.entry.record_count for tip in state.partitions for live in state.partition(tip).slices
    )
    compacted = [tip for tip, oracle in history.oracles.items() if oracle.is_compacted]
    assert len(report.proof.partitions) == len([tip for tip in compacted if tip in state.partitions])


@pytest.mark.parametrize("seed", range(3))
def test_it_finds_the_damage_that_one_machine_finds(seed: int) -> None:
    random = Random(seed)
    history = CompactionHistory(seed)
    for _ in range(6):
        history.upload()
    state = history.tiered.metadata.refresh()
    for name in random.sample(sorted(state.objects), 3):
        ref = state.objects[name].ref
        key = history.tiered.layout.data_key(name)
        data = bytearray(history.store.get(key).data)
        data[random.randrange(ref.data_position, ref.directory_position)] ^= 1
        history.store.put(key, bytes(data))
    place = InlinePlace(MemoryFileSystem(), history.clock, SequentialIds(5), history.store)
    report = audit_store(InlineCluster(random), place, ()).verification
    alone = TierVerification(
        history.store,
        history.tiered.open_metadata(history.store, "verify"),
        history.tiered.open_catalog(history.store, "verify"),
    ).run(None, StopSignal(), lambda _: None)
    assert report.finding_count == alone.finding_count >= 3
    assert sorted(report.findings) == sorted(alone.findings)


def test_a_key_that_is_there_twice_is_a_finding() -> None:
    orders = OrdersLog()
    orders.upload(b"a", b"b")
    orders.upload(b"a")
    orders.claim_compacted(1, 1)
    place = InlinePlace(MemoryFileSystem(), orders.logs.clock, SequentialIds(5), orders.logs.store)
    report = audit_store(InlineCluster(Random(1)), place, ["orders"], reads_data=False)
    assert report.proof.finding_count == report.finding_count == 1
    [finding] = report.proof.findings
    assert (finding.topic, finding.offset, finding.later_offset) == ("orders", 0, 2)
    with pytest.raises(UnknownTopicOrPartitionError):
        audit_store(InlineCluster(Random(1)), place, ["others"])
