"""A pass over tails goes on with what is fsynced meanwhile: several objects of a partition on their way, each
record once and in order, whatever fails."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from contextlib import suppress

import pytest

from stratalog.base.errors import StoreUnavailableError
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.shard_judge import NOT_AT_TIERED_END
from stratalog.remote.tier.partition_upload import PartitionUpload, UploadCandidate
from stratalog.remote.tier.upload_report import UploadReport
from stratalog.testing.faulty_object_store import FaultyObjectStore
from stratalog.testing.store_faults import Fault, Operation
from tests.support.logs.sampling import some_seeds
from tests.support.tiered.late_sends import LateSends
from tests.support.tiered.object_audit import audit_object
from tests.support.tiered.tiered_site import TieredSite

T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
OBJECT = {"min.durability": "object", "segment.bytes": "2048"}


class BusySite:
    """Logs that are appended to while a pass over their tails runs. Not thread-safe."""

    def __init__(self, seed: int, *, is_deleting: bool = False) -> None:
        self.random = random.Random(seed)
        self.site = TieredSite(max_object_bytes=600)
        self.is_failing, self.is_deleting = False, is_deleting
        self.sends = LateSends(self.site.clock, seed)
        self.faulty = FaultyObjectStore(
            self.site.bucket, random.Random(seed), self.fault, before=self.sends.hang
        )
        self.site.store = self.faulty
        # The newest batches come from memory, or from files, or from both.
        tail_bytes = random.Random(seed).choice([0, 4_000, 1 << 20])
        self.logs = self.site.start(
            sends=self.sends, uploader_settings={"put_count": 3}, tail_bytes=tail_bytes
        )
        self.sends.on_wait = self.note_more
        # Records that consumers do not see yet cannot be deleted.
        self.logs.create_topic("t", 3, {"segment.bytes": "2048"} if is_deleting else OBJECT)
        self.expected: dict[TopicPartition, list[Record]] = {name: [] for name in self.logs.logs}
        self.round_count = 0

    def fault(self, operation: Operation) -> Fault:
        is_hit = self.is_failing and operation.verb == "PUT" and self.random.random() < 0.2
        return self.random.choice([Fault.FAILS, Fault.LANDS_UNKNOWN]) if is_hit else Fault.NONE

    def append(self) -> Sequence[UploadCandidate]:
        """Append to some of the logs, fsync them, and return them as candidates."""
        found: list[UploadCandidate] = []
        for name in self.random.sample([T0, T1, T2], self.random.randint(1, 3)):
            log = self.logs.logs[name]
            for _ in range(self.random.randint(1, 6)):
                value = b"v" * self.random.randint(1, 120)
                self.expected[name] += self.logs.append(log, [Record(0, 1000, b"k", value)])
            if self.random.random() < 0.2:
                log.roll()
            log.flusher.flush()
            if self.is_deleting and self.random.random() < 0.1:
                self.delete(name)
            found.append(self.logs.candidate(log)._replace(is_tail=True))
        return found

    def delete(self, name: TopicPartition) -> None:
        """DeleteRecords up to somewhere, maybe behind what is on its way."""
        log = self.logs.logs[name]
        offset = self.random.randint(log.offsets.log_start_offset, log.offsets.log_end_offset)
        tip = TopicIdPartition(log.topic_id, name.partition)
        self.logs.metadata.advance_log_start({tip: offset}, epoch=self.logs.claimed.epoch, catalog_seq=None)
        log.increment_log_start_offset(offset)
        self.expected[name] = [one for one in self.expected[name] if one.offset >= offset]

    def more(self) -> Sequence[UploadCandidate]:
        self.round_count += 1
        return self.append() if self.round_count < 40 else ()

    def note_more(self) -> bool:
        """Let the pass ask for more, in some of its waits for the store."""
        is_noted = self.random.random() < 0.3
        if is_noted:
            self.logs.tails.note_more()
        return is_noted

    def upload(self) -> UploadReport:
        return self.logs.tails.upload(self.append(), epoch=self.logs.claimed.epoch, more=self.more)

    def check(self) -> None:
        self.logs.metadata.refresh()
        self.logs.metadata.check()
        for name, log in self.logs.logs.items():
            assert self.logs.tiered_records(log) == self.expected[name], name
            assert log.offsets.tiered_end_offset == log.offsets.log_end_offset
            log.offsets.check()
        for found in self.logs.metadata.state().objects.values():
            audit_object(self.logs.store, self.logs.metadata.layout, found.ref)


@pytest.mark.parametrize("seed", some_seeds(20))
def test_what_comes_during_a_pass_is_committed_by_it(seed: int) -> None:
    site = BusySite(seed)
    report = site.upload()
    assert (report.failed, report.refused) == ([], [])
    assert site.round_count >= 40, "it has gone on as long as more came"
    assert report.slice_count > len(site.expected)
    site.check()


def test_what_is_fsynced_while_an_object_is_on_its_way_does_not_wait_for_it() -> None:
    site = TieredSite()
    sends = LateSends(site.clock, 0)
    logs = site.start(sends=sends)
    logs.create_topic("t", 2, OBJECT)
    expected: dict[TopicPartition, list[Record]] = {T0: [], T1: []}
    ready: list[UploadCandidate] = []

    def append(name: TopicPartition) -> UploadCandidate:
        log = logs.logs[name]
        expected[name] += logs.append(log, [Record(0, 1000, b"k", b"v")])
        log.flusher.flush()
        return logs.candidate(log)._replace(is_tail=True)

    def fsync_others() -> bool:
        if expected[T1]:
            return False
        ready.extend([append(T0), append(T1)])
        logs.tails.note_more()
        return True

    def more() -> Sequence[UploadCandidate]:
        taken = ready.copy()
        ready.clear()
        return taken

    sends.on_wait = fsync_others
    report = logs.tails.upload([append(T0)], epoch=logs.claimed.epoch, more=more)
    assert sends.max_count == 2, "both objects were on their way at once"
    assert (report.object_count, report.slice_count) == (2, 3)
    for name, records in expected.items():
        assert logs.tiered_records(logs.logs[name]) == records


@pytest.mark.parametrize("seed", some_seeds(40))
def test_whatever_fails_meanwhile_the_next_passes_upload_each_record_once(seed: int) -> None:
    site = BusySite(seed)
    site.is_failing = True
    for _ in range(3):
        site.round_count = 0
        with suppress(StoreUnavailableError):
            assert site.upload().failed == []
    site.is_failing = False
    site.faulty.release_all()
    assert site.logs.upload_tails().failed == []
    site.check()


@pytest.mark.parametrize("seed", some_seeds(20))
def test_a_deletion_of_records_that_overtakes_objects_loses_nothing_behind_it(seed: int) -> None:
    site = BusySite(seed, is_deleting=True)
    refused: list[str] = []
    for _ in range(3):
        site.round_count = 0
        report = site.upload()
        assert report.failed == []
        refused += [one.reason for one in report.refused]
    site.is_deleting = False
    assert site.logs.upload_tails().failed == []
    site.check()
    assert set(refused) == {NOT_AT_TIERED_END}


def test_a_defect_in_one_partition_does_not_hold_up_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    site = BusySite(0)
    read = PartitionUpload.copy_into
    is_broken = True

    def copy_into(upload: PartitionUpload, *arguments: object) -> None:
        read(upload, *arguments)  # type: ignore[arg-type]  # as it is called
        if is_broken and upload.candidate.log.topic_partition == T1:
            raise ZeroDivisionError

    monkeypatch.setattr(PartitionUpload, "copy_into", copy_into)
    for name, log in site.logs.logs.items():
        for _ in range(5):
            site.expected[name] += site.logs.append(log, [Record(0, 1000, b"k", b"v" * 100)])
        log.flusher.flush()
    with caplog.at_level(logging.ERROR):
        report = site.logs.upload_tails()
    [failed] = report.failed
    assert failed.topic_partition == T1
    assert failed.error.fields == {**T1.error_fields, "reason": "ZeroDivisionError()"}
    assert "Traceback" in caplog.text
    assert [len(site.logs.tiered_records(site.logs.logs[name])) for name in (T0, T1, T2)] == [5, 0, 5]
    is_broken = False
    assert site.logs.upload_tails().failed == []
    site.check()


def test_an_unknown_commit_is_found_out_by_the_end_of_its_pass() -> None:
    """Otherwise its partitions wait for the next pass of that uploader, which may be far."""
    site = TieredSite()
    left_count = 0

    def fault(operation: Operation) -> Fault:
        nonlocal left_count
        if not left_count or not operation.key.endswith("/head"):
            return Fault.NONE
        left_count -= 1
        return Fault.LANDS_UNKNOWN if operation.verb == "PUT" else Fault.FAILS

    site.store = FaultyObjectStore(site.bucket, random.Random(0), fault)
    logs = site.start()
    logs.create_topic("t", 1)
    log = logs.logs[T0]
    expected = logs.append(log, [Record(0, 1000, b"k", b"v")])
    logs.seal()
    left_count = 9
    with pytest.raises(StoreUnavailableError):
        logs.upload()
    assert left_count == 0
    expected += logs.append(log, [Record(0, 1000, b"k", b"w")])
    log.flusher.flush()
    report = logs.upload_tails()
    assert (report.left_out, report.slice_count) == (set(), 1)
    assert logs.tiered_records(log) == expected
