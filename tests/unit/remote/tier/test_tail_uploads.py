"""Uploads of tails that callers wait for: all that is fsynced, in the middle of a segment, open transactions
included, and never more."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress

import pytest

from stratalog.base.errors import StoppingError, StoreUnavailableError
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import Durability, TopicIdPartition, TopicPartition
from stratalog.log.isolation import Isolation
from stratalog.log.producers.producer_snapshot import ProducerSnapshot
from stratalog.log.producers.producer_state_entry import ProducerStateEntry
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch import batches
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import NO_PRODUCER, encode_batch
from stratalog.record.record import Record
from stratalog.remote.tier import slice_producers
from stratalog.remote.tier.partition_upload import UploadCandidate
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from stratalog.testing.store_faults import FAULTS_OF_VERB, Fault, Operation
from tests.support.decoded_records import decode_all
from tests.support.logs.sampling import some_seeds
from tests.support.tiered.object_audit import audit_object
from tests.support.tiered.tiered_site import TieredSite

T0 = TopicPartition("t", 0)
NOW_MS = ManualClock().now_ms()
OBJECT = {"min.durability": "object", "segment.bytes": "1024"}


def record(number: int) -> Record:
    return Record(0, NOW_MS + number, b"k%d" % (number % 3), b"v" * (number % 50))


def tip_of(log: UnifiedLog) -> TopicIdPartition:
    return TopicIdPartition(log.topic_id, log.topic_partition.partition)


def snapshot_of(log: UnifiedLog, offset: int) -> ProducerSnapshot:
    """The producers of the local log there, with as much of each as a snapshot has."""
    return ProducerSnapshot.from_bytes(offset, log.state_transfer.producers_at(offset).to_bytes())


def test_consumers_see_the_tail_once_it_is_committed() -> None:
    logs = TieredSite().start()
    logs.create_topic("t", 1, OBJECT)
    log = logs.logs[T0]
    first = logs.append(log, [record(1), record(2)])
    log.flusher.flush()
    assert log.offsets.min_durability is Durability.OBJECT
    assert log.offsets.high_watermark == 0
    report = logs.upload_tails()
    assert (report.slice_count, report.failed, report.refused) == (1, [], [])
    assert logs.tiered_records(log) == first
    assert log.offsets.high_watermark == 2
    logs.append(log, [record(3)])
    assert logs.upload_tails().object_count == 0, "it is not fsynced, and a crash could take it"
    assert log.offsets.high_watermark == 2
    log.offsets.check()


def test_a_segment_that_is_rolled_behind_its_uploaded_beginning_goes_on_there() -> None:
    logs = TieredSite().start()
    logs.create_topic("t", 1)
    log = logs.logs[T0]
    appended = logs.append(log, [record(1)])
    log.flusher.flush()
    logs.upload_tails()
    appended += logs.append(log, [record(2)])
    logs.seal()
    appended += logs.append(log, [record(3)])
    log.flusher.flush()
    assert logs.upload().slice_count == 1, "only what is rolled"
    assert logs.tiered_records(log) == appended[:2]
    assert logs.upload_tails().slice_count == 1
    assert logs.tiered_records(log) == appended


def test_what_was_visible_stays_visible_when_the_level_of_the_topic_grows() -> None:
    logs = TieredSite().start()
    topic = logs.create_topic("t", 1)
    log = logs.logs[T0]
    logs.append(log, [record(1), record(2)])
    config = log.local_log.config.from_overrides(OBJECT)
    log.reconfigure(config)
    assert topic.topic_id == log.topic_id
    assert log.offsets.recovery_point == 2, "an upload may take it"
    logs.append(log, [record(3)])
    log.flusher.flush()
    assert log.offsets.high_watermark == 2
    logs.upload_tails()
    assert log.offsets.high_watermark == 3
    log.offsets.check()


def test_partitions_take_turns_to_be_the_first_one_that_knows_of_a_commit() -> None:
    logs = TieredSite().start()
    logs.create_topic("t", 3, OBJECT)
    told: list[int] = []
    firsts: list[int] = []
    for round_number in range(6):
        candidates: list[UploadCandidate] = []
        for name, log in logs.logs.items():
            logs.append(log, [record(round_number)])
            log.flusher.flush()

            def note(reason: str | None, log: UnifiedLog = log, partition: int = name.partition) -> None:
                assert reason is None
                assert log.offsets.tiered_end_offset == log.offsets.log_end_offset
                told.append(partition)

            candidates.append(logs.candidate(log)._replace(is_tail=True, on_tiered=note))
        logs.tails.upload(candidates, epoch=logs.claimed.epoch)
        assert sorted(told) == [0, 1, 2]
        firsts.append(told[0])
        told.clear()
    assert sorted(firsts) == [0, 0, 1, 1, 2, 2]


class StopsAtLook(StopSignal):
    """Is set at one of its looks."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left_count = number

    def check(self) -> None:
        self.left_count -= 1
        if self.left_count == 0:
            raise StoppingError("stopped, maybe in the middle of a slice")


@pytest.mark.parametrize("number", range(1, 8))
def test_a_pass_that_ends_inside_of_a_slice_leaves_no_producers_of_its_middle(number: int) -> None:
    logs = TieredSite(read_bytes=100).start()
    logs.create_topic("t", 1)
    log = logs.logs[T0]
    for sequence in range(2):
        producer = BatchProducer(7, 0, sequence, is_transactional=True)
        epoch = logs.claimed.epoch
        log.appender.append_as_leader(encode_batch([record(sequence)], producer=producer), epoch)
        log.appender.append_end_transaction_marker(7, 0, 0, committed=False, leader_epoch=epoch)
    log.flusher.flush()
    candidate = logs.candidate(log)._replace(is_tail=True)
    with suppress(StoppingError):
        logs.tails.upload([candidate], epoch=logs.claimed.epoch, stop=StopsAtLook(number))
    logs.upload_tails()
    found = logs.reader.read(tip_of(log), 0, 1 << 20, Isolation.TXN_COMMITTED)
    assert [one.first_offset for one in found.aborted_transactions] == [0, 2]
    state = logs.reader.state_at_end(tip_of(log))
    assert state is not None
    assert state.producers == snapshot_of(log, 4)


class RandomHistory:
    """Random appends, rolls, fsyncs, uploads, retention and restarts over one store. Not thread-safe."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.site = TieredSite(max_object_bytes=self.random.choice((400, 4000, 1 << 20)))
        self.logs = self.site.start()
        self.logs.create_topic("t", 1, OBJECT)
        self.appended: list[Record] = []
        self.sequences: dict[int, int] = {}
        self.opened: set[int] = set()
        self.in_transaction: dict[int, list[int]] = {}
        self.aborted: set[int] = set()
        self.offsets_of: dict[int, list[int]] = defaultdict(list)

    @property
    def log(self) -> UnifiedLog:
        return self.logs.logs[T0]

    def step(self) -> None:
        name, *_ = self.random.choices(
            ("append", "end", "roll", "flush", "tails", "segments", "delete", "restart", "lose"),
            (20, 4, 2, 8, 8, 2, 1, 1, 1),
        )
        step: Callable[[], object] = getattr(self, name)
        step()

    def append(self) -> None:
        producer_id = self.random.randrange(-1, 200)
        records = [record(self.random.randrange(50)) for _ in range(self.random.randint(1, 3))]
        sequence = self.sequences.get(producer_id, 0)
        producer = NO_PRODUCER
        if producer_id >= 0:
            is_open = producer_id in self.opened or self.random.random() < 0.1
            self.opened |= {producer_id} if is_open else set()
            producer = BatchProducer(producer_id, 0, sequence, is_open)
            self.sequences[producer_id] = sequence + len(records)
        data = encode_batch(records, producer=producer)
        info = self.log.appender.append_as_leader(data, self.logs.claimed.epoch)
        self.appended += [one._replace(offset=info.base_offset + n) for n, one in enumerate(records)]
        self.offsets_of[producer_id] += range(info.base_offset, info.last_offset + 1)
        if producer_id in self.opened:
            offsets = range(info.base_offset, info.last_offset + 1)
            self.in_transaction.setdefault(producer_id, []).extend(offsets)

    def end(self) -> None:
        if self.opened:
            producer_id = self.random.choice(sorted(self.opened))
            self.opened.discard(producer_id)
            offsets, is_committed = self.in_transaction.pop(producer_id), self.random.random() < 0.5
            self.aborted |= set() if is_committed else set(offsets)
            self.log.appender.append_end_transaction_marker(
                producer_id, 0, 0, committed=is_committed, leader_epoch=self.logs.claimed.epoch
            )

    def roll(self) -> None:
        self.log.roll()

    def flush(self) -> None:
        self.log.flusher.flush()

    def tails(self) -> None:
        report = self.logs.upload_tails()
        assert (report.failed, report.refused) == ([], [])
        self.check()
        assert self.log.offsets.tiered_end_offset == self.log.offsets.recovery_point

    def segments(self) -> None:
        report = self.logs.upload()
        assert (report.failed, report.refused) == ([], [])
        self.check()

    def delete(self) -> None:
        """DeleteRecords up to somewhere below the tiered end."""
        state = self.logs.metadata.state().partition(tip_of(self.log))
        if state.tiered_end_offset > state.log_start_offset:
            offset = self.random.randrange(state.log_start_offset, state.tiered_end_offset)
            starts = {tip_of(self.log): offset}
            self.logs.metadata.advance_log_start(starts, epoch=self.logs.claimed.epoch, catalog_seq=None)
            self.log.increment_log_start_offset(offset)

    def restart(self) -> None:
        """A crash of the machine: the disk keeps what was synced."""
        durable_offset = self.log.offsets.recovery_point
        self.site.disk = self.site.disk.after_crash(Survival(Kept.NONE, Kept.NONE))
        self.begin_again(durable_offset)

    def lose(self) -> None:
        """Another machine with an empty disk."""
        self.site.disk = MemoryFileSystem()
        self.begin_again(self.log.offsets.tiered_end_offset)

    def begin_again(self, least_offset: int) -> None:
        log_start = self.log.offsets.log_start_offset
        before = {entry.producer_id: entry for entry in snapshot_of(self.log, least_offset).entries}
        self.logs = self.site.start()
        end_offset = self.log.offsets.log_end_offset
        assert end_offset >= least_offset, "what was acknowledged is there"
        self.appended = [one for one in self.appended if one.offset < end_offset]
        for offsets in self.offsets_of.values():
            offsets[:] = [one for one in offsets if one < end_offset]
        after = {entry.producer_id: entry for entry in snapshot_of(self.log, end_offset).entries}
        if end_offset == least_offset:
            for producer_id, entry in before.items():
                # Those that are forgotten have no record that can be read.
                forgettable = entry.batches and entry.batches[-1].last_offset < log_start
                assert after.get(producer_id) == entry or (forgettable and producer_id not in after)
        self.sequences = {one: entry.next_sequence for one, entry in after.items()}
        self.opened = {one for one, entry in after.items() if entry.current_txn_first_offset is not None}
        # Of a transaction that ended behind the loss all that is left is open again.
        self.aborted = {one for one in self.aborted if one < end_offset}
        for producer_id in self.opened:
            self.in_transaction[producer_id] = self.open_offsets(producer_id, after[producer_id])

    def open_offsets(self, producer_id: int, entry: ProducerStateEntry) -> list[int]:
        first_offset = entry.current_txn_first_offset
        assert first_offset is not None
        offsets = [one for one in self.offsets_of[producer_id] if one >= first_offset]
        self.aborted.difference_update(offsets)
        return [one for one in offsets if one < self.log.offsets.log_end_offset]

    def check(self) -> None:
        state = self.logs.metadata.state().partition(tip_of(self.log))
        self.logs.metadata.check()
        self.log.offsets.check()
        assert self.log.offsets.high_watermark == max(state.tiered_end_offset, state.log_start_offset)
        assert state.tiered_end_offset <= self.log.offsets.recovery_point
        expected = [
            one for one in self.appended if state.log_start_offset <= one.offset < state.tiered_end_offset
        ]
        stored = {one.offset: one for one in self.logs.tiered_records(self.log)}
        assert [stored.pop(one.offset) for one in expected] == expected
        self.check_transactions()
        for found in self.logs.metadata.state().objects.values():
            audit_object(self.logs.store, self.logs.metadata.layout, found.ref)

    def check_transactions(self) -> None:
        """The store alone says of each transaction what the local log says."""
        state = self.logs.metadata.state().partition(tip_of(self.log))
        opened = snapshot_of(self.log, state.tiered_end_offset).entries
        first_offsets = [
            one.current_txn_first_offset for one in opened if one.current_txn_first_offset is not None
        ]
        assert sorted(one.first_offset for one in state.open_transactions) == sorted(first_offsets)
        committed = [
            one.offset
            for one in self.appended
            if state.log_start_offset <= one.offset < state.stable_end_offset
            and one.offset not in self.aborted
        ]
        assert [one for one in self.committed_offsets() if one >= state.log_start_offset] == committed

    def committed_offsets(self) -> list[int]:
        """The offsets that a reader of committed records gets from the store alone."""
        state = self.logs.metadata.state().partition(tip_of(self.log))
        offset, found = state.log_start_offset, list[int]()
        while offset < state.stable_end_offset:
            data = self.logs.reader.read(tip_of(self.log), offset, 1 << 20, Isolation.TXN_COMMITTED)
            for position, header in batches(data.batches):
                is_aborted = header.is_transactional and any(
                    one.producer_id == header.producer_id
                    and one.first_offset <= header.base_offset < one.last_offset
                    for one in data.aborted_transactions
                )
                if not is_aborted and not header.is_control:
                    end_position = position + header.size_in_bytes
                    found += [one.offset for one in decode_all(data.batches[position:end_position])]
            offset = data.next_offset
        return found


@pytest.mark.parametrize("seed", some_seeds(20))
def test_the_store_agrees_with_the_log_whatever_comes_between_two_uploads(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slice_producers, "SMALL_PRODUCER_COUNT", 3)
    monkeypatch.setattr(slice_producers, "MAX_PART_COUNT", 5)
    history = RandomHistory(seed)
    for _ in range(250):
        history.step()
    history.flush()
    history.tails()
    history.lose()


class StopsAt:
    """One fault at an operation, counted from 0 while the plan is on. Not thread-safe."""

    def __init__(self, number: int, fault: Fault) -> None:
        self.count = 0
        self.is_on = False
        self._number, self._fault = number, fault

    def __call__(self, operation: Operation) -> Fault:
        if not self.is_on:
            return Fault.NONE
        self.count += 1
        is_hit = self.count == self._number + 1 and self._fault in FAULTS_OF_VERB[operation.verb]
        return self._fault if is_hit else Fault.NONE


@pytest.mark.parametrize("fault", [one for one in Fault if one is not Fault.NONE])
@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize("is_lost", [False, True])
def test_what_counts_as_committed_is_in_the_bucket_whichever_request_fails_or_is_the_last(
    number: int, fault: Fault, *, is_lost: bool
) -> None:
    plan = StopsAt(number, fault)
    site = TieredSite()
    site.store = faulty = FaultyObjectStore(site.bucket, random.Random(0), plan)
    logs = site.start()
    logs.create_topic("t", 2, OBJECT)
    appended: dict[TopicPartition, list[Record]] = {name: [] for name in logs.logs}
    promised: dict[TopicPartition, int] = {}
    plan.is_on = True
    try:
        for turn in range(2):
            for name, log in logs.logs.items():
                appended[name] += logs.append(log, [record(turn), record(turn + 1)])
                log.flusher.flush()
            with suppress(StoreUnavailableError):
                logs.upload_tails()
            # What an append waits for, and a consumer sees.
            promised = {name: log.offsets.high_watermark for name, log in logs.logs.items()}
    except ActorStopped:
        promised = {name: log.offsets.high_watermark for name, log in logs.logs.items()}
    plan.is_on = False
    faulty.release_all()
    site.store = site.bucket
    disk = MemoryFileSystem() if is_lost else site.disk.after_crash(Survival(Kept.NONE, Kept.NONE))
    logs = site.start(disk)
    for name, log in logs.logs.items():
        assert log.offsets.log_end_offset >= promised[name]
        assert logs.tiered_records(log)[: promised[name]] == appended[name][: promised[name]]
    for name, log in logs.logs.items():
        del appended[name][log.offsets.log_end_offset :]
        log.flusher.flush()
    assert logs.upload_tails().refused == []
    for name, log in logs.logs.items():
        assert logs.tiered_records(log) == appended[name], "each once, and in order"
    logs.metadata.check()
