"""Transaction indexes held against logs that are much longer than what is read of them at a time."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from stratalog.log.aborted_evidence import is_contradicted
from stratalog.log.log_config import LogConfig
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.transaction_index import AbortedTransaction, TransactionIndex
from stratalog.testing.faulty_filesystem import FaultyFileSystem
from stratalog.testing.log_machine import LogMachine
from stratalog.testing.manual_clock import DEFAULT_NOW_MS

SEED = 7
CONFIG = LogConfig(segment_bytes=64 << 10, remote_storage_enable=False, retention_ms=-1)


def written(disk: FaultyFileSystem, value_bytes: int) -> list[LogSegment]:
    """Segments in which the transactions of seven producers overlap; most are aborted, some are long."""
    log, chosen = LogMachine(disk, CONFIG).start(), random.Random(SEED)
    sequences: Counter[int] = Counter()
    opened: set[int] = set()
    while len(log.segments()) < 4:
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
