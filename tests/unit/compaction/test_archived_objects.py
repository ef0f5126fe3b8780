"""Objects that the store has archived: they are not lost, cannot be read, and hold up nothing else."""

from __future__ import annotations

from random import Random

import pytest

from stratalog.base.errors import ObjectArchivedError
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.tier_verification import TierVerification
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.read.remote_reader import RemoteReader
from stratalog.remote.restore.metadata_scrub import FindingKind
from stratalog.remote.restore.store_cut import StoreCutter, Until
from stratalog.remote.restore.store_restore import StoreRestore
from stratalog.remote.store_identity import StoreIdentity
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.current_keys import waiting_files
from tests.support.tiered.inline_reads import inline_reads
from tests.support.tiered.stores.archiving_store import ArchivingStore
from tests.support.tiered.tiered_store import TieredStore

RETRY_MS = 5 * 60_000


class World:
    """Two partitions of a compacted topic, each with two values of one key, each in objects of its own."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = ArchivingStore(self.clock)
        self.tiered = TieredStore(MemoryFileSystem(), self.store, self.clock, SequentialIds(1))
        topic = self.tiered.catalog.create("state", 2, {"cleanup.policy": "compact"})
        self.tips = [TopicIdPartition(topic.topic_id, number) for number in range(2)]
        self.names = {tip: [self.upload(tip, value) for value in (b"1", b"2")] for tip in self.tips}

    def upload(self, tip: TopicIdPartition, value: bytes) -> str:
        end_offset = self.tiered.partition(tip).tiered_end_offset
        return self.tiered.upload(
            {tip: [encode_batch([Record(0, 0, b"key", value)], base_offset=end_offset, leader_epoch=1)]}
        )

    def archive(self, name: str) -> str:
        key = self.tiered.layout.data_key(name)
        self.store.archived.add(key)
        return key

    def content(self, key: str) -> bytes:
        self.store.archived.discard(key)
        data = self.store.get(key).data
        self.store.archived.add(key)
        return data

    def values(self, tip: TopicIdPartition) -> list[bytes | None]:
        return [record.value for record in self.tiered.records(tip)]


def test_compaction_leaves_an_archived_input_alone_and_says_so() -> None:
    world = World()
    archived, other = world.tips
    compactor = world.tiered.compactor()
    world.archive(world.names[archived][0])
    reports = compactor.run()
    refusals = [report.refused for report in reports if report.refused]
    assert any("restore it" in refusal for refusal in refusals), refusals
    assert world.values(other) == [b"2"], "the archive holds up no other partition"
    exclusion = compactor.exclusions()[archived]
    assert "archived" in exclusion.reason
    world.store.archived.clear()
    assert world.values(archived) == [b"1", b"2"]
    world.clock.advance(RETRY_MS)
    compactor.run()
    assert world.values(archived) == [b"2"], "once it is restored, it is compacted"
    assert archived not in compactor.exclusions()


def test_verification_counts_archived_slices_and_goes_on() -> None:
    world = World()
    chosen = Random(7).choice(world.tips)
    world.archive(world.names[chosen][1])
    verification = TierVerification(world.store, world.tiered.metadata, world.tiered.catalog)
    report = verification.run(None, StopSignal(), lambda _: None)
    assert (report.object_count, report.slice_count, report.record_count) == (4, 4, 3)
    [finding] = report.findings
    assert (finding.partition, finding.base_offset) == (chosen.partition, 1)
    assert "archived" in finding.reason


def test_a_quick_verification_finds_archived_slices_in_the_listing() -> None:
    world = World()
    chosen = Random(8).choice(world.tips)
    world.archive(world.names[chosen][1])
    verification = TierVerification(world.store, world.tiered.metadata, world.tiered.catalog)
    report = verification.run(None, StopSignal(), lambda _: None, reads_data=False)
    [finding] = report.findings
    assert (finding.kind, finding.object_name) == (FindingKind.DAMAGED, world.names[chosen][1])
    assert (finding.partition, finding.base_offset) == (chosen.partition, 1)
    assert "archive" in finding.reason
    assert report.total_slice_count == 4
    world.store.archived.clear()
    assert not verification.run(None, StopSignal(), lambda _: None, reads_data=False).findings


@pytest.mark.parametrize("folder", ["checkpoints", "pages", "history", "head"])
def test_an_archived_document_is_a_finding(folder: str) -> None:
    world = World()
    for _ in range(2):
        world.clock.advance(1000)
        world.tiered.metadata.fold()
        world.upload(world.tips[0], b"3")
    metadata = world.tiered.metadata
    waiting = {file.name for file in waiting_files(world.store, metadata)}
    listed = (info.key for info in world.store.list(f"shards/0000/{folder}"))
    key = [key for key in listed if key.rpartition("/")[2] not in waiting][-1]
    world.store.archived.add(key)
    verification = TierVerification(world.store, metadata, world.tiered.catalog)
    report = verification.run(None, StopSignal(), lambda _: None, reads_data=False)
    assert [(one.kind, one.object_name) for one in report.findings] == [(FindingKind.DAMAGED, key)]
    assert "archived" in report.findings[0].reason


def test_the_plan_of_a_restore_names_what_is_to_be_restored_from_the_archive_first() -> None:
    world = World()
    identity = StoreIdentity.open(world.store)
    tip = world.tips[0]
    keys = sorted(world.archive(name) for name in world.names[tip])
    with pytest.raises(ObjectArchivedError) as refused:
        StoreCutter(world.store, identity).cut(Until())
    assert refused.value.fields["key"] in keys, "its commit is behind the last fold"
    assert refused.value.fields["archived"] == ",".join(keys), "all at once: each takes hours"
    assert refused.value.fields["archived_count"] == 2
    assert "restore" in refused.value.message
    world.tiered.metadata.fold()
    cut = StoreCutter(world.store, identity).cut(Until())
    plan = StoreRestore(world.store, identity, cut, world.clock.now_ms()).plan()
    assert (plan.archived, plan.gone, plan.lost) == (tuple(keys), (), ())
    copies = MemoryObjectStore(world.clock)
    copies.put(keys[0], world.content(keys[0]))
    plan = StoreRestore(world.store, identity, cut, world.clock.now_ms(), copies).plan()
    assert plan.archived == (keys[1],), "an earlier attempt has copied the other one"


def test_a_read_of_an_archived_slice_names_the_object_and_the_remedy() -> None:
    world = World()
    tip = world.tips[0]
    key = world.archive(world.names[tip][0])
    reader = RemoteReader(inline_reads(world.store), world.tiered.metadata)
    assert reader.read(tip, 1, 1000).next_offset == 2
    with pytest.raises(ObjectArchivedError) as refused:
        reader.read(tip, 0, 1000)
    assert refused.value.fields["key"] == key
    assert not refused.value.retriable
    world.store.archived.clear()
    assert reader.read(tip, 0, 1000).batches, "a failure is not cached"
