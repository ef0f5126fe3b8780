"""A machine that dies at every operation of an export: the log directory is there whole, or not at all."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.base.errors import CorruptRecordError, LogStoreError
from stratalog.base.types import TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.migration.log_export import ExportedLog, ExportTargetError, LogExport
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.logs.crash_sweep import CrashSweep, Death, Failure
from tests.support.logs.plain_batches import batch

NAME = TopicPartition("orders", 0)
TOPIC_ID = UUID(int=5)
CONFIG = LogConfig(segment_bytes=1024)


def placed(base_offset: int, count: int, leader_epoch: int = 3) -> bytes:
    return batch(count, base_offset=base_offset, leader_epoch=leader_epoch, value_bytes=150)


LOG = placed(30, 5) + placed(50, 4) + placed(54, 4)
"""The log starts at 32, inside the first batch, and ends at 70."""


def export(disk: FaultyFileSystem, *data: bytes, log_start_offset: int = 32) -> tuple[ExportedLog, ...]:
    clock = ManualClock()
    disk.make_directories("/out")
    disk.sync_directory("/")
    with LogExport(disk, clock, ManualScheduler(clock), SequentialIds(), "/out/kafka") as target:
        writer = target.begin(
            NAME,
            TOPIC_ID,
            CONFIG,
            base_offset=min(30, log_start_offset),
            log_start_offset=log_start_offset,
            log_end_offset=70,
        )
        for part in data:
            writer.append(part)
        target.end(writer)
        return target.publish()


def whole() -> dict[str, bytes | None]:
    disk = FaultyFileSystem()
    export(disk, LOG)
    return disk.inner.contents()


def test_an_export_is_what_a_broker_has() -> None:
    found = whole()
    logs = {path: data for path, data in found.items() if path.endswith(".log")}
    directory = "/out/kafka/orders-0"
    assert logs == {
        f"{directory}/{30:020}.log": placed(30, 5, 0),
        # A segment begins where the one before it ends, though its first batch begins above.
        f"{directory}/{35:020}.log": placed(50, 4, 0),
        f"{directory}/{54:020}.log": placed(54, 4, 0),
        # It ends in a hole.
        f"{directory}/{70:020}.log": b"",
    }
    assert found[f"{directory}/leader-epoch-checkpoint"] == b"0\n1\n0 32\n"
    assert found["/out/kafka/log-start-offset-checkpoint"] == b"0\n1\norders 0 32\n"
    for name in ("recovery-point", "replication"):
        assert found[f"/out/kafka/{name}-offset-checkpoint"] == b"0\n1\norders 0 70\n"


def test_batches_that_come_again_or_reach_too_far_are_left_out() -> None:
    disk = FaultyFileSystem()
    export(disk, placed(30, 5), placed(30, 5) + placed(50, 4), placed(54, 4), placed(54, 4) + placed(69, 2))
    assert disk.inner.contents() == whole()
    with pytest.raises(CorruptRecordError):
        export(FaultyFileSystem(), placed(30, 5), placed(34, 2))


def test_a_log_of_which_nothing_is_left_begins_at_its_end() -> None:
    disk = FaultyFileSystem()
    [log] = export(disk, placed(30, 5), log_start_offset=40)
    assert (log.log_start_offset, log.log_end_offset) == (70, 70)
    names = {path.rpartition("/")[2] for path in disk.inner.contents() if "/orders-0/" in path}
    assert names == {
        "leader-epoch-checkpoint",
        "partition.metadata",
        *(f"{70:020}.{suffix}" for suffix in ("log", "index", "timeindex", "snapshot")),
    }


def test_one_that_begins_anew_is_as_if_it_had_not_begun_before() -> None:
    disk, clock = FaultyFileSystem(), ManualClock()
    disk.make_directories("/out")
    with LogExport(disk, clock, ManualScheduler(clock), SequentialIds(), "/out/kafka") as target:
        early = target.begin(NAME, TOPIC_ID, CONFIG, base_offset=3, log_start_offset=5, log_end_offset=60)
        producer = BatchProducer(7, 0, 0)
        early.append(placed(3, 5) + placed(8, 5) + placed(13, 20))
        early.append(
            encode_batch([Record(0, 5, b"k", b"v")], base_offset=33, leader_epoch=3, producer=producer)
        )
        writer = target.begin(NAME, TOPIC_ID, CONFIG, base_offset=30, log_start_offset=32, log_end_offset=70)
        writer.append(LOG)
        target.end(writer)
        target.publish()
    assert disk.inner.contents() == whole()


def test_a_failure_leaves_nothing() -> None:
    disk = FaultyFileSystem()
    with pytest.raises(CorruptRecordError):
        export(disk, LOG[:-1])
    assert set(disk.inner.contents()) == {"/out"}


class Export:
    """An empty disk that gets the export."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()

    def run(self) -> None:
        export(self.disk, LOG)


def published(disk: FaultyFileSystem) -> dict[str, bytes | None]:
    return {path: data for path, data in disk.inner.contents().items() if path.startswith("/out/kafka/")}


def test_a_crash_at_any_operation() -> None:
    sweep = CrashSweep(Export, Export.run)
    expected = published(sweep.whole.disk)

    def verify(death: Death[Export]) -> None:
        for disk in death.disks():
            assert published(disk) in ({}, expected)

    sweep.at_deaths(verify)


def test_a_disk_that_fails_leaves_nothing_of_the_target() -> None:
    sweep = CrashSweep(Export, Export.run)

    def verify(failure: Failure[Export]) -> None:
        if failure.error is None:
            return
        # It says where the directory was to be, not where it was until then.
        assert failure.operation <= 2 or (
            isinstance(failure.error, ExportTargetError) and failure.error.fields["path"] == "/out/kafka"
        )
        # Only the very last sync fails after the directory has got its name.
        is_published = "sync_directory /out" in sweep.trace[failure.operation - 1]
        assert is_published or not published(failure.subject.disk)

    sweep.at_failures(verify, expected=(LogStoreError, OSError))
