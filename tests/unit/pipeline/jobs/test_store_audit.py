"""An audit finds what one machine finds, however its work is divided."""

from __future__ import annotations

from random import Random

import pytest

from stratalog.base.errors import UnknownTopicOrPartitionError
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.tier_verification import TierVerification
from stratalog.pipeline.jobs.store_audit import audit_store
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.objects import object_parts
from stratalog.remote.objects.fixed_layout import ALIGNMENT_BYTES
from stratalog.remote.objects.object_format import FOOTER
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.restore.metadata_scrub import FindingKind
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.inline_cluster import InlineCluster, InlinePlace
from tests.support.compaction.orders_log import OrdersLog
from tests.support.logs.sampling import IS_WHOLE, Sampling, some_seeds
from tests.support.tiered.compaction_history import CompactionHistory
from tests.support.tiered.metadata_harness import MetadataHarness
from tests.support.tiered.tiered_store import TieredStore


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


def _places(ref: ObjectRef, random: Random) -> list[int]:
    """A byte of each part of an object. No checksum covers the padding before the directory."""
    directory_end, footer = ref.directory_position + ref.directory_bytes, ref.size_bytes - FOOTER.size_bytes
    parts = [
        (0, ref.data_position),
        (ref.data_position, ref.directory_position - ALIGNMENT_BYTES),
        (ref.directory_position, directory_end),
        (directory_end, ref.key_streams_end),
        (ref.key_streams_end, footer),
        (footer, ref.size_bytes),
    ]
    return [random.randrange(start, end) for start, end in parts if start < end]


@pytest.mark.parametrize("is_small", [True, False])
@pytest.mark.parametrize("seed", some_seeds(16))
def test_a_bit_that_has_changed_in_any_part_of_an_object_is_a_finding(
    seed: int, is_small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In objects that are read in one GET, and in those whose parts are read one by one."""
    if not is_small:
        monkeypatch.setattr(object_parts, "WHOLE_BYTES", 0)
        monkeypatch.setattr(object_parts, "TAIL_BYTES", 0 if seed % 2 else 1 << 20)
    random = Random(seed)
    history = CompactionHistory(seed)
    for _ in range(4):
        history.upload()
    state = history.tiered.metadata.refresh()
    verification = TierVerification(
        history.store, history.tiered.metadata, history.tiered.open_catalog(history.store, "verify")
    )
    _, items = verification.survey(None, StopSignal())
    for ref, slices in Sampling().at_most(list(items), 2):
        key = history.tiered.layout.data_key(ref.name)
        data = history.store.get(key).data
        places = range(len(data)) if IS_WHOLE and seed == 0 else _places(ref, random)
        padding_position = max(live.entry.data_end_position for live in slices)
        for place in places:
            changed = bytearray(data)
            changed[place] ^= 1 << random.randrange(8)
            history.store.put(key, bytes(changed))
            report = verification.verify_object((ref, slices))
            is_padding = padding_position <= place < ref.directory_position
            assert bool(report.finding_count) != is_padding, place
            assert {one.object_name for one in report.findings} <= {ref.name}
        history.store.put(key, data)
        assert verification.verify_object((ref, slices)).finding_count == 0
    assert len(state.objects) >= 4


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
        # A store whose last commits are not folded cannot be opened without their directories.
        end = ref.directory_position + ref.directory_bytes
        places = [one for one in _places(ref, random) if not ref.directory_position <= one < end]
        data[random.choice(places)] ^= 1
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


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("part", ["head", "page"])
def test_a_shard_that_cannot_be_read_is_a_finding_and_the_others_are_audited(
    part: str, *, is_lost: bool
) -> None:
    """The audit ended there."""
    harness = MetadataHarness(shard_count=2)
    tiered = TieredStore(MemoryFileSystem(), harness.store, harness.clock, harness.ids)
    tip = TopicIdPartition(tiered.catalog.create("t", 1).topic_id, 0)
    for number in range(3):
        tiered.upload({tip: [encode_batch([Record(0, 1000, b"k", b"v")], base_offset=number)]})
    tiered.metadata.fold()
    other = MetadataLog.open(harness.actor("owner"), 1, harness.load_directory)
    other.claim("owner", harness.ids.uuid())
    layout = other.layout if part == "head" else tiered.layout
    keys = [info.key for info in harness.store.list(layout.prefix + part)]
    for key in keys:
        if is_lost:
            harness.store.delete_many([key])
        else:
            harness.store.put(key, bytes(100))
    assert keys
    place = InlinePlace(MemoryFileSystem(), harness.clock, SequentialIds(5), harness.store)
    report = audit_store(InlineCluster(Random(1)), place, ())
    (finding,) = report.verification.findings
    assert report.finding_count == 1
    is_missing = is_lost and part == "page"
    assert finding.kind is (FindingKind.MISSING if is_missing else FindingKind.DAMAGED)
    assert finding.object_name in keys
    assert f"shard {layout.shard} cannot be read" in finding.reason
    assert report.verification.object_count == (3 if part == "head" else 0)


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
