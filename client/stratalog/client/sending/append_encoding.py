"""Append requests as bytes, with one copy of the record batch.

protobuf copies a batch when it is set, once more when the message is serialised, and again into the bytes of
the message. So it serialises the small fields, and the batch is put behind them. The order of fields is free
in protobuf's wire format: every parser reads this as the message that log.proto says.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.filesystem import Buffer
from stratalog.base.message_fields import sized_field_head
from stratalog.v1 import log_pb2

_BATCHES_NUMBER = log_pb2.DESCRIPTOR.message_types_by_name["AppendRequest"].fields_by_name["batches"].number
"""The same in an `AppendStreamRequest`."""


def encode_append_request(
    fields: log_pb2.AppendRequest | log_pb2.AppendStreamRequest, batch: Sequence[Buffer]
) -> bytes:
    """A serialised request with the batch of these parts. `fields` has everything else."""
    assert fields.WhichOneof("payload") is None
    head = sized_field_head(_BATCHES_NUMBER, sum(map(len, batch)))
    return b"".join((fields.SerializeToString(), head, *batch))
