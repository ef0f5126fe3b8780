"""Append requests encoded around protobuf are the messages that protobuf makes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.client.sending.append_encoding import encode_append_request
from stratalog.v1 import log_pb2

FIELDS = st.builds(
    log_pb2.AppendStreamRequest,
    topic=st.text(max_size=20),
    partition=st.integers(0, (1 << 31) - 1),
    durability=st.sampled_from(log_pb2.Durability.values()),
    sequence=st.integers(0, (1 << 64) - 1),
    resume=st.booleans(),
    topic_id=st.text(max_size=20),
)
PLAIN_FIELDS = st.builds(log_pb2.AppendRequest, topic=st.text(max_size=20), expected_offset=st.integers(0, 9))


@given(FIELDS | PLAIN_FIELDS, st.integers(0, 300) | st.sampled_from([(1 << 14) - 1, 1 << 14, (1 << 21) + 5]))
def test_is_read_as_the_message(
    fields: log_pb2.AppendStreamRequest | log_pb2.AppendRequest, size_bytes: int
) -> None:
    batch = bytes(size_bytes)
    parts = (batch[: size_bytes // 3], memoryview(batch)[size_bytes // 3 :])
    expected = type(fields).FromString(fields.SerializeToString())
    expected.batches = batch
    assert type(fields).FromString(encode_append_request(fields, parts)) == expected
