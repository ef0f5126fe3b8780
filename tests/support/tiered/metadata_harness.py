"""A small store with a shard, for tests of the metadata: bytes in memory, mock objects, ids that repeat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from uuid import UUID

from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head import Head
from stratalog.remote.metadata.head.head_log import CommitSettings, StoreActor
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.shard_actions import SHARD_ACTIONS
from stratalog.remote.objects.object_ref import ObjectRef, format_object_name
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.simulation.mock_objects import MockObject, MockRecord, MockSlice, parse_mock_slices

TOPIC_A = UUID("aaaaaaaa-0000-4000-8000-000000000001")
TOPIC_B = UUID("bbbbbbbb-0000-4000-8000-000000000002")
A0 = TopicIdPartition(TOPIC_A, 0)
A1 = TopicIdPartition(TOPIC_A, 1)
B0 = TopicIdPartition(TOPIC_B, 0)
BY_HAND = CommitSettings(fold_by_itself=False)

Range = tuple[TopicIdPartition, int, int]
"""A partition, a base offset and an exclusive end."""


class MetadataHarness:
    """Parts of the metadata over one store. As thread-safe as the parts that it hands out."""

    def __init__(
        self,
        seed: int = 1,
        *,
        shard_count: int | None = None,
        clock: ManualClock | None = None,
        store_clock: ManualClock | None = None,
        bucket: Callable[[ManualClock], MemoryObjectStore] = MemoryObjectStore,
    ) -> None:
        """`store_clock`: the store's, if it is another one than that of the actors. `bucket` makes the
        store."""
        self.clock = clock or ManualClock()
        self.store = bucket(store_clock or self.clock)
        self.ids = SequentialIds(seed)
        self.random = Random(seed)
        self.identity = StoreIdentity.open_or_create(self.store, self.ids, shard_count)
        self.layout = StoreLayout(0)
        self.loaded: list[str] = []
        """Names of the objects whose directories were read, in order."""

    def log(
        self,
        kind: str = "owner",
        *,
        store: ObjectStore | None = None,
        settings: CommitSettings = BY_HAND,
        read_only: bool = False,
    ) -> MetadataLog:
        """Open the shard."""
        return MetadataLog.open(
            self.actor(kind, store=store),
            0,
            self.load_directory,
            read_only=read_only,
            settings=settings,
        )

    def owned(self) -> tuple[MetadataLog, int]:
        """An owner's log and its epoch."""
        log = self.log()
        return log, log.claim("owner-1", self.ids.uuid())

    def catalog(
        self, *, store: ObjectStore | None = None, settings: CommitSettings = BY_HAND, read_only: bool = False
    ) -> Catalog:
        """Open the catalog."""
        return Catalog.open(self.actor("owner", store=store), read_only=read_only, settings=settings)

    def actor(self, kind: str, *, store: ObjectStore | None = None) -> StoreActor:
        """An actor on the store, or on another one over the same bytes."""
        writer = Writer(kind, f"{kind}-1")
        return StoreActor(
            store=store or self.store,
            clock=self.clock,
            random_source=self.random,
            ids=self.ids,
            identity=self.identity,
            writer=writer,
        )

    def load_directory(self, ref: ObjectRef) -> Sequence[SliceEntry]:
        self.loaded.append(ref.name)
        data = self.store.get(self.layout.data_key(ref.name)).data
        return [part.entry() for part in parse_mock_slices(data)]

    def put(self, log: MetadataLog, *ranges: Range) -> MockObject:
        """Store an object with one record at each offset of these ranges."""
        return self.put_named(log.next_object_name(), *ranges)

    def put_born(self, birth: int, *ranges: Range) -> MockObject:
        """Store an object that was begun when `birth` was the newest commit."""
        return self.put_named(format_object_name(birth, self.ids.uuid()), *ranges)

    def put_named(self, name: str, *ranges: Range) -> MockObject:
        slices = [
            MockSlice(tip, base, end, tuple(MockRecord(n, f"k{n}", n, False) for n in range(base, end)))
            for tip, base, end in ranges
        ]
        made = MockObject.build(name, slices)
        self.store.put(self.layout.data_key(name), made.data)
        return made

    def added(self, log: MetadataLog, epoch: int, *ranges: Range) -> MockObject:
        """Store an object and make all of it live."""
        made = self.put(log, *ranges)
        outcome = log.add([(made.ref, made.entries())], epoch)
        assert not outcome.refused, "the test asked for something valid"
        return made

    def head(self) -> Head:
        """The head as it is stored."""
        key = self.layout.head_key
        return Head.decode(self.store.get(key).data, key, SHARD_ACTIONS)

    def put_head(self, head: Head) -> None:
        """Replace the stored head, whatever it is."""
        self.store.put(self.layout.head_key, head.encode())


def ranges_of(log: MetadataLog, tip: TopicIdPartition) -> list[tuple[str, int, int]]:
    """Object, base and end of a partition's live slices."""
    return [(live.object_name, live.base_offset, live.end_offset) for live in slices_of(log, tip)]


def slices_of(log: MetadataLog, tip: TopicIdPartition) -> tuple[LiveSlice, ...]:
    """A partition's live slices."""
    return tuple(log.state().partition(tip).slices)
