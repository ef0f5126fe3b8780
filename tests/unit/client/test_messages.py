"""Fetched batches reach over the ends of what was asked for; records outside do not count."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.client.messages import fetched_records
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.v1 import log_pb2


@given(
    counts=st.lists(st.integers(1, 5), max_size=4),
    fetch_offset=st.integers(0, 20),
    next_offset=st.integers(0, 25),
)
def test_only_records_inside_the_range_count(counts: list[int], fetch_offset: int, next_offset: int) -> None:
    batches, offset = b"", 0
    for count in counts:
        records = [Record(0, 5, b"k", str(offset + delta).encode()) for delta in range(count)]
        batches += encode_batch(records, base_offset=offset)
        offset += count
    answer = log_pb2.FetchedPartition(topic="t", partition=1, batches=batches, next_fetch_offset=next_offset)
    fetched = fetched_records(answer, fetch_offset)
    expected = [at for at in range(offset) if fetch_offset <= at < next_offset]
    assert [record.offset for record in fetched.records] == expected
    assert [record.value for record in fetched.records] == [str(at).encode() for at in expected]
