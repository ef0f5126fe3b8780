"""Transaction indexes held against logs that are much longer than what is read of them at a time."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from stratalog.log.log_config import LogConfig
from stratalog.log.recovery.aborted_evidence import is_contradicted
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.segment.file_names import TRANSACTION_CHECKSUM_SUFFIX, TRANSACTION_INDEX_SUFFIX, segment_path
from stratalog.segment.indexes.transaction_index import AbortedTransaction, TransactionIndex
from stratalog.segment.log_segment import LogSegment
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.manual_clock import DEFAULT_NOW_MS
from stratalog.testing.memory_filesystem import Kept, MemoryFileSystem, Survival
from tests.support.logs.log_machine import PARTITION_DIR, LogMachine

SEED = 7
CONFIG = LogConfig(segment_bytes=64 << 10, remote_storage_enable=False, retention_ms=-1)


def written(disk: FaultyFileSystem, value_bytes: int) -> list[LogSegment]:
    """Segments in which the transactions of seven producers overlap; most are aborted, some are long."""
    return written_by(LogMachine(disk, CONFIG), value_bytes)


def written_by(machine: LogMachine, value_bytes: int, active_bytes: int = 0) -> list[LogSegment]:
    """The last one has at least `active_bytes`."""
    log, chosen = machine.start(), random.Random(SEED)
    sequences: Counter[int] = Counter()
    opened: set[int] = set()
    while len(log.segments()) < 4 or log.segments()[-1].size_bytes < active_bytes:
        producer_id = min(chosen.randrange(7), chosen.randrange(7))
        if producer_id in opened and chosen.randrange(3) == 0:
            log.append_end_transaction_marker(
                producer_id, 0, 0, committed=chosen.randrange(9) == 0, leader_epoch=1
            )
            opened.discard(producer_id)
            continue
        records = [Record(0, DEFAULT_NOW_MS, b"k", bytes(value_bytes))] * chosen.randrange(1, 4)
        producer = BatchProducer(producer_id, 0, base_sequence=sequences[producer_id], is_transactional=True)
        log.append_as_leader(encode_batch(records, producer=producer), 1)
        sequences[producer_id] += len(records)
        opened.add(producer_id)
    return list(log._local.segments)  # pyright: ignore[reportPrivateUsage]  # the evidence is about them


@pytest.mark.parametrize("contents", Kept)
def test_a_power_loss_behind_the_first_start_with_checksums_costs_no_walk(contents: Kept) -> None:
    """They are written then without a sync: what is left of them may be their sizes."""
    disk = MemoryFileSystem()
    machine = LogMachine(disk, CONFIG)
    written_by(machine, 10)
    machine.stop()
    for path in disk.contents():
        if path.endswith(TRANSACTION_CHECKSUM_SUFFIX):
            disk.unlink(path)
    disk.sync_directory(PARTITION_DIR)
    log = machine.start()
    assert log.recovery_report.was_clean
    machine.checkpoint()
    active_bytes = log.segments()[-1].size_bytes
    again = LogMachine(disk.after_crash(Survival(contents, Kept.ALL)), CONFIG).start()
    has_noise = contents in (Kept.HALF, Kept.NOISE, Kept.EACH)
    assert again.recovery_report.recovered_bytes == active_bytes or has_noise
    assert aborted_of(again) == aborted_of(log)


@pytest.mark.parametrize("is_active", [True, False])
def test_a_segment_that_had_no_checksum_has_one_when_it_was_opened(is_active: bool) -> None:
    """As in a broker's log. From then on an entry that another batch of its producer would bear out is known
    for what it is."""
    disk = MemoryFileSystem()
    machine = LogMachine(disk, CONFIG)
    segments = written_by(machine, 10, active_bytes=32 << 10)
    machine.stop()
    for path in disk.contents():
        if path.endswith(TRANSACTION_CHECKSUM_SUFFIX):
            disk.unlink(path)
    segment = segments[-1 if is_active else 0]
    first = aborted_of(machine.start())
    assert disk.exists(segment_path(PARTITION_DIR, segment.base_offset, TRANSACTION_CHECKSUM_SUFFIX))
    machine.stop()
    path = segment_path(PARTITION_DIR, segment.base_offset, TRANSACTION_INDEX_SUFFIX)
    index = TransactionIndex.load(disk, PARTITION_DIR, segment.base_offset)
    entries = list(index)
    known = [one for one in segments if one.base_offset <= segment.base_offset]
    damaged = next(
        possible.to_bytes()
        for ordinal, entry in enumerate(entries)
        if (moved := moved_on(entry, segments)) != entry
        and (possible := index_of(segment.base_offset, [*entries[:ordinal], moved, *entries[ordinal + 1 :]]))
        and not is_contradicted(possible, known)
    )
    disk.unlink(path)
    file = disk.open_append(path)
    file.append([damaged])
    file.close()
    log = machine.start()
    assert aborted_of(log) == first
    assert not log.recovery_report.was_clean


def moved_on(entry: AbortedTransaction, segments: list[LogSegment]) -> AbortedTransaction:
    """The same, but that it begins with the second batch of its transaction, if it has one."""
    for segment in segments:
        for _, header in segment.batches():
            is_of_producer = header.producer_id == entry.producer_id and not header.is_control
            if is_of_producer and entry.first_offset < header.base_offset < entry.last_offset:
                return entry._replace(first_offset=header.base_offset)
    return entry


def aborted_of(log: UnifiedLog) -> list[AbortedTransaction]:
    return list(log.aborted_transactions(0, log.log_end_offset))


def index_of(base_offset: int, entries: list[AbortedTransaction]) -> TransactionIndex:
    index = TransactionIndex(base_offset)
    for entry in entries:
        index.append(entry)
    return index


@pytest.mark.parametrize("value_bytes", [10, 600])
def test_each_entry_that_is_another_one_is_found(value_bytes: int) -> None:
    segments = written(FaultyFileSystem(), value_bytes)
    chosen = random.Random(SEED)
    for count in range(1, len(segments)):
        known, base_offset = segments[:count], segments[count - 1].base_offset
        entries = list(known[-1].indexes().transaction_index)
        assert len(entries) > 5, SEED
        firsts = {
            (header.producer_id, header.base_offset)
            for segment in known
            for _, header in segment.batches()
            if not header.is_control
        }
        assert not is_contradicted(index_of(base_offset, entries), known)
        for ordinal in chosen.sample(range(len(entries)), 5):
            entry = entries[ordinal]
            for changed in (
                entry._replace(producer_id=entry.producer_id ^ 8),
                entry._replace(first_offset=entry.first_offset + 1),
                entry._replace(first_offset=max(0, entry.first_offset - 1)),
                entry._replace(last_offset=entry.last_offset + 1),
                entry._replace(last_stable_offset=entry.last_offset + 2),
            ):
                if changed == entry or changed.first_offset >= changed.last_offset:
                    continue
                if changed[:2] != entry[:2] and changed[:2] in firsts:
                    # Another batch of the same producer: nothing tells.
                    continue
                # Alone, because two may not have the same marker.
                beside = [one for one in entries if one.last_offset not in (changed.last_offset, entry[2])]
                mixed = sorted([*beside, changed], key=lambda one: one.last_offset)
                assert is_contradicted(index_of(base_offset, mixed), known), (entry, changed, SEED)


def test_entries_that_lie_close_are_found_with_few_reads() -> None:
    disk = FaultyFileSystem()
    segments = written(disk, 10)
    index = segments[-2].indexes().transaction_index
    entries = list(index)
    known = segments[:-1]
    before = disk.operation_count
    assert not is_contradicted(index_of(segments[-2].base_offset, entries), known)
    reads = [line for line in disk.trace[before:] if line.startswith("read_at ")]
    assert len(entries) > 50
    # 64 KiB of batches, 16 KiB at a time, for markers; and where long transactions begin before them.
    assert len(reads) < len(entries)
