"""Segments that replace others, and those that are split: a crash at any moment leaves the same records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import pytest

from stratalog.base.errors import DataDirectoryError
from stratalog.log.exchange.segment_swap import replace_segments, settle_swaps
from stratalog.log.isolation import Isolation
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.record import Record
from stratalog.segment.file_names import CLEANED_SUFFIX, SWAP_SUFFIX
from stratalog.segment.indexes.transaction_index import AbortedTransaction, TransactionIndex
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_extent import SegmentExtent
from stratalog.segment.segment_resources import SegmentResources
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.crash_moments import EVERYTHING_KEPT
from tests.support.logs.crash_sweep import CrashSweep, Death
from tests.support.logs.filled_log import CONFIG, FilledLog, path_of
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.logs.log_ledger import read_local
from tests.support.logs.log_machine import PARTITION_DIR, LogMachine
from tests.support.logs.overwriting import overwrite

FAR = 2**31
Disk: TypeAlias = MemoryFileSystem | FaultyFileSystem


def closed() -> tuple[MemoryFileSystem, list[Record], Sequence[int]]:
    """The disk of a log that was closed, its records and the bases of its segments."""
    filled = FilledLog(30)
    bases = filled.bases
    assert len(bases) >= 5
    return filled.stopped(), list(filled.ledger.acknowledged.values()), bases


def segment(disk: Disk, base_offset: int) -> LogSegment:
    path = path_of(base_offset)
    return LogSegment(
        SegmentResources.over(disk),
        PARTITION_DIR,
        SegmentExtent(base_offset, base_offset, disk.file_size(path)),
        created_ms=0,
        index_interval_bytes=100,
        indexes=None,
    )


def write_merged(disk: Disk, bases: Sequence[int], suffix: str) -> None:
    """Put one segment beside the second and third, and one beside the fourth."""
    second, third, fourth = (disk.read_file(path_of(base)) for base in bases[1:4])
    for base_offset, data in ((bases[1], second + third), (bases[3], fourth)):
        overwrite(disk, path_of(base_offset) + suffix, data, durable=True)


def merge(disk: Disk, bases: Sequence[int]) -> None:
    """Put these segments in the place of the three."""
    write_merged(disk, bases, CLEANED_SUFFIX)
    for base_offset in (bases[1], bases[3]):
        overwrite(disk, path_of(base_offset, ".timeindex") + CLEANED_SUFFIX, b"", durable=True)
    disk.sync_directory(PARTITION_DIR)
    old = [segment(disk, base) for base in bases[1:4]]
    replace_segments(disk, PARTITION_DIR, [bases[1], bases[3]], old)


class Swap:
    """A log that was closed, whose segments are about to be replaced."""

    def __init__(self) -> None:
        inner, self.records, self.bases = closed()
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


def test_no_old_segment_comes_back_beside_the_one_that_has_its_records() -> None:
    """A start dies while it gives the new segments their names, and what it unlinked since the last sync of
    the directory is there again."""
    disk, records, bases = closed()
    write_merged(disk, bases, SWAP_SUFFIX)
    unlinked: dict[str, bytes] = {}
    found_later: list[MemoryFileSystem] = []

    def note(name: str, path: str) -> None:
        if name == "unlink":
            unlinked[path] = disk.read_file(path)
        elif name == "sync_directory":
            unlinked.clear()
        elif name == "rename":
            # Behind the rename; every file that was unlinked since the last sync is there again.
            source, target = path.split(" ")
            found = disk.after_crash(EVERYTHING_KEPT)
            found.rename(source, target)
            for path_again, data in unlinked.items():
                overwrite(found, path_again, data)
            found_later.append(found)

    settle_swaps(HookedDisk(note, disk), PARTITION_DIR)
    assert len(found_later) == 2
    for found in found_later:
        log = LogMachine(found, CONFIG).start()
        assert read_local(log) == records
        assert [info.base_offset for info in log.reader.segments()] == [b for b in bases if b != bases[2]]
        log.check()


@pytest.mark.parametrize("is_torn", [True, False])
def test_a_damaged_swap_file_replaces_nothing_that_is_there(is_torn: bool) -> None:
    disk, records, bases = closed()
    path = path_of(bases[1])
    data = disk.read_file(path)
    overwrite(disk, path + SWAP_SUFFIX, data[:-1] if is_torn else data[:80] + b"?" + data[81:])
    assert read_local(LogMachine(disk, CONFIG).start()) == records


def test_swap_files_at_or_above_the_lowest_cleaned_one_are_removed() -> None:
    """The new segments were not all renamed: the old ones stay."""
    disk, records, bases = closed()
    for base_offset, suffix in ((bases[1], CLEANED_SUFFIX), (bases[1], SWAP_SUFFIX), (bases[3], SWAP_SUFFIX)):
        path = path_of(base_offset)
        overwrite(disk, path + suffix, disk.read_file(path))
    log = LogMachine(disk, CONFIG).start()
    assert read_local(log) == records
    assert [info.base_offset for info in log.reader.segments()] == bases
    names = disk.list_directory(PARTITION_DIR)
    assert not [name for name in names if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))]


def test_a_swap_file_below_the_lowest_cleaned_one_replaces_what_begins_in_its_range() -> None:
    """The former swap was complete, and a later one had just begun."""
    disk, records, bases = closed()
    paths = [path_of(base) for base in bases]
    overwrite(disk, paths[1] + SWAP_SUFFIX, disk.read_file(paths[1]) + disk.read_file(paths[2]))
    overwrite(disk, paths[3] + CLEANED_SUFFIX, disk.read_file(paths[3])[:50])
    log = LogMachine(disk, CONFIG).start()
    assert read_local(log) == records
    assert [info.base_offset for info in log.reader.segments()] == [
        base for base in bases if base != bases[2]
    ]
    log.check()


def test_a_directory_without_swap_files_is_only_looked_at() -> None:
    disk = FaultyFileSystem(closed()[0])
    settle_swaps(disk, PARTITION_DIR)
    assert disk.trace == [f"list_directory {PARTITION_DIR}"]


def far_batches() -> list[bytes]:
    """Batches of one segment that begins at 0, as old brokers merged them: an aborted transaction, and
    offsets beyond 2^31."""

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
    path = path_of(0)
    overwrite(disk, path, b"".join(far_batches()), durable=True)
    index = TransactionIndex(0)
    index.append(AbortedTransaction(5, FAR - 10, FAR + 101, FAR + 102))
    overwrite(disk, path_of(0, ".txnindex"), index_bytes or index.to_bytes(), durable=True)
    for suffix in (".index", ".timeindex"):
        disk.unlink(path_of(0, suffix))
    return disk


def of_broker(disk: Disk) -> LogMachine:
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
    inner, _, bases = closed()
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


@pytest.mark.parametrize("damaged", [None, 2])
def test_the_parts_of_a_split_segment_are_walked(damaged: int | None) -> None:
    """The batches behind the first one that was too far had not been looked at."""
    disk = far_disk(is_sealed=True)
    offsets = [7, FAR + 100, FAR + 101, FAR + 102]
    batches = [encode_batch([Record(0, 1, None, b"x")], base_offset=at, leader_epoch=1) for at in offsets]
    data = bytearray(b"".join(batches))
    if damaged is not None:
        data[len(b"".join(batches[: damaged + 1])) - 1] ^= 1
    overwrite(disk, path_of(0), bytes(data), durable=True)
    disk.unlink(path_of(0, ".txnindex"))
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
