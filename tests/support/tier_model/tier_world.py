"""A bucket, two machines, and the servers that run on them one after the other, beside a list of records.

Everything follows from the seed. `history` says in plain words what has happened, a line for each step.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

from stratalog.base.errors import LogStoreError
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicPartition
from stratalog.log.append_info import AppendInfo
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore
from stratalog.testing.memory_filesystem import Kept, Survival
from stratalog.testing.store_faults import Fault
from tests.support.tier_model.engine_process import EngineProcess
from tests.support.tier_model.partition_ledger import Batch, PartitionLedger, TopicPlan
from tests.support.tier_model.still_clock import StillClock
from tests.support.tier_model.tier_readings import TierReadings
from tests.support.tiered.current_keys import left_over_keys

DAY_MS = 24 * 3_600_000
PARTITION_COUNT = 2
CONFIG = {
    "producer.id.expiration.ms": str(10_000 * DAY_MS),
    "log.dir.min.free.bytes": "0",
    "log.cleaner.dedupe.buffer.size": str(4 << 20),
}


class Waiting(NamedTuple):
    """An append whose answer has not come."""

    future: asyncio.Future[AppendInfo]
    ledger: PartitionLedger
    batch: Batch


class TierWorld:
    """The world. Not thread-safe: one test drives it. Its context closes what is open."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.clock = StillClock()
        self.bucket = MemoryObjectStore(self.clock)
        self.history: list[str] = []
        self.topics: dict[str, TopicPlan] = {}
        self.waiting: list[Waiting] = []
        self.process: EngineProcess
        self._seed = seed
        self._start_count = 0
        self._loop = asyncio.new_event_loop()
        self._disks = {"a": FaultyFileSystem(), "b": FaultyFileSystem()}
        self._machine = "a"
        self._ledgers: dict[tuple[str, TopicPartition], PartitionLedger] = {}
        """By machine where a topic is not tiered, because then each has its own log."""
        self._dead: list[FaultyObjectStore] = []
        """The stores of processes that ended: some of their writes are under way."""
        self.start(end_after_kill)

    def __enter__(self) -> TierWorld:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.abandon()
        self._loop.close()

    @property
    def is_calm(self) -> bool:
        """Nothing goes wrong at the store now."""
        return self.process.weather.probability == 0 and self.process.weather.stops_in is None

    def say(self, text: str) -> None:
        self.history.append(f"{len(self.history):03} {text}")

    def ledger(self, partition: HostedPartition) -> PartitionLedger:
        return self._ledger(partition.topic_partition)

    def _ledger(self, name: TopicPartition) -> PartitionLedger:
        topic = self.topics[name.topic]
        key = ("" if topic.is_tiered else self._machine, name)
        return self._ledgers.setdefault(key, PartitionLedger(topic))

    def partitions(self) -> list[HostedPartition]:
        return sorted(self.process.partitions(), key=lambda one: one.topic_partition)

    def attempt(self, work: Callable[[], object]) -> LogStoreError | None:
        """Do what may fail while the store does; returns the failure, or lets the process die."""
        failure: LogStoreError | None = None
        try:
            work()
        except LogStoreError as error:
            failure = error
        except (ActorStopped, SimulatedCrash):
            assert self.process.is_dead, "death comes as planned only"
        if self.process.is_dead:
            return None
        if failure is not None:
            self.say(f"    refused: {type(failure).__name__}: {failure.message[:90]}")
            if self.is_calm:
                raise failure
        return failure

    def start(self, least_end: Callable[[PartitionLedger], int]) -> None:
        """Start a server on the machine of now; `least_end` returns the least offset at which the log of a
        ledger may end. Raises what the start raises."""
        self._start_count += 1
        disk = self._disks[self._machine]
        seed = self._seed * 1_000 + self._start_count
        self.process = EngineProcess(disk, self.bucket, self.clock, self._loop, seed, config=CONFIG)
        self.process.open()
        self._find_ends(least_end)

    def _find_ends(self, least_end: Callable[[PartitionLedger], int]) -> None:
        """Learn where the logs end after a start. Raises AssertionError if one has lost too much."""
        found = self.partitions()
        names = {one.topic_partition.topic for one in found}
        assert names == set(self.topics), f"served are {sorted(names)}"
        assert len(found) == len(self.topics) * PARTITION_COUNT
        for partition in found:
            ledger = self.ledger(partition)
            end_offset = partition.log_end_offset
            least = least_end(ledger)
            assert least <= end_offset <= ledger.end_offset, (
                f"{partition.topic_partition} ends at {end_offset},"
                f" and must end between {least} and {ledger.end_offset}"
            )
            ledger.cut(end_offset)
            if not ledger.topic.is_tiered:
                # The log start of such a log is a checkpoint, as in Kafka: a death may take it back.
                ledger.log_start_offset = min(ledger.log_start_offset, partition.log_start_offset)

    def kill(self) -> None:
        """End the process at once; its disk stays as it is."""
        self.process.abandon()
        self._dead.append(self.process.store)
        self.waiting.clear()
        self._disks[self._machine] = self._disks[self._machine].killed()

    def lose_power(self) -> None:
        """End the machine: what was not synced is lost, in part."""
        self.kill()
        kept = self.random.choice((Kept.NONE, Kept.HALF, Kept.EACH))
        survival = Survival(kept, self.random.choice((Kept.NONE, kept)), seed=self._start_count)
        self._disks[self._machine] = self._disks[self._machine].reopened(survival)

    def lose_disk(self) -> None:
        """The machine gets an empty disk."""
        self.kill()
        self._disks[self._machine] = FaultyFileSystem()
        for key in [key for key in self._ledgers if key[0] == self._machine]:
            del self._ledgers[key]

    def move(self) -> EngineProcess:
        """Let the other machine be the one of now; returns the process that ran until here, and may go on."""
        former = self.process
        self._machine = "b" if self._machine == "a" else "a"
        self._disks[self._machine] = self._disks[self._machine].killed()
        return former

    def end_former(self, former: EngineProcess) -> None:
        """End the process of the other machine."""
        former.abandon()
        self._dead.append(former.store)

    def forget_topic(self, name: str) -> None:
        del self.topics[name]
        for key in [key for key in self._ledgers if key[1].topic == name]:
            del self._ledgers[key]
        self.waiting = [one for one in self.waiting if one.ledger.topic.name != name]

    def take_answers(self) -> None:
        """Note which appends were acknowledged at `object` meanwhile."""
        self.process.answer()
        left: list[Waiting] = []
        for one in self.waiting:
            if not one.future.done():
                left.append(one)
            elif one.future.exception() is None:
                one.ledger.note_durable(one.batch.end_offset, is_tiered=True)
        self.waiting = left

    def held_writes(self) -> Iterator[FaultyObjectStore]:
        """The stores with writes under way, of dead processes, too."""
        yield from (one for one in (*self._dead, self.process.store) if one.held)

    def read(self, *, offset_count: int = 3) -> None:
        """Compare all partitions with their ledgers: once under the weather of now, then without any."""
        weather = self.process.weather
        former = weather.probability
        if former and self.random.random() < 0.5:
            self.attempt(lambda: self._read(offset_count))
        if self.process.is_dead:
            return
        former_stop, weather.stops_in, weather.probability = weather.stops_in, None, 0.0
        try:
            self._read(offset_count)
        except SimulatedCrash:
            assert self.process.is_dead, "death comes as planned only"
        weather.stops_in, weather.probability = former_stop, former

    def _read(self, offset_count: int) -> None:
        for partition in self.partitions():
            readings = TierReadings(partition, self.ledger(partition))
            try:
                readings.require(self.random, self.clock.now_ms(), offset_count=offset_count)
            except Exception as error:
                error.add_note(f"in {partition.topic_partition}")
                raise

    def settle(self) -> None:
        """Let everything end well: all is healed, tiered and collected. Raises AssertionError if something is
        left over, or the verification finds something."""
        self.say("all is well from now on")
        for store in list(self.held_writes()):
            store.release_all()
        for _ in range(2):
            self._work_through()
            self.clock.advance(DAY_MS)
            self.read(offset_count=5)
        for _ in range(5):
            self.process.engine.tier.manager.refresh_pass()
            self.process.engine.tier.manager.collect_pass()
            self.clock.advance(DAY_MS)
        self.read(offset_count=5)
        engine = self.process.engine
        for partition in self.partitions():
            if partition.is_tiered:
                assert partition.tiered_end_offset == partition.log_end_offset, "something is not tiered"
        for tier in engine.tier.upkeep.tiers:
            assert left_over_keys(self.bucket, tier.shard.metadata) == set()
            report = tier.verification.run(None, StopSignal(), lambda _: None)
            assert report.findings == ()
            assert report.unreferenced.file_count == 0
            assert report.gaps == (), "nothing was lost here by policy"
        assert left_over_keys(self.bucket, engine.topics.catalog) == set()
        assert [one.key for one in self.bucket.list("scratch/")] == []
        engine.local.logs.check()

    def _work_through(self) -> None:
        """One turn of every pass of a server."""
        engine = self.process.engine
        tiers = engine.tier.manager
        tiers.refresh_pass()
        tiers.upload_now((), delete_local=False)
        for _ in range(3):
            self.clock.advance(1_000)
        self.take_answers()
        engine.tier.compaction.compact_pass()
        tiers.remote_retention_pass()
        engine.local.retention.run()
        engine.topics.manager.drop_leftovers()
        for tier in engine.tier.upkeep.tiers:
            tier.shard.metadata.fold()
        engine.topics.catalog.fold()
        tiers.collect_pass()


def end_after_kill(ledger: PartitionLedger) -> int:
    """The process alone died: the disk has all of it, and maybe an append that was under way."""
    return ledger.certain_end_offset


def end_after_power_loss(ledger: PartitionLedger) -> int:
    return ledger.durable_end_offset


def end_elsewhere(ledger: PartitionLedger) -> int:
    """Another machine has the tiered part, or its own log of a topic that is not tiered."""
    return ledger.tiered_end_offset if ledger.topic.is_tiered else 0


SPELLS = (
    None,
    None,
    *(one for one in Fault if one not in (Fault.NONE, Fault.STOPS_BEFORE, Fault.STOPS_AFTER)),
)
"""The only fault of a spell of bad weather; None for all of them."""
