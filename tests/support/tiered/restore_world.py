"""A store with a compacted and a plain topic that a seed fills: uploads, compactions, retention, folds."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping

from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import StoreActor
from stratalog.remote.metadata.shard.metadata_log import AddOutcome
from stratalog.remote.restore.head_rebuild import HeadRebuild, RebuildPlan
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.tier.collector import Collector
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Fault, FaultsAt
from tests.support.tiered.tiered_store import TieredStore

Readable = dict[TopicIdPartition, list[tuple[int, bytes | None, bytes | None]]]
"""Offset, key and value of every readable record, by partition."""


class RestoreWorld:
    """One shard with three partitions. Not thread-safe: one test uses it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.bucket = MemoryObjectStore(self.clock)
        self.ids = SequentialIds(seed)
        self.tiered = TieredStore(MemoryFileSystem(), self.bucket, self.clock, self.ids)
        state = self.tiered.catalog.create("state", 2, {"cleanup.policy": "compact"})
        events = self.tiered.catalog.create("events", 1, {"retention.ms": "1000"})
        self.tips = (
            TopicIdPartition(state.topic_id, 0),
            TopicIdPartition(state.topic_id, 1),
            TopicIdPartition(events.topic_id, 0),
        )

    def step(self, name: str | None = None) -> str:
        """Do one thing, by chance or by its name; returns its name. A second passes."""
        self.clock.advance(1000)
        names = ("upload", "upload", "upload", "compact", "advance", "fold", "orphan", "die", "collect")
        chosen = name or self.random.choice(names)
        match chosen:
            case "upload":
                self.upload()
            case "compact":
                self.tiered.compactor().run(("state",))
            case "advance":
                self.advance()
            case "fold":
                self.tiered.metadata.fold()
                self.tiered.catalog.fold()
            case "orphan":
                self.orphan_upload()
            case "die":
                self.dying_compaction()
            case "collect":
                self.clock.advance(25 * 3_600_000)
                Collector(self.bucket, self.tiered.metadata, self.tiered.catalog).run()
            case _:
                raise AssertionError(chosen)
        return chosen

    def batches(self) -> dict[TopicIdPartition, list[bytes]]:
        """A batch for some partitions, at the tiered end of each."""
        tips = self.random.sample(self.tips, self.random.randint(1, 3))
        return {tip: [self._batch(tip)] for tip in tips}

    def upload(self) -> str:
        return self.tiered.upload(self.batches())

    def orphan_upload(self) -> str:
        """An object that never becomes live: its uploader dies before the commit. The records that it has
        are uploaded again, as its log has them, with the next one behind."""
        metadata = self.tiered.metadata
        batches = self.batches()
        metadata.add = lambda *_: AddOutcome(0, ())  # type: ignore[method-assign]  # it dies here
        try:
            name = self.tiered.upload(batches)
        finally:
            del metadata.add
        self.tiered.upload(batches)
        return name

    def dying_compaction(self) -> None:
        """A compaction that dies at some operation."""
        plan = FaultsAt({self.random.randrange(16): Fault.STOPS_AFTER})
        with contextlib.suppress(ActorStopped):
            self.tiered.compactor(FaultyObjectStore(self.bucket, random.Random(0), plan)).run(("state",))
        self.tiered.metadata.refresh()

    def advance(self) -> None:
        tip = self.random.choice(self.tips)
        partition = self.tiered.partition(tip)
        offset = self.random.randint(partition.log_start_offset, partition.tiered_end_offset)
        if offset > partition.log_start_offset:
            self.tiered.advance_log_start(tip, offset)

    def _batch(self, tip: TopicIdPartition) -> bytes:
        choose = self.random
        records = [
            Record(
                0,
                self.clock.now_ms(),
                b"k%d" % choose.randint(0, 5),
                None if choose.random() < 0.2 else choose.randbytes(3),
            )
            for _ in range(choose.randint(1, 4))
        ]
        return encode_batch(records, base_offset=self.tiered.partition(tip).tiered_end_offset, leader_epoch=1)

    def readable(self, tiered: TieredStore | None = None) -> Readable:
        """Every readable record of a store, by default this one."""
        one = tiered or self.tiered
        return {
            tip: [(record.offset, record.key, record.value) for record in one.records(tip)]
            for tip in self.tips
        }

    def log_starts(self) -> Mapping[TopicIdPartition, int]:
        return {tip: self.tiered.partition(tip).log_start_offset for tip in self.tips}

    def actor(self, store: ObjectStore | None = None, identity: StoreIdentity | None = None) -> StoreActor:
        """An operator's command, through `store`."""
        bucket = store or self.bucket
        return StoreActor(
            store=bucket,
            clock=self.clock,
            random_source=random.Random(0),
            ids=self.ids,
            identity=identity or StoreIdentity.open(bucket),
            writer=Writer("rebuild", "test"),
        )

    def lose(self, *keys: str) -> None:
        self.bucket.delete_many(keys)

    def rebuild(self) -> RebuildPlan:
        """Rebuild all lost heads, and open what came of it as a new server."""
        rebuild = HeadRebuild(self.actor())
        plan = rebuild.plan()
        rebuild.write(plan)
        self.reopen()
        return plan

    def reopen(self) -> None:
        """A new server over the bucket."""
        self.tiered = TieredStore(MemoryFileSystem(), self.bucket, self.clock, self.ids)
        self.tiered.metadata.check()
        self.tiered.catalog.check()
