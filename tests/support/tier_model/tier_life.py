"""The steps of a random life: records come and move through the tiers; processes, disks and stores fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from stratalog.base.errors import LogStoreError, NotOwnerError, OutOfOrderSequenceError, RecordsLostError
from stratalog.base.types import Durability
from stratalog.log.append_info import AppendInfo
from stratalog.record.batch_producer import BatchProducer
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.record_deletion import RecordDeletion, delete_records
from tests.support.tier_model.engine_process import EngineProcess
from tests.support.tier_model.partition_ledger import PartitionLedger
from tests.support.tier_model.random_topics import HOUR_MS, random_batch, random_topic
from tests.support.tier_model.tier_world import (
    DAY_MS,
    PARTITION_COUNT,
    SPELLS,
    TierWorld,
    Waiting,
    end_after_kill,
    end_after_power_loss,
    end_elsewhere,
)

LEVELS = (None, Durability.OS, Durability.DISK, Durability.OBJECT)


class TierLife:
    """One life of a world. Not thread-safe: one test drives it."""

    def __init__(self, world: TierWorld, *, is_stormy: bool) -> None:
        """`is_stormy`: stores fail, and processes die in the middle of their work."""
        self._world = world
        self._random = world.random
        self._batch_count = 0
        self._topic_count = 0
        self._steps: dict[Callable[[], None], int] = {
            self._append: 30,
            self._repeat: 4,
            self._roll: 5,
            self._flush: 3,
            self._wait_shortly: 8,
            self._wait_long: 3,
            self._upload_what_is_due: 6,
            self._upload_all: 5,
            self._delete_locally: 6,
            self._retain: 4,
            self._delete_records: 3,
            self._collect: 4,
            self._fold: 3,
            self._compact: 4,
            self._clean_locally: 3,
            self._checkpoint: 2,
            self._restart: 2,
            self._kill: 2,
            self._lose_power: 2,
            self._lose_disk: 1,
            self._change_owner: 2,
            self._change_topics: 1,
        }
        if is_stormy:
            self._steps |= {self._begin_spell: 4, self._end_spell: 4, self._plan_death: 4}

    def begin(self) -> None:
        """Create the first topics."""
        for _ in range(self._random.choice((1, 2, 3))):
            self._create_topic()

    def step(self) -> None:
        """Something happens, then all partitions are read. Raises AssertionError."""
        world = self._world
        (act,) = self._random.choices(list(self._steps), list(self._steps.values()))
        act()
        if not world.process.is_dead:
            world.take_answers()
            world.read()
        if world.process.is_dead:
            self._bury()

    def end(self) -> None:
        """Let all end well."""
        self._end_spell()
        if self._world.process.is_dead or self._world.process.dies_at is not None:
            self._bury()
        self._world.settle()

    def _bury(self) -> None:
        """The process died in the middle of something, alone or with its machine."""
        if self._random.random() < 0.5:
            self._kill()
        else:
            self._lose_power()

    def _some(self) -> HostedPartition | None:
        partitions = self._world.partitions()
        return self._random.choice(partitions) if partitions else None

    def _pass(self, name: str, work: Callable[[], object]) -> None:
        self._world.say(name)
        self._world.attempt(work)

    def append_to_all(self) -> None:
        """Append a batch to each partition."""
        for partition in self._world.partitions():
            self._append_to(partition)

    def _append(self) -> None:
        if (partition := self._some()) is not None:
            self._append_to(partition)

    def _append_to(self, partition: HostedPartition) -> None:
        world, ledger = self._world, self._world.ledger(partition)
        producer = BatchProducer()
        if self._random.random() < 0.4:
            producer_id = self._random.choice((7, 8))
            producer = BatchProducer(producer_id, 0, ledger.next_sequence(producer_id))
        self._batch_count += 1
        records, data = random_batch(self._random, world.clock.now_ms(), self._batch_count, producer)
        level = self._level(ledger)
        world.say(f"append {len(records)} to {partition.topic_partition} at {level}, {producer.producer_id}")
        self._hear(partition)
        base_offset = ledger.end_offset
        futures: list[asyncio.Future[AppendInfo]] = []
        world.attempt(lambda: futures.append(world.process.append(partition, data, level)))
        if world.process.is_dead:
            ledger.append(records, data, producer, is_certain=False)
            return
        if partition.log_end_offset == base_offset:
            assert not futures or futures[0].exception() is not None, "acknowledged, but not in the log"
            return
        batch = ledger.append(records, data, producer)
        assert partition.log_end_offset == ledger.end_offset, "an append is whole"
        (future,) = futures
        self._note(Waiting(future, ledger, batch), level)

    def _note(self, waiting: Waiting, level: Durability | None) -> None:
        """Note the answer to an append, once it is there."""
        future, ledger, batch = waiting
        wanted = max(level or Durability.OS, ledger.topic.level)
        if not future.done():
            assert wanted is Durability.OBJECT, "only commits are waited for"
            self._world.waiting.append(waiting)
            return
        error = future.exception()
        if error is not None:
            assert isinstance(error, LogStoreError), repr(error)
            assert not self._world.is_calm, repr(error)
            return
        info = future.result()
        assert (info.base_offset, info.last_offset + 1) == (batch.base_offset, batch.end_offset), info
        if wanted is not Durability.OS:
            ledger.note_durable(batch.end_offset, is_tiered=wanted is Durability.OBJECT)

    def _level(self, ledger: PartitionLedger) -> Durability | None:
        return self._random.choice(LEVELS if ledger.topic.is_tiered else LEVELS[:-1])

    def _hear(self, partition: HostedPartition) -> None:
        """A server hears of its store all the time."""
        if partition.shard.contact.is_too_silent:
            self._world.attempt(partition.shard.refresh)

    def _repeat(self) -> None:
        """Send a batch of a producer again: it is answered with the offsets that it has."""
        partition = self._some()
        if partition is None:
            return
        world, ledger = self._world, self._world.ledger(partition)
        # The last of those that were sent twice: a log that has forgotten the first one took the other.
        sent = {one.producer: one for one in ledger.batches if one.producer.producer_id == 7}
        if not sent:
            return
        batch, level = self._random.choice(list(sent.values())[-4:]), self._level(ledger)
        world.say(f"repeat the batch at {batch.base_offset} of {partition.topic_partition} at {level}")
        self._hear(partition)
        futures: list[asyncio.Future[AppendInfo]] = []
        world.attempt(lambda: futures.append(world.process.append(partition, batch.data, level)))
        if world.process.is_dead or not futures:
            return
        if batch.end_offset <= ledger.log_start_offset and partition.log_end_offset > ledger.end_offset:
            # Another machine learns of producers from the records that are left.
            again = ledger.records[batch.base_offset : batch.end_offset]
            batch = ledger.append(again, batch.data, batch.producer)
        assert partition.log_end_offset == ledger.end_offset, "a repeated batch is in the log again"
        error = futures[0].exception() if futures[0].done() else None
        if isinstance(error, OutOfOrderSequenceError) and not ledger.is_known_again(batch):
            return
        if isinstance(error, RecordsLostError) and batch.base_offset < ledger.log_start_offset:
            return
        self._note(Waiting(futures[0], ledger, batch), level)

    def _roll(self) -> None:
        if (partition := self._some()) is not None:
            self._pass(f"roll {partition.topic_partition}", partition.log.roll)

    def _flush(self) -> None:
        if (partition := self._some()) is None:
            return
        ledger = self._world.ledger(partition)
        self._pass(f"flush {partition.topic_partition}", partition.log.flusher.flush)
        if not self._world.process.is_dead:
            ledger.note_durable(ledger.end_offset, is_tiered=False)

    def _wait_shortly(self) -> None:
        duration_ms = self._random.choice((50, 300, 2_000))
        self._pass(f"{duration_ms} ms pass", partial(self._world.clock.advance, duration_ms))

    def _wait_long(self) -> None:
        duration_ms = self._random.choice((2 * 60_000, HOUR_MS, DAY_MS))
        self._pass(f"{duration_ms // 60_000} minutes pass", partial(self._world.clock.advance, duration_ms))
        if not self._world.process.is_dead:
            self._pass("look at the head", self._world.process.engine.tier.manager.refresh_pass)
        for store in list(self._world.held_writes()):
            self._world.say("    a late write lands")
            store.release()

    def _upload_what_is_due(self) -> None:
        self._pass("upload what is due", self._world.process.engine.tier.manager.upload_pass)

    def _upload_all(self) -> None:
        delete_local = self._random.random() < 0.3
        upload = partial(self._world.process.engine.tier.manager.upload_now, (), delete_local=delete_local)
        self._pass(f"upload all{' and delete it locally' * delete_local}", upload)

    def _delete_locally(self) -> None:
        self._pass("local retention", self._world.process.engine.local.retention.run)

    def _retain(self) -> None:
        self._pass("remote retention", self._world.process.engine.tier.manager.remote_retention_pass)

    def _delete_records(self) -> None:
        if (partition := self._some()) is None:
            return
        ledger = self._world.ledger(partition)
        end_offset = partition.watermarks().high_watermark
        offset = self._random.randint(ledger.log_start_offset, max(ledger.log_start_offset, end_offset))
        if offset > end_offset:
            return
        ledger.deletable_offset = max(ledger.deletable_offset, offset)
        results: list[int | LogStoreError] = []

        def delete() -> None:
            results.extend(delete_records([RecordDeletion.of(partition, offset)]))
            if isinstance(results[0], LogStoreError):
                raise results[0]

        self._pass(f"delete {partition.topic_partition} below {offset}", delete)
        if results and not isinstance(results[0], LogStoreError) and not self._world.process.is_dead:
            assert results[0] == offset, "the log begins where it was asked to"
            assert partition.log_start_offset == offset

    def _collect(self) -> None:
        self._pass("collect", self._world.process.engine.tier.manager.collect_pass)

    def _fold(self) -> None:
        engine = self._world.process.engine
        for tier in engine.tier.upkeep.tiers:
            self._pass("fold the shard", tier.shard.metadata.fold)
        if not self._world.process.is_dead:
            self._pass("fold the catalog", engine.topics.catalog.fold)

    def _compact(self) -> None:
        self._pass("compact", self._world.process.engine.tier.compaction.compact_pass)

    def _clean_locally(self) -> None:
        self._pass("clean a local log", self._world.process.engine.local.cleaning.workers.clean_filthiest)

    def _checkpoint(self) -> None:
        tasks = self._world.process.engine.local.logs.tasks

        def run() -> None:
            tasks.flush_rolled()
            tasks.checkpoint_recovery_points()
            tasks.checkpoint_starts()

        self._pass("flush rolled segments, write checkpoints", run)

    def _restart(self) -> None:
        world = self._world
        world.say("restart")
        world.attempt(world.process.stop)
        if not world.process.is_dead:
            world.kill()
            world.start(end_after_kill)

    def _kill(self) -> None:
        self._world.say("the process dies; start it again")
        self._world.kill()
        self._world.start(end_after_kill)

    def _lose_power(self) -> None:
        self._world.say("the machine dies; start it again")
        self._world.lose_power()
        self._world.start(end_after_power_loss)

    def _lose_disk(self) -> None:
        self._world.say("the disk is lost; start on an empty one")
        self._world.lose_disk()
        self._world.start(end_elsewhere)

    def _change_owner(self) -> None:
        """The other machine claims the shard while the former owner goes on for a while."""
        world = self._world
        self._end_spell()
        if world.process.is_dead or world.process.dies_at is not None:
            return
        world.say("the other machine takes over")
        former, waiting = world.move(), world.waiting
        world.waiting = []
        tiered_before = {id(one): one.ledger.tiered_end_offset for one in waiting}
        world.start(end_elsewhere)
        self._go_on(former)
        for one in waiting:
            if one.future.done() and one.future.exception() is None:
                end_offset = max(tiered_before[id(one)], one.ledger.tiered_end_offset)
                assert one.batch.end_offset <= end_offset, "a former owner acknowledged at object"
        world.end_former(former)

    def _go_on(self, former: EngineProcess) -> None:
        """A former owner does not know yet."""
        tiers = former.engine.tier.manager
        works: tuple[Callable[[], object], ...] = (
            lambda: self._world.clock.advance(1_000),
            tiers.upload_pass,
            lambda: tiers.upload_now((), delete_local=False),
            tiers.remote_retention_pass,
            former.engine.tier.compaction.compact_pass,
            tiers.collect_pass,
            former.engine.local.retention.run,
            tiers.refresh_pass,
        )
        for work in self._random.sample(works, 3):
            try:
                work()
            except NotOwnerError:
                self._world.say("    the former owner learns it")
            except LogStoreError as error:
                self._world.say(f"    the former owner fails: {type(error).__name__}")
        former.answer()

    def _change_topics(self) -> None:
        """Create a topic, or delete one."""
        world = self._world
        if not world.is_calm or world.process.dies_at is not None:
            return
        if len(world.topics) < 3 or self._random.random() < 0.5:
            self._create_topic()
            return
        name = self._random.choice(sorted(world.topics))
        world.say(f"delete topic {name}")
        world.process.engine.topics.manager.delete(name)
        world.process.answer()
        world.forget_topic(name)

    def _create_topic(self) -> None:
        world = self._world
        topic = random_topic(self._random, f"topic-{self._topic_count}")
        self._topic_count += 1
        world.say(f"create {topic.name} {dict(topic.config)}")
        world.topics[topic.name] = topic
        world.process.engine.topics.manager.create(topic.name, PARTITION_COUNT, topic.config)

    def _begin_spell(self) -> None:
        weather = self._world.process.weather
        weather.fault = self._random.choice(SPELLS)
        weather.probability = self._random.choice((0.05, 0.2, 0.6))
        name = "any" if weather.fault is None else weather.fault.value
        self._world.say(f"requests meet faults, {name}, one in {round(1 / weather.probability)}")

    def _end_spell(self) -> None:
        weather = self._world.process.weather
        if weather.probability:
            self._world.say("requests meet no faults any more")
        weather.probability, weather.stops_in = 0.0, None

    def _plan_death(self) -> None:
        process = self._world.process
        if self._random.random() < 0.5:
            process.weather.stops_in = self._random.randrange(12)
            self._world.say(f"the process will die in {process.weather.stops_in} requests")
            return
        operations = self._random.randrange(1, 60)
        process.die_at(process.disk.operation_count + operations, part=self._random.choice((0.0, 0.5, 1.0)))
        self._world.say(f"the process will die in {operations} operations of the disk")


def live(seed: int, *, is_stormy: bool, steps: int) -> None:
    """One life. Raises AssertionError with the seed and the steps."""
    with TierWorld(seed) as world:
        life = TierLife(world, is_stormy=is_stormy)
        try:
            life.begin()
            for _ in range(steps):
                life.step()
            life.end()
        except BaseException as error:
            error.add_note(f"seed {seed}, {'stormy' if is_stormy else 'calm'}:\n" + "\n".join(world.history))
            raise
