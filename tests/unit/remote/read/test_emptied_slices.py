"""Slices without records, as compaction leaves them, beside others of their object."""

from __future__ import annotations

from itertools import permutations

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.read.remote_reader import RemoteReader
from stratalog.segment.timestamp_offset import TimestampOffset
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.inline_reads import inline_reads
from tests.support.tiered.tiered_store import TieredStore


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_an_empty_slice_and_the_one_behind_it_have_indexes_of_their_own(order: tuple[int, ...]) -> None:
    clock = ManualClock()
    tiered = TieredStore(MemoryFileSystem(), MemoryObjectStore(clock), clock, SequentialIds(1))
    topic_id = tiered.catalog.create("t", 3, {}).topic_id
    empty, full, last = (TopicIdPartition(topic_id, number) for number in range(3))
    batch = encode_batch([Record(0, 5, b"k", b"v")])
    tiered.upload({empty: [], full: [batch], last: []}, end_offsets={empty: 4, last: 2})
    reader = RemoteReader(inline_reads(tiered.store), tiered.metadata)
    wanted = [(None, 4), (TimestampOffset(5, 0), 1), (None, 2)]
    for number in order:
        tip = (empty, full, last)[number]
        # The producers of an empty slice count: a log that begins at its end reads its index.
        assert reader.state_at_end(tip) is not None
        found = reader.offset_for_timestamp(tip, 0), reader.read(tip, 0, 1 << 20).next_offset
        assert found == wanted[number]
