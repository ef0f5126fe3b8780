"""Where requests for data end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.remote.read.object_reads import RemoteReaderSettings
from stratalog.testing.manual_clock import ManualClock
from tests.support.tiered.inline_reads import inline_reads

CHUNK_BYTES = 100


@given(position=st.integers(0, 1000), wanted_bytes=st.integers(1, 300), rest_bytes=st.integers(1, 1000))
def test_a_request_of_a_chunk_ends_at_a_multiple_or_at_the_end(
    position: int, wanted_bytes: int, rest_bytes: int
) -> None:
    reads = inline_reads(MemoryObjectStore(ManualClock()), RemoteReaderSettings(chunk_bytes=CHUNK_BYTES))
    limit = position + rest_bytes
    end = reads.request_end(position, wanted_bytes, limit)
    assert position < end <= limit
    if wanted_bytes < CHUNK_BYTES:
        assert end == min(position + wanted_bytes, limit)
        return
    assert end == limit or end % CHUNK_BYTES == 0
    assert end == limit or limit - end >= CHUNK_BYTES // 2, "no small request is left for the end"
    assert end == limit or abs(end - position - wanted_bytes) <= CHUNK_BYTES // 2
    assert end - position - wanted_bytes < CHUNK_BYTES
