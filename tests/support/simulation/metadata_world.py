"""One shard under simulation: a store, an audit of it, and actors that share it with faults of their own.

Everything follows from the seed: which actor goes next, which request meets which fault, when a write that is
under way lands, and who stops for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from uuid import UUID

from stratalog.base.errors import StoreUnavailableError
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.remote.metadata.head.commit import Writer
from stratalog.remote.metadata.head.head_log import CommitSettings, StoreActor
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.objects.object_ref import ObjectRef
from stratalog.remote.objects.slice_entry import SliceEntry
from stratalog.remote.store_identity import StoreIdentity
from stratalog.remote.store_layout import StoreLayout
from stratalog.testing.faulty_object_store import FaultyObjectStore, StoreTrace
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import FaultPlan, Operation, RandomFaults
from tests.support.simulation.metadata_audit import MetadataAudit
from tests.support.simulation.mock_objects import parse_mock_slices
from tests.support.simulation.step_scheduler import StepScheduler
from tests.support.simulation.watched_object_store import WatchedObjectStore

TOPIC_IDS = (UUID(int=0x10 << 96 | 1), UUID(int=0x20 << 96 | 2))
PARTITIONS = (
    TopicIdPartition(TOPIC_IDS[0], 0),
    TopicIdPartition(TOPIC_IDS[0], 1),
    TopicIdPartition(TOPIC_IDS[1], 0),
)
SETTINGS = CommitSettings(max_lost_races=1_000, max_store_failures=4, page_rows=4, fold_by_itself=False)


@dataclass(frozen=True, slots=True)
class Seat:
    """The equipment of an actor: a store with its own faults, its own chance and its own ids."""

    world: MetadataWorld
    name: str
    store: FaultyObjectStore
    random: Random
    ids: SequentialIds

    def open_log(self, kind: str, settings: CommitSettings = SETTINGS) -> MetadataLog:
        """A metadata log of this actor's."""
        world = self.world
        return MetadataLog.open(
            StoreActor(
                store=self.store,
                clock=world.clock,
                random_source=self.random,
                ids=self.ids,
                identity=world.identity,
                writer=Writer(kind, self.name),
            ),
            0,
            self.load_directory,
            settings=settings,
        )

    def load_directory(self, ref: ObjectRef) -> list[SliceEntry]:
        data = self.store.get(self.world.layout.data_key(ref.name)).data
        return [part.entry() for part in parse_mock_slices(data)]


class MetadataWorld:
    """A store and its actors. Not thread-safe: one test drives it. Its context leaves no thread behind."""

    def __init__(self, seed: int, *, fault_probability: float, stops: bool = True) -> None:
        self.random = Random(seed)
        self.clock = ManualClock()
        self.layout = StoreLayout(0)
        self.memory = MemoryObjectStore(self.clock)
        self.identity = StoreIdentity.open_or_create(self.memory, SequentialIds(seed))
        self.audit = MetadataAudit(self.memory, self.layout)
        self.trace = StoreTrace()
        self.schedule: list[str] = []
        self.record_number = 0
        """Number of the next record that any actor appends."""
        self.catalog_seq = 0
        """Number of the catalog's newest commit, if it had one."""
        self._seed = seed
        self._fault_probability = fault_probability
        self._stops = stops
        self._watched = WatchedObjectStore(self.memory, self.audit.landed, self.audit.deleted)
        self._scheduler = StepScheduler()
        self._stores: list[FaultyObjectStore] = []

    def __enter__(self) -> MetadataWorld:
        return self

    def __exit__(self, *_: object) -> None:
        self._scheduler.close()

    def spawn(self, name: str, body: Callable[[Seat], None]) -> None:
        """Add an actor."""
        seat = self.seat(name, RandomFaults(self.random, self._fault_probability, stops=self._stops))

        def act() -> None:
            try:
                body(seat)
            except StoreUnavailableError:
                pass  # it lost its patience with the store, and gave up for good

        self._scheduler.spawn(name, act)

    def seat(self, name: str, plan: FaultPlan, *, is_interleaved: bool = True) -> Seat:
        """A place at the store for an actor, or for a caller that acts at once."""

        def pause(_: Operation) -> None:
            self._scheduler.pause(name)

        store = FaultyObjectStore(
            self._watched,
            self.random,
            plan,
            actor=name,
            trace=self.trace,
            before=pause if is_interleaved else None,
        )
        number = len(self._stores)
        self._stores.append(store)
        return Seat(
            self, name, store, Random(self._seed * 1000 + number), SequentialIds(self._seed * 1000 + number)
        )

    def run(self, steps: int) -> None:
        """Take up to `steps` steps, and prove the invariants after each. Raises InvariantViolatedError, and
        whatever an actor raises that it should not.
        """
        for _ in range(steps):
            if not self.step():
                return

    def step(self) -> bool:
        """One actor's next request, or a write under way that lands. False where nothing is left to
        happen.
        """
        choices: list[tuple[str, Callable[[], None]]] = [
            (name, partial(self._scheduler.resume, name)) for name in self._scheduler.runnable
        ]
        for number, store in enumerate(self._stores):
            if store.held:
                choices.append((f"late write of {number}", store.release))
        if not choices:
            return False
        name, act = self.random.choice(choices)
        self.schedule.append(name)
        act()
        self.audit.check()
        return True

    def settle_down(self) -> None:
        """No actor acts any more, and what is under way lands."""
        self._scheduler.close()
        for store in self._stores:
            store.release_all()
        self.audit.check()
