"""A partition as a broker's log directory: what the batches ask of the segments, and where it may be."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from uuid import UUID

import pytest

from stratalog.base.errors import DataDirectoryError, LogStoreError
from stratalog.base.filesystem import FileSystem
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.migration.log_export import ExportTargetError, LogExport
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.manual_scheduler import ManualScheduler
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from stratalog.testing.sequential_ids import SequentialIds

ORDERS = TopicPartition("orders", 0)
FAR = 2**31


def test_a_hole_that_no_index_reaches_over_lies_between_segments() -> None:
    disk, clock = MemoryFileSystem(), ManualClock()
    batches = [
        encode_batch([Record(0, 1000, b"k", b"v" * 5000)], base_offset=offset, leader_epoch=0)
        for offset in (0, 1, FAR + 5, FAR + 6)
    ]
    with LogExport(disk, clock, ManualScheduler(clock), SequentialIds(), "/kafka") as target:
        partition = target.begin(
            ORDERS, UUID(int=9), LogConfig(), base_offset=0, log_start_offset=0, log_end_offset=FAR + 7
        )
        partition.append(b"".join(batches))
        target.end(partition)
        target.publish()
    names = [name for name in disk.list_directory(f"/kafka/{ORDERS}") if name.endswith(".log")]
    assert sorted(names) == [f"{0:020d}.log", f"{FAR + 5:020d}.log"]
    for name, held in zip(sorted(names), (batches[:2], batches[2:]), strict=True):
        assert disk.read_file(f"/kafka/{ORDERS}/{name}") == b"".join(held)


def export_empty(disk: FileSystem, target: str) -> None:
    clock = ManualClock()
    with LogExport(disk, clock, ManualScheduler(clock), SequentialIds(), target) as export:
        export.end(
            export.begin(
                ORDERS, UUID(int=9), LogConfig(), base_offset=0, log_start_offset=0, log_end_offset=0
            )
        )
        export.publish()


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize("is_there", [True, False], ids=["empty", "dangling"])
def test_a_link_leads_to_where_the_directory_will_be(tmp_path: Path, slash: str, *, is_there: bool) -> None:
    real = tmp_path / "disk" / "real"
    if is_there:
        real.mkdir(parents=True)
    (tmp_path / "link").symlink_to("disk/real")
    export_empty(PosixFileSystem(), f"{tmp_path}/link{slash}")
    assert (tmp_path / "link").is_symlink()
    assert (real / str(ORDERS)).is_dir()
    assert os.listdir(tmp_path / "disk") == ["real"]
    with pytest.raises(DataDirectoryError) as refusal:
        export_empty(PosixFileSystem(), f"{tmp_path}/link{slash}")
    assert refusal.value.fields["path"] == str(real)


@pytest.mark.parametrize(
    ("number", "error"), [(errno.EBUSY, DataDirectoryError), (errno.EACCES, ExportTargetError)]
)
def test_a_directory_that_cannot_be_replaced_is_refused_before_anything_is_exported(
    number: int, error: type[LogStoreError]
) -> None:
    """A disk is mounted at it, or the user may not write beside it."""

    def begin(disk: FaultyFileSystem) -> None:
        disk.make_directories("/mnt/kafka")
        clock = ManualClock()
        with LogExport(disk, clock, ManualScheduler(clock), SequentialIds(), "/mnt/kafka"):
            pass

    probe, disk = FaultyFileSystem(), FaultyFileSystem()
    begin(probe)
    renames = [number for number, name in enumerate(probe.trace, start=1) if name.startswith("rename ")]
    disk.fail_at(renames[0], number=number)
    with pytest.raises(error) as refusal:
        begin(disk)
    assert refusal.value.fields["path"] == "/mnt/kafka"
    assert set(disk.inner.contents()) == {"/mnt", "/mnt/kafka"}
    export_empty(disk, "/mnt/kafka/new")
    assert disk.is_directory(f"/mnt/kafka/new/{ORDERS}")


def test_a_name_is_durable_when_it_has_been_given() -> None:
    disk = MemoryFileSystem()
    for path in ("/out/new", "/out/empty"):
        disk.make_directories("/out/empty")
        disk.sync_directory("/")
        disk.sync_directory("/out")
        export_empty(disk, path)
        found = disk.after_crash(Survival(Kept.NONE, Kept.NONE))
        assert found.is_directory(f"{path}/{ORDERS}")
        assert found.contents() == disk.contents()
