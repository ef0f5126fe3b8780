"""Producer snapshots: bytes that are none, files that come and go, and crashes while they do."""

from __future__ import annotations

import contextlib

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import FileSystem
from stratalog.log.producers.producer_snapshot import (
    ENTRY_SIZE,
    ProducerSnapshot,
    parse_snapshot_name,
    snapshot_path,
)
from stratalog.log.producers.producer_snapshot_files import ProducerSnapshotFiles
from stratalog.log.producers.producer_state_entry import BatchMetadata, ProducerStateEntry
from stratalog.testing.faulty_filesystem import ALL_SURVIVALS, FaultyFileSystem
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from tests.support.logs.crash_sweep import CrashSweep, Death, Failure

ENTRY = ProducerStateEntry(
    producer_id=7,
    epoch=2,
    coordinator_epoch=1,
    last_timestamp_ms=1000,
    current_txn_first_offset=20,
    batches=(BatchMetadata(9, 40, 4, 1000),),
)
SNAPSHOT = ProducerSnapshot(50, (ENTRY,))


@st.composite
def entries(draw: st.DrawFn) -> tuple[ProducerStateEntry, ...]:
    """Entries of a log that ends at 2^40."""
    offsets = st.integers(0, 2**40 - 1)
    opened = iter(draw(st.lists(offsets, min_size=6, max_size=6, unique=True)))
    found: list[ProducerStateEntry] = []
    for producer_id in draw(st.lists(st.integers(0, 2**63 - 1), max_size=6, unique=True)):
        timestamp_ms = draw(st.integers(-(2**63), 2**63 - 1))
        last_offset = draw(offsets)
        offset_delta = draw(st.integers(0, min(last_offset, 2**31 - 1)))
        batch = BatchMetadata(draw(st.integers(-1, 2**31 - 1)), last_offset, offset_delta, timestamp_ms)
        found.append(
            ProducerStateEntry(
                producer_id=producer_id,
                epoch=draw(st.integers(-1, 2**15 - 1)),
                coordinator_epoch=draw(st.integers(-1, 2**31 - 1)),
                last_timestamp_ms=timestamp_ms,
                current_txn_first_offset=next(opened) if draw(st.booleans()) else None,
                batches=(batch,) if draw(st.booleans()) else (),
            )
        )
    return tuple(found)


@given(entries=entries())
def test_what_is_written_is_read(entries: tuple[ProducerStateEntry, ...]) -> None:
    snapshot = ProducerSnapshot(2**40, entries)
    data = snapshot.to_bytes()
    assert len(data) == 10 + ENTRY_SIZE * len(entries)
    assert ProducerSnapshot.from_bytes(2**40, data) == snapshot


def test_only_the_newest_batch_of_a_producer_is_kept() -> None:
    older = ENTRY._replace(batches=(BatchMetadata(3, 30, 0, 500), *ENTRY.batches))
    assert ProducerSnapshot(50, (older,)).to_bytes() == SNAPSHOT.to_bytes()


@given(data=st.data())
def test_every_changed_bit_is_noticed(data: st.DataObject) -> None:
    changed = bytearray(SNAPSHOT.to_bytes())
    changed[data.draw(st.integers(0, len(changed) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(CorruptRecordError):
        ProducerSnapshot.from_bytes(50, changed)


@pytest.mark.parametrize("size", range(len(SNAPSHOT.to_bytes())))
def test_every_cut_is_noticed(size: int) -> None:
    with pytest.raises(CorruptRecordError):
        ProducerSnapshot.from_bytes(50, SNAPSHOT.to_bytes()[:size])


def summed(body: bytes) -> bytes:
    return b"\0\1" + crc32c(body).to_bytes(4) + body


@given(
    body=st.binary(max_size=3 * ENTRY_SIZE), entry_count=st.integers(-(2**31), 2**31 - 1) | st.integers(0, 3)
)
def test_garbage_under_a_right_checksum_is_a_snapshot_or_refused(body: bytes, entry_count: int) -> None:
    data = summed(entry_count.to_bytes(4, signed=True) + body)
    with contextlib.suppress(CorruptRecordError):
        assert ProducerSnapshot.from_bytes(50, data).to_bytes() == data


@pytest.mark.parametrize(
    "entries",
    [
        (ENTRY, ENTRY._replace(current_txn_first_offset=None)),
        (ENTRY, ENTRY._replace(producer_id=8)),
        (ENTRY._replace(producer_id=-1),),
        (ENTRY._replace(current_txn_first_offset=50),),
        (ENTRY._replace(current_txn_first_offset=-2),),
        (ENTRY._replace(batches=(BatchMetadata(9, 50, 4, 1000),)),),
        (ENTRY._replace(batches=(BatchMetadata(9, 3, 4, 1000),)),),
        (ENTRY._replace(batches=(BatchMetadata(9, 40, -1, 1000),)),),
        (ENTRY._replace(batches=(BatchMetadata(-2, 40, 4, 1000),)),),
    ],
)
def test_entries_that_cannot_be_are_refused(entries: tuple[ProducerStateEntry, ...]) -> None:
    with pytest.raises(CorruptRecordError):
        ProducerSnapshot.from_bytes(50, ProducerSnapshot(50, entries).to_bytes())


@pytest.mark.parametrize(
    ("name", "offset"),
    [
        ("00000000000000000042.snapshot", 42),
        ("42.snapshot", None),
        ("00000000000000000042.snapshot.tmp", None),
        ("00000000000000000042.log", None),
        ("0000000000000000004\u0662.snapshot", None),
    ],
)
def test_names_of_snapshots(name: str, offset: int | None) -> None:
    assert parse_snapshot_name(name) == offset


def files_with(filesystem: FileSystem, *offsets: int) -> ProducerSnapshotFiles:
    filesystem.make_directories("/log")
    filesystem.sync_directory("/")
    files = ProducerSnapshotFiles(filesystem, "/log")
    for offset in offsets:
        files.write(SNAPSHOT._replace(end_offset=offset))
    return files


def found_in(filesystem: FileSystem) -> list[int]:
    return list(ProducerSnapshotFiles(filesystem, "/log").offsets)


def test_the_newest_that_can_be_read_is_loaded_and_damaged_ones_go() -> None:
    filesystem = MemoryFileSystem()
    files = files_with(filesystem, 80, 50, 60, 70)
    assert list(files.offsets) == [50, 60, 70, 80]
    assert files.latest == 80
    filesystem.open_append(snapshot_path("/log", 70)).truncate(20)
    filesystem.unlink(snapshot_path("/log", 60))
    assert files.newest_at_or_below(79) == SNAPSHOT
    assert list(files.offsets) == found_in(filesystem) == [50, 80]
    assert files.newest_at_or_below(49) is None


def test_what_leaves_and_what_stays() -> None:
    filesystem = MemoryFileSystem()
    files = files_with(filesystem, 50, 60, 70, 80, 90)
    files.remove_outside(60, 80)
    assert list(files.offsets) == found_in(filesystem) == [60, 70, 80]
    files.remove_at(70)
    files.remove_at(75)
    assert list(files.offsets) == found_in(filesystem) == [60, 80]
    files.remove_before(80)
    assert list(files.offsets) == found_in(filesystem) == [80]


@pytest.mark.parametrize(
    ("offsets", "base_offsets", "kept"),
    [
        ((50, 60, 70), (0, 60, 70), (60, 70)),
        ((50, 60, 75, 80), (0, 60), (60, 80)),
        ((50, 55), (0, 60), ()),
        ((50, 60, 65), (60,), (60, 65)),
        ((50, 60), (), (60,)),
    ],
)
def test_strays_leave_but_the_newest_behind_all_segments(
    offsets: tuple[int, ...], base_offsets: tuple[int, ...], kept: tuple[int, ...]
) -> None:
    filesystem = MemoryFileSystem()
    files_with(filesystem, *offsets)
    for suffix in (".tmp", ".deleted"):
        filesystem.open_append(snapshot_path("/log", 99) + suffix).close()
    files = ProducerSnapshotFiles(filesystem, "/log")
    files.remove_unfinished()
    files.remove_stray(base_offsets)
    assert list(files.offsets) == found_in(filesystem) == list(kept)
    assert len(filesystem.list_directory("/log")) == len(kept)


class Write:
    """A directory with a snapshot at 50, about to get one at 60."""

    def __init__(self) -> None:
        self.disk = FaultyFileSystem()
        self.files = files_with(self.disk, 50)
        self.is_written = False

    def run(self) -> None:
        self.files.write(SNAPSHOT._replace(end_offset=60))
        self.is_written = True


def test_a_crash_beside_a_write_leaves_whole_snapshots() -> None:
    def verify(death: Death[Write]) -> None:
        for disk in death.disks():
            reopened = ProducerSnapshotFiles(disk, "/log")
            newest = reopened.newest_at_or_below(99)
            assert newest is not None
            assert newest.entries == SNAPSHOT.entries
            # Nothing that has the name is less than whole.
            assert newest.end_offset == reopened.latest
            assert newest.end_offset in ({60} if death.subject.is_written else {50, 60})

    CrashSweep(Write, Write.run).at_deaths(verify)


def test_a_snapshot_above_a_truncation_never_comes_back() -> None:
    disk = FaultyFileSystem()
    files_with(disk, 50, 60).remove_outside(0, 55)
    for survival in ALL_SURVIVALS:
        assert found_in(disk.reopened(survival)) == [50]


def test_what_was_held_back_never_comes_back_once_it_is_released() -> None:
    disk = FaultyFileSystem()
    files = files_with(disk, 50, 60, 70)
    files.hold()
    files.remove_outside(0, 65)
    files.remove_at(50)
    files.write(SNAPSHOT._replace(end_offset=62), durable=False)
    assert list(files.offsets) == [60, 62]
    assert found_in(disk) == [50, 60, 70]
    files.release()
    assert found_in(disk) == [60, 62]
    for survival in ALL_SURVIVALS:
        assert found_in(disk.reopened(survival)) in ([60], [60, 62])


def test_an_error_beside_a_write_leaves_what_was_there() -> None:
    def verify(failure: Failure[Write]) -> None:
        disk, files = failure.subject.disk, failure.subject.files
        reopened = ProducerSnapshotFiles(disk.reopened(Survival(Kept.NONE, Kept.ALL)), "/log")
        assert reopened.newest_at_or_below(55) == SNAPSHOT
        failure.subject.run()
        assert found_in(disk) == list(files.offsets) == [50, 60]

    CrashSweep(Write, Write.run).at_failures(verify, expected=(OSError,))
