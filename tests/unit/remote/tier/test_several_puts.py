"""Uploads with several objects on their way at once, whatever the order in which the store takes them."""

from __future__ import annotations

import gc
import itertools
import random
import weakref
from collections.abc import Mapping
from typing import Any, Self
from unittest.mock import patch

import pytest

from stratalog.base.errors import CorruptRecordError, StoreUnavailableError
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicPartition
from stratalog.log.read.log_reader import LogReader
from stratalog.log.unified_log import UnifiedLog
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.record import Record
from stratalog.remote.objects.object_writer import FinishedObject, ObjectWriter
from stratalog.remote.objects.repeated_put import PutAttempts
from stratalog.remote.objects.scratch_disk import ScratchDisk
from stratalog.remote.objects.spool import FilePart, Spool
from stratalog.remote.objects.spool_memory import SpoolMemory
from stratalog.remote.store_layout import StoreLayout
from stratalog.remote.tier import upload_pass
from stratalog.remote.tier.object_put import ObjectPut, PutSettings
from stratalog.remote.tier.upload_budget import UploadBudget
from stratalog.remote.tier.upload_report import UploadReport
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import Kept, Survival
from stratalog.testing.store_faults import FAULTS_OF_VERB, Fault, FaultOn, FaultPlan, Operation
from tests.support.logs.overwriting import flip
from tests.support.logs.sampling import Sampling, some_seeds
from tests.support.tiered.late_sends import LateSends
from tests.support.tiered.object_audit import audit_object
from tests.support.tiered.tiered_logs import TieredLogs
from tests.support.tiered.tiered_site import TieredSite

PREFIX = "shards/0000/data/"
MINUTE_MS = 60_000
BATCHES = {TopicPartition("t", 0): 40, TopicPartition("t", 1): 3, TopicPartition("t", 2): 12}


def fill(logs: TieredLogs, log: UnifiedLog, batch_count: int) -> list[Record]:
    return [
        found
        for number in range(batch_count)
        for found in logs.append(log, [Record(0, 1000 + number, b"k%d" % (number % 3), b"v" * 40)])
    ]


class SendingSite:
    """A site whose uploader sends several objects at once. Not thread-safe."""

    def __init__(self, seed: int = 0, **uploader_settings: Any) -> None:
        self.site = TieredSite(max_object_bytes=600)
        self.sends = LateSends(self.site.clock, seed)
        self.site.store = FaultyObjectStore(self.site.bucket, random.Random(0), before=self.sends.hang)
        self.uploader_settings = {"put_count": 3, **uploader_settings}
        self.logs = self.start()
        self.logs.create_topic("t", len(BATCHES))
        self.expected: Mapping[TopicPartition, list[Record]] = {
            name: fill(self.logs, log, BATCHES[name]) for name, log in self.logs.logs.items()
        }
        self.logs.seal()

    def start(self, **options: Any) -> TieredLogs:
        self.logs = self.site.start(sends=self.sends, uploader_settings=self.uploader_settings, **options)
        return self.logs

    def check(self) -> None:
        """All is in the store once, and the slices tile."""
        self.logs.metadata.refresh()
        self.logs.metadata.check()
        for name, log in self.logs.logs.items():
            assert self.logs.tiered_records(log) == self.expected[name]
            assert log.offsets.tiered_end_offset == log.offsets.log_end_offset
        for found in self.logs.metadata.state().objects.values():
            audit_object(self.logs.store, self.logs.metadata.layout, found.ref)
        assert self.site.disk.list_directory("/spool") == []


@pytest.mark.parametrize("seed", some_seeds(12))
def test_objects_may_arrive_in_any_order(seed: int) -> None:
    site = SendingSite(seed)
    report = site.logs.upload()
    assert (report.failed, report.refused) == ([], [])
    assert site.sends.max_count == 3
    assert site.logs.metadata.state().seq < report.object_count, "one commit has several objects"
    site.check()


PUT_FAULTS = [fault for fault in FAULTS_OF_VERB["PUT"] if fault is not Fault.NONE]
FAULTS = itertools.product([PREFIX, "shards/0000/head"], PUT_FAULTS, range(1, 7), [False, True])


@pytest.mark.parametrize(("prefix", "fault", "occurrence", "lasts"), Sampling().at_most(list(FAULTS), 48))
def test_a_fault_of_any_put_loses_and_doubles_nothing(
    prefix: str, fault: Fault, occurrence: int, *, lasts: bool
) -> None:
    """Once, which is tried again, or from then on for all objects: 503, time-outs before and after the
    effect, writes that land later, and a stop."""
    site = SendingSite(occurrence)
    site.logs.close()
    plan: list[FaultPlan] = []
    faulty = FaultyObjectStore(
        site.site.bucket, random.Random(0), lambda operation: plan[0](operation) if plan else Fault.NONE
    )
    site.site.store = faulty
    logs = site.start()
    once = FaultOn(fault, "PUT", prefix, occurrence)
    is_lasting = False

    def fails(operation: Any) -> Fault:
        nonlocal is_lasting
        if is_lasting and operation.verb == "PUT" and operation.key.startswith(prefix):
            return fault
        found = once(operation)
        is_lasting = lasts and found is fault
        return found

    plan.append(fails)
    with_restart = False
    try:
        logs.upload()
    except StoreUnavailableError:
        pass
    except ActorStopped:
        with_restart = True
    plan.clear()
    faulty.release_all()
    if with_restart:
        site.site.disk = site.site.disk.after_crash(Survival(Kept.NONE, Kept.NONE))
        site.site.store = site.site.bucket
        logs = site.start()
    report = logs.upload()
    assert (report.failed, report.refused) == ([], [])
    site.check()


class StopAt:
    """A stop at an operation, counted from 0 while the plan is on. Not thread-safe."""

    def __init__(self, fault: Fault, number: int) -> None:
        self.is_on = False
        self._fault = fault
        self._left_count = number

    def __call__(self, _: Operation) -> Fault:
        self._left_count -= self.is_on
        return self._fault if self.is_on and self._left_count == -1 else Fault.NONE


@pytest.mark.parametrize("fault", [Fault.STOPS_BEFORE, Fault.STOPS_AFTER])
def test_a_stop_at_any_operation_of_the_store_loses_and_doubles_nothing(fault: Fault) -> None:
    """Every request of a pass, reads of the head included."""
    for number in itertools.count():
        site = SendingSite(number)
        site.logs.close()
        plan = StopAt(fault, number)
        site.site.store = FaultyObjectStore(site.site.bucket, random.Random(0), plan)
        logs = site.start()
        plan.is_on = True
        try:
            logs.upload()
        except ActorStopped:
            site.site.disk = site.site.disk.after_crash(Survival(Kept.NONE, Kept.NONE))
            site.site.store = site.site.bucket
            site.start().upload()
            site.check()
        else:
            plan.is_on = False
            site.check()
            assert number > 10
            break


def test_a_thousand_partitions_make_few_requests() -> None:
    """At a scale of 1 : 1024, with the object size of the server: 1 GiB in 1,000 partitions."""
    puts: list[str] = []

    def note(operation: Operation) -> None:
        if operation.verb == "PUT":
            puts.append(operation.key)

    site = TieredSite(max_object_bytes=60 << 10, memory_bytes=1 << 20)
    site.store = FaultyObjectStore(site.bucket, random.Random(0), before=note)
    logs = site.start()
    logs.create_topic("t", 1_000)
    for number in range(1_000):
        logs.append(logs.logs[TopicPartition("t", number)], [Record(0, 1000, b"k", bytes(960))])
    logs.seal()
    puts.clear()
    report = logs.upload()
    assert 1_000_000 < report.data_bytes < 1 << 20
    objects = [key for key in puts if key.startswith(PREFIX)]
    assert len(objects) <= 1.2 * (1 << 20) / (64 << 10)
    assert len(puts) <= 2 * len(objects), "and at most as many commits"


def test_an_upload_that_hangs_is_given_up_and_tried_again() -> None:
    site = SendingSite(stall_ms=5 * MINUTE_MS)
    site.sends.hanging_count = 1
    begin_ms = site.site.clock.now_ms()
    with pytest.raises(StoreUnavailableError) as failure:
        site.logs.upload()
    assert site.site.clock.now_ms() - begin_ms == 5 * MINUTE_MS
    assert failure.value.fields["silent_s"] == 300
    # The next pass does not wait for the one that hangs, whose bytes it must not touch.
    assert site.logs.upload().failed == []
    site.sends.release()
    site.check()


def test_hanging_uploads_do_not_pile_up() -> None:
    site = SendingSite(put_count=2)
    site.sends.hanging_count = 2
    with pytest.raises(StoreUnavailableError):
        site.logs.upload()
    assert site.sends.hanging_count == 0
    before = len(list(site.site.bucket.list(PREFIX)))
    with pytest.raises(StoreUnavailableError) as failure:
        site.logs.upload()
    assert failure.value.fields["hanging"] == 2
    assert len(list(site.site.bucket.list(PREFIX))) == before, "nothing more is sent"
    site.sends.release()
    site.logs.upload()
    site.check()


def test_a_large_backlog_does_not_hold_up_the_others() -> None:
    """The first object has the oldest records of each."""
    site = SendingSite(put_count=1)
    seen: list[set[TopicPartition]] = []

    def note(_: UploadReport) -> None:
        seen.append({name for name, log in site.logs.logs.items() if log.offsets.tiered_end_offset})

    site.logs.upload(on_object=note)
    assert seen[0] == set(BATCHES)
    assert len(seen) > 5
    site.check()


def test_a_pass_that_is_not_urgent_ends_so_that_others_get_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upload_pass, "PASS_OBJECT_COUNT", 2)
    site = SendingSite()
    first = site.logs.upload(is_urgent=False)
    assert (first.object_count, first.has_more) == (2, True)
    assert all(log.offsets.tiered_end_offset for log in site.logs.logs.values()), "each had its turn"
    while site.logs.upload(is_urgent=False).has_more:
        pass
    site.site.clock.advance(5 * MINUTE_MS)
    site.logs.upload(is_urgent=False)
    site.check()


def test_a_small_rest_waits_for_others_until_it_is_old() -> None:
    site = TieredSite()
    logs = site.start()
    logs.create_topic("t", 2, {"remote.copy.max.age.ms": str(2 * MINUTE_MS)})
    first, second = logs.logs.values()
    fill(logs, first, 3)
    logs.seal()
    site.clock.advance(2 * MINUTE_MS - 1)
    fill(logs, second, 3)
    logs.seal()
    report = logs.upload(is_urgent=False)
    assert (report.object_count, report.has_more) == (0, False)
    site.clock.advance(1)
    report = logs.upload(is_urgent=False)
    assert (report.object_count, report.slice_count) == (1, 2)


def test_the_age_of_a_tail_is_known_after_a_restart() -> None:
    site = TieredSite()
    logs = site.start()
    logs.create_topic("t", 1)
    (log,) = logs.logs.values()
    tails = [log.reader.tail_since_ms]
    site.clock.advance(MINUTE_MS)
    begin_ms = site.clock.now_ms()
    fill(logs, log, 1)
    site.clock.advance(MINUTE_MS)
    fill(logs, log, 1)
    tails.append(log.reader.tail_since_ms)
    site.disk.set_modified_ms("/data/t-0/00000000000000000000.log", begin_ms + 7)
    logs.close()
    site.clock.advance(MINUTE_MS)
    logs = site.start()
    (log,) = logs.logs.values()
    tails.append(log.reader.tail_since_ms)
    log.roll()
    tails.append(log.reader.tail_since_ms)
    assert tails == [None, begin_ms, begin_ms + 7, None]


def test_a_failing_partition_is_left_alone_for_longer_and_longer() -> None:
    site = TieredSite()
    logs = site.start()
    logs.create_topic("t", 2, {"remote.copy.max.age.ms": "1"})
    for log in logs.logs.values():
        fill(logs, log, 2)
    logs.seal()
    logs.close()
    flip(site.disk, "/data/t-1/00000000000000000000.log", -5)
    logs = site.start()
    site.clock.advance(10)
    tried_at_s: list[int] = []
    with patch.object(
        LogReader, "prove_headers", autospec=True, side_effect=LogReader.prove_headers
    ) as prove:
        for at_s in range(0, 1_200, 5):
            prove.reset_mock()
            [failed] = logs.upload(is_urgent=False).failed
            assert isinstance(failed.error, CorruptRecordError)
            assert failed.topic_partition == TopicPartition("t", 1)
            if any(call.args[0] is logs.logs[failed.topic_partition].reader for call in prove.call_args_list):
                tried_at_s.append(at_s)
            site.clock.advance(5_000)
        assert tried_at_s == [0, 10, 30, 70, 150, 310, 610, 910]
        # An operator's upload tries it at once.
        prove.reset_mock()
        assert len(logs.upload().failed) == prove.call_count == 1
    healthy, _ = logs.logs.values()
    assert healthy.offsets.tiered_end_offset == healthy.offsets.log_end_offset


def test_uploads_keep_to_their_budgets() -> None:
    site = SendingSite(max_bytes_per_s=500, max_requests_per_s=10, stall_ms=1_000)
    begin_s = site.site.clock.monotonic_s()
    report = site.logs.upload()
    took_s = site.site.clock.monotonic_s() - begin_s
    assert took_s >= report.object_bytes / 500 - 3, "of the last piece nothing waits"
    site.check()
    # A limit of requests alone.
    site = SendingSite(max_requests_per_s=2)
    begin_s = site.site.clock.monotonic_s()
    report = site.logs.upload()
    assert site.site.clock.monotonic_s() - begin_s >= (report.object_count - 1) / 2


class ClosedWhileSent:
    """The writer of an object whose put is given up while the object is sent. Not thread-safe."""

    def __init__(self) -> None:
        clock = ManualClock()
        self.lingered_at_close: list[bool] = []
        writer: Any = self
        layout = StoreLayout(0)
        settings = PutSettings(PutAttempts(attempt_count=1, backoff_ms=1), stall_ms=1000)
        budget = UploadBudget(clock)
        self.put = ObjectPut(clock, MemoryObjectStore(clock), layout, writer, budget, StopSignal(), settings)

    def finish(self) -> Self:
        return self

    def without_bytes(self) -> Self:
        return self

    def store(self, *_: object, **__: object) -> None:
        self.put.close()

    def close(self) -> None:
        self.lingered_at_close.append(self.put.is_lingering)


def test_the_place_of_a_put_that_was_given_up_is_free_after_its_files() -> None:
    """A pass on another thread may get the place, with the directory of those files, and clear it."""
    writer = ClosedWhileSent()
    writer.put.run()
    assert writer.lingered_at_close == [True]
    assert not writer.put.is_lingering


def test_no_byte_of_an_object_is_kept_behind_its_pass() -> None:
    """Objects are large, and the next pass may begin much later."""
    site = SendingSite()
    sent: list[weakref.ref[Any]] = []
    finish = ObjectWriter.finish

    def finishing(writer: ObjectWriter) -> FinishedObject:
        finished = finish(writer)
        sent.append(weakref.ref(finished.parts))
        return finished

    with patch.object(ObjectWriter, "finish", finishing):
        site.logs.upload()
    assert len(sent) > 3
    gc.collect()
    assert [part() for part in sent] == [None] * len(sent)
    site.check()


def limited_memory(logs: TieredLogs, limit_bytes: int) -> SpoolMemory:
    """Let the uploader of segments have so much memory for all of its objects."""
    memory = SpoolMemory(limit_bytes)
    logs.uploader._builder._memory = memory  # pyright: ignore[reportPrivateUsage]  # smaller than a server's
    return memory


def test_objects_beyond_the_memory_of_all_are_in_files() -> None:
    site = SendingSite()
    memory = limited_memory(site.logs, 1_000)
    left_bytes: list[int] = []
    finish = ObjectWriter.finish

    def finishing(writer: ObjectWriter) -> FinishedObject:
        finished = finish(writer)
        left_bytes.append(memory.left_bytes)
        # The parts of a file are read when they are sent.
        in_files.append(any(isinstance(part, FilePart) for part in finished.parts._parts))  # pyright: ignore[reportPrivateUsage]  # nothing else shows it
        return finished

    in_files: list[bool] = []
    with patch.object(ObjectWriter, "finish", finishing):
        site.logs.upload()
    assert site.sends.max_count == 3
    assert 0 <= min(left_bytes) < 1_000 - 600, "one object is in memory"
    assert set(in_files) == {False, True}
    assert memory.left_bytes == 1_000
    site.check()


def test_on_a_full_disk_objects_are_sent_one_by_one_from_memory() -> None:
    site = SendingSite()
    memory = limited_memory(site.logs, 1_000)

    def refuse(*_: object) -> None:
        raise AssertionError("a full disk has no room for a file")

    with (
        patch.object(ScratchDisk, "free_bytes", return_value=0),
        patch.object(Spool, "_write", refuse),
    ):
        report = site.logs.upload()
    assert (report.failed, report.refused) == ([], [])
    assert site.sends.max_count == 1
    assert memory.left_bytes == 1_000
    site.check()
