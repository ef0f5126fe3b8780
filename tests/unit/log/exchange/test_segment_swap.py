"""Segments that replace others, and those that are split: a crash at any moment leaves the same records."""

from __future__ import annotations

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.log.checkpoint import RECOVERY_POINT_FILE
from stratalog.log.exchange.segment_swap import replace_segments, settle_swaps
from stratalog.log.log_config import LogConfig
from stratalog.log.read.isolation import Isolation
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.locked_directory import CLEAN_SHUTDOWN_FILE
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.record import Record
from stratalog.segment.file_names import CLEANED_SUFFIX, SWAP_SUFFIX, segment_path
from stratalog.segment.indexes.transaction_index import AbortedTransaction, TransactionIndex
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_extent import SegmentExtent
from stratalog.segment.segment_files import rename_segment
from stratalog.segment.segment_resources import SegmentResources
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.logs.log_ledger import LogLedger, read_local
from tests.support.logs.log_machine import DATA_DIR, PARTITION_DIR, LogMachine

CONFIG = LogConfig(segment_bytes=1024, index_interval_bytes=100)
FAR = 2**31


def write(disk: MemoryFileSystem | FaultyFileSystem, path: str, data: bytes) -> None:
    file = disk.open_append(path)
    file.truncate(0)
    file.append([data])
    file.sync()
    file.close()


def filled() -> tuple[MemoryFileSystem, list[Record], list[int]]:
    """The disk of a log that was closed, its records and the bases of its segments."""
    disk = MemoryFileSystem()
    machine = LogMachine(disk, CONFIG)
    log = machine.start()
    ledger = LogLedger()
    for _ in range(30):
        ledger.append(log, [ledger.batch(3)])
    bases = [info.base_offset for info in log.reader.segments()]
    machine.stop()
    assert len(bases) >= 5
    return disk, list(ledger.acknowledged.values()), bases


def segment(disk: MemoryFileSystem | FaultyFileSystem, base_offset: int) -> LogSegment:
    path = segment_path(PARTITION_DIR, base_offset, ".log")
    return LogSegment(
        SegmentResources.over(disk),
        PARTITION_DIR,
        SegmentExtent(base_offset, base_offset, disk.file_size(path)),
        created_ms=0,
        index_interval_bytes=100,
        indexes=None,
    )


def merge(disk: MemoryFileSystem | FaultyFileSystem, bases: list[int]) -> None:
    """Put one segment in the place of the second and third, and one of the fourth."""
    second, third, fourth = (disk.read_file(segment_path(PARTITION_DIR, base, ".log")) for base in bases[1:4])
    for base_offset, data in ((bases[1], second + third), (bases[3], fourth)):
        write(disk, segment_path(PARTITION_DIR, base_offset, ".log") + CLEANED_SUFFIX, data)
        write(disk, segment_path(PARTITION_DIR, base_offset, ".timeindex") + CLEANED_SUFFIX, b"")
    disk.sync_directory(PARTITION_DIR)
    old = [segment(disk, base) for base in bases[1:4]]
    replace_segments(disk, PARTITION_DIR, [bases[1], bases[3]], old)


class Swap:
    """A log that was closed, whose segments are about to be replaced."""

    def __init__(self) -> None:
        inner, self.records, self.bases = filled()
        self.disk = FaultyFileSystem(inner)

    def merge(self) -> None:
        merge(self.disk, self.bases)


def test_a_swap_that_dies_at_any_operation_leaves_all_records_in_old_segments_or_new_ones() -> None:
    sweep = CrashSweep(Swap, Swap.merge)
    bases = sweep.whole.bases
    seen: set[tuple[int, ...]] = set()

    def verify(death: Death[Swap]) -> None:
        for found in death.disks():
            log = LogMachine(found, CONFIG).start()
            assert read_local(log) == death.subject.records
            seen.add(tuple(info.base_offset for info in log.reader.segments()))
            assert not [n for n in found.list_directory(PARTITION_DIR) if n.endswith(("swap", "cleaned"))]
            log.check()

    sweep.at_deaths(verify)
    assert seen == {tuple(bases), tuple(base for base in bases if base != bases[2])}


class DiskOfLateUnlinks(MemoryFileSystem):
    """Until its directory is synced, an unlinked file is there again after a crash, whatever became of names
    that were changed later."""

    def __init__(self) -> None:
        super().__init__()
        self.unlinked: dict[str, bytes] = {}
        self.found_later: list[dict[str, bytes | None]] = []
        """What a crash behind each rename would leave."""

    def unlink(self, path: str) -> None:
        self.unlinked[path] = self.read_file(path)
        super().unlink(path)

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        self.found_later.append({**self.contents(), **self.unlinked})

    def sync_directory(self, path: str) -> None:
        super().sync_directory(path)
        self.unlinked.clear()


def fill_disk(disk: MemoryFileSystem, contents: dict[str, bytes | None]) -> None:
    for path, data in contents.items():
        if data is None:
            disk.make_directories(path)
    for path, data in contents.items():
        if data is not None:
            write(disk, path, data)


def test_no_old_segment_comes_back_beside_the_one_that_has_its_records() -> None:
    """Though a start dies while it gives the new segments their names."""
    filled_disk, records, bases = filled()
    disk = DiskOfLateUnlinks()
    fill_disk(disk, filled_disk.contents())
    second, third, fourth = (disk.read_file(segment_path(PARTITION_DIR, base, ".log")) for base in bases[1:4])
    for base_offset, data in ((bases[1], second + third), (bases[3], fourth)):
        write(disk, segment_path(PARTITION_DIR, base_offset, ".log") + SWAP_SUFFIX, data)
    settle_swaps(disk, PARTITION_DIR)
    assert len(disk.found_later) == 2
    for contents in disk.found_later:
        found = MemoryFileSystem()
        fill_disk(found, contents)
        log = LogMachine(found, CONFIG).start()
        assert read_local(log) == records
        assert [info.base_offset for info in log.reader.segments()] == [b for b in bases if b != bases[2]]
        log.check()


@pytest.mark.parametrize("is_torn", [True, False])
def test_a_damaged_swap_file_replaces_nothing_that_is_there(is_torn: bool) -> None:
    disk, records, bases = filled()
    path = segment_path(PARTITION_DIR, bases[1], ".log")
    data = disk.read_file(path)
    write(disk, path + SWAP_SUFFIX, data[:-1] if is_torn else data[:80] + b"?" + data[81:])
    assert read_local(LogMachine(disk, CONFIG).start()) == records


@pytest.mark.parametrize("is_torn", [True, False])
def test_a_damaged_swap_file_gets_its_name_where_nothing_is_there(is_torn: bool) -> None:
    """What it replaced is gone: its sound batches are the only ones, and recovery takes it from there."""
    disk, records, bases = filled()
    path = segment_path(PARTITION_DIR, bases[-1], ".log")
    data = disk.read_file(path)
    damaged = data[:-1] if is_torn else data[:-1] + bytes([data[-1] ^ 1])
    rename_segment(disk, PARTITION_DIR, bases[-1], "", SWAP_SUFFIX)
    write(disk, path + SWAP_SUFFIX, damaged)
    for name in (CLEAN_SHUTDOWN_FILE, RECOVERY_POINT_FILE):
        disk.unlink(f"{DATA_DIR}/{name}")
    log = LogMachine(disk, CONFIG).start()
    assert read_local(log) == records[:-3]
    assert [info.base_offset for info in log.reader.segments()] == bases
    log.check()


def test_swap_files_at_or_above_the_lowest_cleaned_one_are_removed() -> None:
    """The new segments were not all renamed: the old ones stay."""
    disk, records, bases = filled()
    for base_offset, suffix in ((bases[1], CLEANED_SUFFIX), (bases[1], SWAP_SUFFIX), (bases[3], SWAP_SUFFIX)):
        path = segment_path(PARTITION_DIR, base_offset, ".log")
        write(disk, path + suffix, disk.read_file(path))
    log = LogMachine(disk, CONFIG).start()
    assert read_local(log) == records
    assert [info.base_offset for info in log.reader.segments()] == bases
    names = disk.list_directory(PARTITION_DIR)
    assert not [name for name in names if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))]


def test_a_swap_file_below_the_lowest_cleaned_one_replaces_what_begins_in_its_range() -> None:
    """The former swap was complete, and a later one had just begun."""
    disk, records, bases = filled()
    paths = [segment_path(PARTITION_DIR, base, ".log") for base in bases]
    write(disk, paths[1] + SWAP_SUFFIX, disk.read_file(paths[1]) + disk.read_file(paths[2]))
    write(disk, paths[3] + CLEANED_SUFFIX, disk.read_file(paths[3])[:50])
    log = LogMachine(disk, CONFIG).start()
    assert read_local(log) == records
    assert [info.base_offset for info in log.reader.segments()] == [
        base for base in bases if base != bases[2]
    ]
    log.check()


def test_a_directory_without_swap_files_is_only_looked_at() -> None:
    disk = FaultyFileSystem(filled()[0])
    settle_swaps(disk, PARTITION_DIR)
    assert disk.trace == [f"list_directory {PARTITION_DIR}"]


def far_batches() -> list[bytes]:
    """Of one segment that begins at 0, as old brokers merged them: an aborted transaction, and offsets beyond
    2^31."""

    def batch(base_offset: int, sequence: int, *, txn: bool) -> bytes:
        producer = BatchProducer(5, 0, sequence, txn)
        now_ms = LogMachine().clock.now_ms()
        record = Record(0, now_ms, b"k", b"%d" % base_offset)
        return encode_batch([record], base_offset=base_offset, leader_epoch=1, producer=producer)

    marker = EndTransactionMarker(ControlType.ABORT, 0)
    return [
        batch(7, 0, txn=False),
        batch(FAR - 10, 1, txn=True),
        batch(FAR + 100, 2, txn=True),
        marker.to_batch(5, 0, 10, base_offset=FAR + 101, leader_epoch=1),
        batch(2 * FAR - 20, 3, txn=False),
        batch(5 * FAR, 4, txn=False),
    ]


def far_disk(*, is_sealed: bool, index_bytes: bytes = b"") -> MemoryFileSystem:
    disk = MemoryFileSystem()
    machine = LogMachine(disk, LogConfig())
    log = machine.start()
    if is_sealed:
        log.appender.append_as_follower(
            encode_batch([Record(0, 1, None, b"x")], base_offset=3, leader_epoch=1)
        )
        log.appender.append_as_follower(
            encode_batch([Record(0, 1, None, b"y")], base_offset=9 * FAR, leader_epoch=1)
        )
    machine.stop()
    path = segment_path(PARTITION_DIR, 0, ".log")
    write(disk, path, b"".join(far_batches()))
    index = TransactionIndex(0)
    index.append(AbortedTransaction(5, FAR - 10, FAR + 101, FAR + 102))
    write(disk, segment_path(PARTITION_DIR, 0, ".txnindex"), index_bytes or index.to_bytes())
    for suffix in (".index", ".timeindex"):
        disk.unlink(segment_path(PARTITION_DIR, 0, suffix))
    return disk


def of_broker(disk: MemoryFileSystem | FaultyFileSystem) -> LogMachine:
    """No others ever held such segments."""
    return LogMachine(disk, LogConfig(), written_by_broker=True)


def verify_far(log: UnifiedLog, *, is_sealed: bool) -> None:
    log.check()
    offsets = [record.offset for record in read_local(log)]
    assert offsets == [7, FAR - 10, FAR + 100, FAR + 101, 2 * FAR - 20, 5 * FAR] + [9 * FAR] * is_sealed
    assert [info.base_offset for info in log.reader.segments()] == [0, FAR - 9, 5 * FAR] + [
        9 * FAR
    ] * is_sealed
    [aborted] = log.reader.read(FAR - 10, 1, Isolation.TXN_COMMITTED).aborted_transactions
    assert (aborted.first_offset, aborted.last_offset) == (FAR - 10, FAR + 101)


@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_segment_whose_offsets_are_too_far_apart_is_split(is_sealed: bool) -> None:
    inner = far_disk(is_sealed=is_sealed)
    disk = FaultyFileSystem(inner)
    machine = of_broker(disk)
    verify_far(machine.start(), is_sealed=is_sealed)
    machine.stop()
    again = machine.start()
    assert again.recovery_report.was_clean
    verify_far(again, is_sealed=is_sealed)


@pytest.mark.parametrize("damaged", [None, 1, 2, 3])
def test_the_parts_of_a_split_segment_are_walked(damaged: int | None) -> None:
    """Nobody had looked behind the first batch that was too far."""
    disk = far_disk(is_sealed=True)
    offsets = [7, FAR + 100, FAR + 101, FAR + 102]
    batches = [encode_batch([Record(0, 1, None, b"x")], base_offset=at, leader_epoch=1) for at in offsets]
    data = bytearray(b"".join(batches))
    if damaged is not None:
        data[len(b"".join(batches[: damaged + 1])) - 1] ^= 1
    write(disk, segment_path(PARTITION_DIR, 0, ".log"), bytes(data))
    disk.unlink(segment_path(PARTITION_DIR, 0, ".txnindex"))
    if damaged is None:
        log = of_broker(disk).start()
        assert not log.recovery_report.was_clean
        assert log.recovery_report.recovered_bytes == log.local_log.segments.size_bytes
        assert [info.base_offset for info in log.reader.segments()] == [0, FAR + 100, 9 * FAR]
        assert [record.offset for record in read_local(log)] == [*offsets, 9 * FAR]
        log.check()
    else:
        with pytest.raises(DataDirectoryError) as failure:
            of_broker(disk).start()
        assert {"end_offset", "recovery_point"} <= failure.value.fields.keys()


class Split:
    """A log whose first segment has to be split, about to be opened."""

    def __init__(self, index_bytes: bytes, *, is_sealed: bool) -> None:
        self.disk = FaultyFileSystem(far_disk(is_sealed=is_sealed, index_bytes=index_bytes))

    def start(self) -> None:
        of_broker(self.disk).start()


@pytest.mark.parametrize("index_bytes", [b"", b"damaged"])
@pytest.mark.parametrize("is_sealed", [True, False])
def test_a_split_that_dies_at_any_operation_is_done_by_the_next_process(
    is_sealed: bool, index_bytes: bytes
) -> None:
    def verify(death: Death[Split]) -> None:
        for found in death.disks():
            verify_far(of_broker(found).start(), is_sealed=is_sealed)

    CrashSweep(lambda: Split(index_bytes, is_sealed=is_sealed), Split.start, count=20).at_deaths(verify)


def test_the_old_names_are_gone_for_good_before_a_new_one_is_given() -> None:
    """POSIX promises no order among the changes of one directory that were not synced."""
    inner, _, bases = filled()
    disk = FaultyFileSystem(inner)
    merge(disk, bases)
    happened: list[str] = []
    for operation in disk.trace:
        name, *paths = operation.split(" ")
        if name == "rename":
            happened.append("new name" if paths[0].endswith(SWAP_SUFFIX) else paths[1].rpartition(".")[2])
        elif name == "sync_directory":
            happened.append("sync")
    steps = [step for step, before in zip(happened, ["", *happened], strict=False) if step != before]
    assert steps[-6:] == ["swap", "sync", "deleted", "sync", "new name", "sync"]
