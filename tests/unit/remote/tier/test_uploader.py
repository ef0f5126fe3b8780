"""Uploads: what is in the store afterwards is what was appended, each record once, whatever fails on the
way.
"""

from __future__ import annotations

import random
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.base.errors import (
    CorruptRecordError,
    NotOwnerError,
    StoreUnavailableError,
)
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.log.read.log_reader import LogReader
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.header import LEADER_EPOCH_POSITION, LOG_OVERHEAD
from stratalog.record.record import Record
from stratalog.remote.tier.upload_report import UploadReport
from stratalog.segment.batch_headers import UNKNOWN_HEADERS
from stratalog.segment.segment_seal import SegmentSeal
from stratalog.testing.faulty_object_store import ActorStopped, FaultyObjectStore
from stratalog.testing.full_filesystem import FullFileSystem
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import Kept, Survival
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.testing.store_faults import FAULTS_OF_VERB, Fault, FaultOn, FaultPlan, Operation
from tests.support.logs.overwriting import flip
from tests.support.logs.sampling import examples_of
from tests.support.tiered.object_audit import audit_object
from tests.support.tiered.shard_states import partitions_in
from tests.support.tiered.tiered_logs import TieredLogs
from tests.support.tiered.tiered_site import TieredSite

Contents = dict[TopicPartition, list[Record]]


def record(number: int) -> Record:
    return Record(0, 1000 + number % 7, b"k%d" % (number % 3), b"v" * (number % 50))


def fill(logs: TieredLogs, batch_counts: list[int], *, start: int = 0) -> Contents:
    """Some batches for each log; returns what was appended."""
    appended: Contents = {}
    for name, batch_count in zip(logs.logs, batch_counts, strict=True):
        appended[name] = [
            found
            for number in range(start, start + batch_count)
            for found in logs.append(logs.logs[name], [record(number), record(number + 1)])
        ]
    return appended


def check_all_tiered(logs: TieredLogs, expected: Contents) -> None:
    logs.metadata.check()
    for name, records in expected.items():
        log = logs.logs[name]
        assert logs.tiered_records(log) == records
        assert log.offsets.tiered_end_offset == log.offsets.log_end_offset
    for object_name, found in logs.metadata.state().objects.items():
        assert object_name == found.ref.name
        audit_object(logs.store, logs.metadata.layout, found.ref)


@settings(max_examples=examples_of(2))
@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=4),
    st.integers(100, 3000),
    st.integers(61, 2000),
    st.booleans(),
)
def test_what_was_appended_is_tiered_once(
    batch_counts: list[int], max_object_bytes: int, read_bytes: int, is_compacted: bool
) -> None:
    site = TieredSite(max_object_bytes=max_object_bytes, read_bytes=read_bytes)
    logs = site.start()
    logs.create_topic("t", len(batch_counts), {"cleanup.policy": "compact" if is_compacted else "delete"})
    expected = fill(logs, batch_counts)
    logs.seal()
    report = logs.upload()
    assert (report.refused, report.failed) == ([], [])
    check_all_tiered(logs, expected)
    assert report.data_bytes == sum(log.local_log.segments.size_bytes for log in logs.logs.values())
    assert report.object_count == len(logs.metadata.state().objects)
    assert report.slice_count == sum(found.live_slices for found in logs.metadata.state().objects.values())
    for partition in partitions_in(logs.metadata.state()).values():
        assert all((live.entry.key_stream is not None) == is_compacted for live in partition.slices)
    for found in logs.metadata.state().objects.values():
        is_one_batch = found.live_slices == 1 and found.live_bytes < 200
        assert found.live_bytes <= max_object_bytes or is_one_batch
    assert logs.upload().object_count == 0, "nothing is left for another pass"
    # More in later passes: each begins where the last one ended.
    more = fill(logs, batch_counts, start=50)
    logs.seal()
    logs.upload()
    check_all_tiered(logs, {name: expected[name] + more[name] for name in expected})


@pytest.mark.parametrize("is_full", [False, True])
def test_where_a_spool_has_no_room_objects_are_so_small_that_they_need_none(*, is_full: bool) -> None:
    disk, clock = FullFileSystem(), ManualClock()
    store = MemoryObjectStore(clock)
    logs = TieredLogs(disk, store, clock, SequentialIds(1), memory_bytes=4000, read_bytes=1000)
    logs.create_topic("t", 2, {"cleanup.policy": "compact"})
    expected = fill(logs, [100, 50])
    logs.seal()
    data_bytes = sum(log.local_log.segments.size_bytes for log in logs.logs.values())
    assert data_bytes > 4000
    if is_full:
        disk.fill("/spool")
    report = logs.upload()
    assert (report.refused, report.failed, report.data_bytes) == ([], [], data_bytes)
    assert report.object_count == (-(-data_bytes // 2000) if is_full else 1)
    check_all_tiered(logs, expected)


def test_the_active_segment_and_what_is_not_fsynced_stay_here() -> None:
    logs = TieredSite().start()
    logs.create_topic("t", 1)
    (log,) = logs.logs.values()
    logs.append(log, [record(1)])
    assert logs.upload().object_count == 0
    log.roll()
    assert logs.upload().object_count == 0, "rolled, but this disk could still lose it"
    log.flusher.flush()
    assert logs.upload().object_count == 1


def test_a_damaged_batch_stops_its_partition_and_no_other() -> None:
    site = TieredSite()
    logs = site.start()
    logs.create_topic("t", 3)
    expected = fill(logs, [3, 3, 3])
    logs.seal()
    damaged = TopicPartition("t", 1)
    logs.close()
    # After a clean stop old segments are not walked again, so the damage is not seen when the log is opened.
    flip(site.disk, "/data/t-1/00000000000000000000.log", -5)
    logs = site.start()
    report = logs.upload()
    (failed,) = report.failed
    assert failed.topic_partition == damaged
    assert isinstance(failed.error, CorruptRecordError)
    assert report.slice_count == 3
    for name, log in logs.logs.items():
        kept = expected[name][:4] if name == damaged else expected[name]
        assert logs.tiered_records(log) == kept
        assert log.offsets.tiered_end_offset == len(kept)
    # Damage is not forgotten and does not spread: the next pass says it again.
    assert [again.topic_partition for again in logs.upload().failed] == [damaged]


@pytest.mark.parametrize("read_bytes", [1 << 20, 200])
@pytest.mark.parametrize("max_object_bytes", [1 << 20, 200])
def test_a_segment_that_contradicts_its_seal_is_not_uploaded(read_bytes: int, max_object_bytes: int) -> None:
    """No checksum of a batch covers its leader epoch."""
    site = TieredSite(read_bytes=read_bytes, max_object_bytes=max_object_bytes)
    logs = site.start()
    logs.create_topic("t", 3)
    expected = fill(logs, [3, 3, 3])
    logs.seal()
    logs.close()
    flip(site.disk, "/data/t-1/00000000000000000000.log", LEADER_EPOCH_POSITION + 3)
    logs = site.start()
    (failed,) = logs.upload().failed
    assert failed.topic_partition == TopicPartition("t", 1)
    assert isinstance(failed.error, CorruptRecordError)
    for name, log in logs.logs.items():
        assert logs.tiered_records(log) == ([] if name == failed.topic_partition else expected[name])
    for found in logs.metadata.state().objects.values():
        audit_object(logs.store, logs.metadata.layout, found.ref)


@pytest.mark.parametrize("max_object_bytes", [1 << 20, 200])
def test_segments_before_one_that_contradicts_its_seal_are_uploaded(max_object_bytes: int) -> None:
    site = TieredSite(max_object_bytes=max_object_bytes)
    logs = site.start()
    logs.create_topic("t", 1)
    (expected,) = fill(logs, [4]).values()
    logs.seal()
    for start in (50, 60):
        fill(logs, [4], start=start)
        logs.seal()
    logs.close()
    flip(site.disk, "/data/t-0/00000000000000000008.log", LEADER_EPOCH_POSITION + 3)
    logs = site.start()
    (log,) = logs.logs.values()
    for _ in range(3):
        # Each pass says it again.
        (failed,) = logs.upload().failed
        assert "restore the segment from a copy" in str(failed.error)
        assert failed.error.fields == {"path": "/data/t-0/00000000000000000008.log"}
        assert logs.tiered_records(log) == expected
        assert log.offsets.tiered_end_offset == 8
    assert log.retention.delete_local_segments(ignore_retention=True) == 1
    for found in logs.metadata.state().objects.values():
        audit_object(logs.store, logs.metadata.layout, found.ref)


def test_a_base_offset_moved_into_a_hole_is_not_uploaded() -> None:
    """The batch still lies between its neighbours; only the seal says that it was altered."""
    site = TieredSite(max_object_bytes=300, read_bytes=200)
    logs = site.start()
    logs.create_topic("t", 1)
    (log,) = logs.logs.values()
    batches = [
        encode_batch([record(offset)], base_offset=offset, leader_epoch=1)
        for offset in (0, 1, 5, 6, 7, 8, 9, 10)
    ]
    for batch in batches:
        log.appender.append_as_follower(batch)
    logs.seal()
    logs.close()
    # The lowest byte of the base offset 5, which becomes 4.
    flip(site.disk, "/data/t-0/00000000000000000000.log", sum(map(len, batches[:2])) + 7)
    logs = site.start()
    (log,) = logs.logs.values()
    for _ in range(2):
        report = logs.upload()
        assert (len(report.failed), report.object_count, log.offsets.tiered_end_offset) == (1, 0, 0)


@pytest.mark.parametrize(("altered", "byte"), [(0, 3), (5, 2)])
def test_the_rest_of_a_segment_is_not_uploaded_if_the_segment_contradicts_its_seal(
    altered: int, byte: int
) -> None:
    """The altered batch lies below the offset at which the pass begins, or above it. `byte` is the one of its
    leader epoch that is flipped, so that the epochs still ascend."""
    site = TieredSite(max_object_bytes=200)
    faulty = FaultyObjectStore(
        site.bucket, random.Random(0), lambda one: plan[0](one) if plan else Fault.NONE
    )
    plan: list[FaultPlan] = []
    site.store = faulty
    logs = site.start()
    logs.create_topic("t", 1)
    (log,) = logs.logs.values()
    (expected,) = fill(logs, [6]).values()
    logs.seal()
    puts: set[str] = set()

    def stores_one(operation: Operation) -> Fault:
        if operation.verb == "PUT" and operation.key.startswith("shards/0000/data/"):
            puts.add(operation.key)
        return Fault.FAILS if len(puts) > 1 else Fault.NONE

    plan.append(stores_one)
    with pytest.raises(StoreUnavailableError):
        logs.upload()
    plan.clear()
    tiered_end_offset = log.offsets.tiered_end_offset
    assert 0 < tiered_end_offset < 10
    positions = [located.position for located in log.local_log.segments.sealed[0].batches()]
    logs.close()
    flip(site.disk, "/data/t-0/00000000000000000000.log", positions[altered] + LEADER_EPOCH_POSITION + byte)
    logs = site.start()
    (log,) = logs.logs.values()
    for _ in range(2):
        report = logs.upload()
        assert (len(report.failed), report.object_count) == (1, 0)
        assert log.offsets.tiered_end_offset == tiered_end_offset
        assert logs.tiered_records(log) == expected[:tiered_end_offset]


def test_nothing_of_a_segment_with_an_invalid_header_is_uploaded() -> None:
    """The length of its last batch is altered, which the checksum of the batch does not cover either."""
    site = TieredSite()
    logs = site.start()
    logs.create_topic("t", 1)
    (log,) = logs.logs.values()
    fill(logs, [4])
    logs.seal()
    positions = [located.position for located in log.local_log.segments.sealed[0].batches()]
    logs.close()
    flip(site.disk, "/data/t-0/00000000000000000000.log", positions[-1] + LOG_OVERHEAD - 1)
    logs = site.start()
    (log,) = logs.logs.values()
    (failed,) = logs.upload().failed
    assert "contradict its seal" in str(failed.error)
    assert log.offsets.tiered_end_offset == 0


def test_a_segment_whose_headers_the_seal_does_not_know_is_uploaded() -> None:
    """An import makes such a seal if damage hides headers of a broker's segment."""
    logs = TieredSite().start()
    logs.create_topic("t", 1)
    (log,) = logs.logs.values()
    expected = fill(logs, [2])
    logs.seal()
    (sealed,) = log.local_log.segments.sealed
    seal = sealed.written_seal
    assert seal is not None
    sealed.written_seal = SegmentSeal.of(
        log_size_bytes=seal.log_size_bytes,
        end_offset=seal.end_offset,
        headers=UNKNOWN_HEADERS,
        offset_index=seal.offset_index,
        time_index=seal.time_index,
        transaction_index=seal.transaction_index,
    )
    assert logs.upload().failed == []
    check_all_tiered(logs, expected)


def test_a_segment_is_proven_once_in_a_pass_however_many_objects_it_needs() -> None:
    logs = TieredSite(max_object_bytes=200, read_bytes=100).start()
    logs.create_topic("t", 1)
    (log,) = logs.logs.values()
    for _ in range(2):
        fill(logs, [6])
        logs.seal()
    with patch.object(
        LogReader, "prove_headers", autospec=True, side_effect=LogReader.prove_headers
    ) as prove:
        assert logs.upload().object_count > 4
    proven = [call.args[1].segment_base_offset for call in prove.call_args_list]
    assert proven == [segment.base_offset for segment in log.local_log.segments.sealed]


def test_another_owner_is_noticed_before_anything_counts() -> None:
    site = TieredSite()
    logs = site.start()
    logs.create_topic("t", 1)
    fill(logs, [1])
    logs.seal()
    logs.metadata.claim("another", site.ids.uuid())
    with pytest.raises(NotOwnerError):
        logs.upload()
    (log,) = logs.logs.values()
    assert log.offsets.tiered_end_offset == 0


def test_a_slice_that_is_refused_does_not_count() -> None:
    site = TieredSite(max_object_bytes=100)
    logs = site.start()
    topic = logs.create_topic("deleted", 1)
    logs.create_topic("kept", 1)
    fill(logs, [2, 2])
    logs.seal()
    deleted, kept = logs.logs.values()
    logs.catalog.delete(topic.topic_id)
    logs.metadata.drop_partitions(topic.topic_id, logs.catalog.confirm_deleted(topic.topic_id))
    report = logs.upload()
    # The slice that would follow in the next object is not even sent.
    assert [refused.topic_partition for refused in report.refused] == [deleted.topic_partition]
    assert (deleted.offsets.tiered_end_offset, kept.offsets.tiered_end_offset) == (0, 4)
    assert report.object_count == len(logs.metadata.state().objects)
    assert report.slice_count == sum(found.live_slices for found in logs.metadata.state().objects.values())


def test_a_commit_that_turns_out_to_have_landed_is_not_sent_again() -> None:
    """The head is replaced, the answer is lost, and the store says nothing more for a while."""
    site = TieredSite()
    plan: list[FaultPlan] = []
    faulty = FaultyObjectStore(
        site.bucket, random.Random(0), lambda one: plan[0](one) if plan else Fault.NONE
    )
    site.store = faulty
    logs = site.start()
    logs.create_topic("t", 2)
    expected = fill(logs, [2, 1])
    logs.seal()
    is_silent: list[bool] = []

    def falls_silent(operation: Operation) -> Fault:
        if is_silent:
            return Fault.FAILS
        if operation.verb == "PUT" and operation.key.endswith("/head"):
            is_silent.append(True)
            return Fault.LANDS_UNKNOWN
        return Fault.NONE

    plan.append(falls_silent)
    with pytest.raises(StoreUnavailableError):
        logs.upload()
    assert [log.offsets.tiered_end_offset for log in logs.logs.values()] == [0, 0]
    plan.clear()
    assert logs.upload() == UploadReport()
    check_all_tiered(logs, expected)
    assert len(list(site.bucket.list("shards/0000/data/"))) == 1


def test_the_spool_is_emptied_when_a_manager_is_made_and_left_empty() -> None:
    site = TieredSite()
    site.disk.make_directories("/spool")
    site.disk.open_append("/spool/left behind.data").close()
    logs = site.start()
    logs.create_topic("t", 1)
    fill(logs, [2])
    logs.seal()
    logs.upload()
    assert site.disk.list_directory("/spool") == []


def test_a_log_start_that_the_store_does_not_know_is_committed_before_the_upload() -> None:
    logs = TieredSite().start()
    logs.create_topic("t", 1)
    (log,) = logs.logs.values()
    fill(logs, [2])
    logs.seal()
    log.increment_log_start_offset(4, is_committed=False)
    log.retention.delete_local_segments()
    logs.append(log, [record(1)])
    logs.seal()
    assert not logs.upload().failed
    (partition,) = logs.metadata.state().partitions.values()
    assert (partition.log_start_offset, partition.tiered_end_offset) == (4, 5)


@pytest.mark.parametrize("has_more", [True, False])
def test_a_log_start_in_the_hole_at_the_end_of_a_segment_holds_up_no_upload(*, has_more: bool) -> None:
    """Imported compacted logs have such holes. Nothing is left of the segment, and the next slice begins at
    the log start."""
    site = TieredSite()
    logs = site.start()
    logs.create_topic("t", 1)
    (log,) = logs.logs.values()
    log.appender.append_as_follower(encode_batch([record(0)], base_offset=0, leader_epoch=1))
    log.roll()
    with log.lock:
        log.truncation.begin_behind(10)
    if has_more:
        log.appender.append_as_follower(encode_batch([record(10)], base_offset=10, leader_epoch=1))
    logs.seal()
    logs.close()
    logs = site.start()
    (log,) = logs.logs.values()
    assert log.local_log.segments.sealed[0].end_offset == 10
    tip = TopicIdPartition(log.topic_id, 0)
    log.increment_log_start_offset(5)
    logs.metadata.advance_log_start({tip: 5}, epoch=logs.claimed.epoch, catalog_seq=None)
    report = logs.upload()
    assert (report.failed, report.refused, report.slice_count) == ([], [], int(has_more))
    assert logs.metadata.state().partition(tip).tiered_end_offset == (11 if has_more else 5)
    if not has_more:
        log.appender.append_as_follower(encode_batch([record(10)], base_offset=10, leader_epoch=1))
        logs.seal()
        assert logs.upload().slice_count == 1
    assert [found.offset for found in logs.tiered_records(log)] == [10]
    logs.metadata.check()


def put_faults() -> list[tuple[str, Fault]]:
    faults = [fault for fault in FAULTS_OF_VERB["PUT"] if fault is not Fault.NONE]
    return [(prefix, fault) for prefix in ("shards/0000/data/", "shards/0000/head") for fault in faults]


@pytest.mark.parametrize(("prefix", "fault"), put_faults())
@pytest.mark.parametrize("occurrence", [1, 2])
def test_whatever_a_put_does_each_record_is_tiered_once(prefix: str, fault: Fault, occurrence: int) -> None:
    """Fail one PUT of an upload in every way, start again where the process died, upload the rest."""
    site = TieredSite(max_object_bytes=300)
    logs = site.start()
    topic = logs.create_topic("t", 2)
    expected = fill(logs, [6, 3])
    logs.seal()
    logs.close()
    plan: list[FaultPlan] = []
    faulty = FaultyObjectStore(
        site.bucket, random.Random(0), lambda operation: plan[0](operation) if plan else Fault.NONE
    )
    site.store = faulty
    logs = site.start()
    plan.append(FaultOn(fault, "PUT", prefix, occurrence))
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
        site.disk = site.disk.after_crash(Survival(Kept.NONE, Kept.NONE))
        site.store = site.bucket
        logs = site.start(opens=False)
        assert logs.claimed.trusted_epoch < logs.claimed.epoch
        assert [found.reason for found in logs.open_topic(topic).values()] == ["", ""]
    logs.metadata.refresh()
    logs.upload()
    check_all_tiered(logs, expected)
    tips = [TopicIdPartition(log.topic_id, log.topic_partition.partition) for log in logs.logs.values()]
    assert [logs.metadata.state().partition(tip).tiered_end_offset for tip in tips] == [12, 6]
