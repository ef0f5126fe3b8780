"""Batches as producer state sees them, from a file that a real broker wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError
from stratalog.log.producers.producer_batch import ProducerBatch, producer_batches
from stratalog.record.batch import batches
from stratalog.record.batch_producer import MAX_SEQUENCE, add_to_sequence
from stratalog.segment.batch_walk import LocatedBatch, walk
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.producer_batches import data_batch
from tests.support.places import GOLDEN

TRANSACTIONS = GOLDEN / "data" / "g1-txn-0" / f"{2:020d}.log"


@given(sequence=st.integers(0, MAX_SEQUENCE), count=st.integers(0, MAX_SEQUENCE))
def test_sequences_go_round(sequence: int, count: int) -> None:
    assert add_to_sequence(sequence, count) == (sequence + count) % 2**31
    assert add_to_sequence(add_to_sequence(sequence, count), -count) == sequence


def test_a_batch_ends_with_the_sequence_of_its_last_record() -> None:
    assert data_batch(0, 7, 0, 5, count=3).last_sequence == 7
    assert data_batch(0, 7, 0, MAX_SEQUENCE, count=3).last_sequence == 1
    assert data_batch(0, 7, 0, count=3).last_sequence == -1


def test_what_the_log_gives_a_batch() -> None:
    batch = data_batch(0, 7, 0, 5, count=3, timestamp_ms=9)
    kept, replaced = batch.stamped(100, None), batch.stamped(100, 50)
    assert (kept.header.base_offset, kept.header.last_offset, kept.header.max_timestamp) == (100, 102, 9)
    assert (replaced.header.base_offset, replaced.header.max_timestamp) == (100, 50)
    assert kept.header._replace(base_offset=0) == batch.header


def test_a_file_gives_the_batches_with_their_markers() -> None:
    data = TRANSACTIONS.read_bytes()
    filesystem = MemoryFileSystem()
    file = filesystem.open_append("/txn.log")
    file.append([data])
    expected = [ProducerBatch.read(data, position, header) for position, header in batches(data)]
    found = list(producer_batches(file, walk(file, 0, len(data))))
    assert found == expected
    assert {batch.marker is not None for batch in found} == {False, True}
    position, header = next(item for item in batches(data) if item[1].is_control)
    file.truncate(position + header.size_in_bytes - 1)
    with pytest.raises(CorruptRecordError):
        list(producer_batches(file, [LocatedBatch(position, header)]))
