"""Which of two uploaders has a partition, and that a waiting tail does not wait for a backlog of segments."""

from __future__ import annotations

import random
import threading

import pytest

from stratalog.base.clock import SystemClock
from stratalog.base.errors import StoppingError, StoreUnavailableError
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.record.record import Record
from stratalog.remote.tier.upload_report import UploadReport
from stratalog.remote.tier.upload_turns import UploadTurns
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import Fault, Operation
from tests.support.tiered.tiered_logs import TieredLogs
from tests.support.tiered.tiered_site import TieredSite

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
A, B, C = (TopicIdPartition(SequentialIds(1).uuid(), number) for number in range(3))


def test_a_partition_is_with_one_uploader_at_a_time() -> None:
    turns, first, second = UploadTurns(ManualClock()), object(), object()
    assert turns.take([A, B], first) == {A, B}
    assert turns.take([A, C], second) == {C}
    assert turns.take([A], first) == {A}, "it has it already"
    turns.release([A, C], first)
    assert turns.take([A, B, C], second) == {A, C}


def test_what_the_uploader_with_precedence_wants_goes_to_it_next() -> None:
    turns, first, second = UploadTurns(ManualClock()), object(), object()
    turns.take([A, B], first)
    assert not turns.is_wanted(first)
    assert turns.take_first([A, C], second) == {C}
    assert turns.is_wanted(first)
    turns.release([A, B], first)
    assert not turns.is_wanted(first)
    assert turns.take([A, B], first) == {B}
    assert turns.take_first([A], second) == {A}
    turns.release([A], second)
    assert turns.take([A], first) == {A}
    assert turns.take_first([A], second) == set()
    assert turns.take_first([], second) == set(), "it does not want it any more"
    assert not turns.is_wanted(first)


def test_an_urgent_upload_waits_for_its_partitions_and_can_be_stopped() -> None:
    turns, first, second = UploadTurns(SystemClock()), object(), object()
    turns.take([A], first)
    waiting = threading.Thread(target=turns.take_all, args=([A, B], second, StopSignal()))
    waiting.start()
    turns.release([A], first)
    waiting.join(10)
    assert not waiting.is_alive()
    assert turns.take([A, B], first) == set()
    stop = StopSignal()
    stop.set()
    with pytest.raises(StoppingError):
        turns.take_all([A], first, stop)


class Site(TieredSite):
    """A server with a backlog of segments in one partition, and two others."""

    def __init__(self) -> None:
        super().__init__(max_object_bytes=600)
        self.is_away = False
        self.store = FaultyObjectStore(self.bucket, random.Random(0), self.fault)
        self.logs = self.start()
        self.logs.create_topic("t", 3)
        self.expected = {name: self.fill(name, count) for name, count in ((T0, 40), (T1, 1), (T2, 1))}
        self.logs.seal()

    def fault(self, operation: Operation) -> Fault:
        if not self.is_away or not operation.key.endswith("/head"):
            return Fault.NONE
        return Fault.LANDS_UNKNOWN if operation.verb == "PUT" else Fault.FAILS

    def fill(self, name: TopicPartition, count: int) -> list[Record]:
        log = self.logs.logs[name]
        records = [Record(0, number, b"k", b"v" * 40) for number in range(count)]
        found = [one for record in records for one in self.logs.append(log, [record])]
        log.flusher.flush()
        return found

    def upload_tail(self, *names: TopicPartition) -> UploadReport:
        logs = self.logs
        candidates = [logs.candidate(logs.logs[name])._replace(is_tail=True) for name in names]
        return logs.tails.upload(candidates, epoch=logs.claimed.epoch)


def tiered(logs: TieredLogs, *names: TopicPartition) -> list[list[Record]]:
    return [logs.tiered_records(logs.logs[name]) for name in names]


def test_a_tail_is_committed_in_the_middle_of_a_backlog_of_other_partitions() -> None:
    site = Site()
    reports: list[UploadReport] = []

    def between_two_objects(report: UploadReport) -> None:
        if not reports:
            site.expected[T1] += site.fill(T1, 2)
            # The segment of the partition went first, and its uploader has it still.
            reports.append(site.upload_tail(T1))
            assert report.object_count < 5

    report = site.logs.upload(on_object=between_two_objects)
    assert reports[0].has_more, "it did not get the partition"
    assert reports[0].left_out == {T1}
    assert report.has_more, "the pass has ended for it"
    assert tiered(site.logs, T0)[0] != site.expected[T0]
    assert not site.upload_tail(T1).has_more
    assert tiered(site.logs, T1) == [site.expected[T1]]
    while site.logs.upload().has_more:
        pass
    assert tiered(site.logs, T0, T1, T2) == [site.expected[name] for name in (T0, T1, T2)]


def test_a_tail_of_a_partition_without_a_backlog_does_not_end_the_pass_of_segments() -> None:
    site = Site()
    site.upload_tail(T1)
    done: list[UploadReport] = []

    def between_two_objects(_: UploadReport) -> None:
        if not done:
            site.expected[T1] += site.fill(T1, 2)
            done.append(site.upload_tail(T1))

    candidates = [site.logs.candidate(site.logs.logs[name]) for name in (T0, T2)]
    report = site.logs.uploader.upload(
        candidates, epoch=site.logs.claimed.epoch, on_object=between_two_objects
    )
    assert not report.has_more
    assert (done[0].slice_count, done[0].has_more) == (1, False)
    assert tiered(site.logs, T0, T1, T2) == [site.expected[name] for name in (T0, T1, T2)]


def test_a_partition_stays_with_an_uploader_that_does_not_know_what_became_of_its_commit() -> None:
    site = Site()
    site.is_away = True
    with pytest.raises(StoreUnavailableError):
        site.upload_tail(T1)
    site.is_away = False
    site.expected[T1] += site.fill(T1, 2)
    site.logs.logs[T1].roll()
    site.logs.logs[T1].flusher.flush()
    assert site.logs.upload(is_urgent=False).refused == []
    assert site.upload_tail(T1).refused == []
    while site.logs.upload().has_more:
        pass
    assert tiered(site.logs, T0, T1, T2) == [site.expected[name] for name in (T0, T1, T2)]
