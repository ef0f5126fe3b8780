"""Fetch responses from bytes, with the record batches left where they are.

protobuf would copy the batches into its message and once more out of it, which is a large part of the cost of
a consumer. So the fields of a large response are walked in place; everything but the batches goes to
protobuf. What has another form than `message_fields` knows, protobuf judges as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from stratalog.base.filesystem import Buffer
from stratalog.base.message_fields import MessageField, fields_of
from stratalog.v1 import log_pb2

if TYPE_CHECKING:
    from stratalog.record.reading.readable_batches import AbortedTransactionLike

_SMALL_BYTES = 64 << 10
"""Below this size two copies cost less than the walk."""

_MESSAGES = log_pb2.DESCRIPTOR.message_types_by_name
_PARTITIONS_NUMBER = _MESSAGES["FetchResponse"].fields_by_name["partitions"].number
_BATCHES_NUMBER = _MESSAGES["FetchedPartition"].fields_by_name["batches"].number


class ReceivedPartition(NamedTuple):
    """The answer for one partition as it was received."""

    fields: log_pb2.FetchedPartition
    """Everything but the batches."""
    batches: Buffer

    @property
    def topic(self) -> str:
        return self.fields.topic

    @property
    def partition(self) -> int:
        return self.fields.partition

    @property
    def next_fetch_offset(self) -> int:
        return self.fields.next_fetch_offset

    @property
    def last_epoch(self) -> int:
        return self.fields.last_epoch

    @property
    def aborted_transactions(self) -> Iterable[AbortedTransactionLike]:
        return self.fields.aborted_transactions


class ReceivedResponse(NamedTuple):
    """A response as it was received."""

    partitions: list[ReceivedPartition]


def decode_fetch_response(data: bytes) -> ReceivedResponse:
    """Decode a `FetchResponse`. Raises protobuf's DecodeError if `data` is none."""
    partitions = _walked(data) if len(data) > _SMALL_BYTES else None
    if partitions is None:
        message = log_pb2.FetchResponse.FromString(data)
        partitions = [ReceivedPartition(one, one.batches) for one in message.partitions]
    return ReceivedResponse(partitions)


def _walked(data: bytes) -> list[ReceivedPartition] | None:
    """The partitions, with the batches in place; None if protobuf has to judge."""
    found: list[ReceivedPartition] = []
    for field in fields_of(data, 0, len(data)):
        if field is None:
            return None
        if field.number == _PARTITIONS_NUMBER:
            partition = _partition(data, field) if field.is_sized else None
            if partition is None:
                return None
            found.append(partition)
    return found


def _partition(data: bytes, place: MessageField) -> ReceivedPartition | None:
    view = memoryview(data)
    batches: Buffer = b""
    rest = bytearray()
    begin = place.position
    for field in fields_of(data, begin, place.end_position):
        if field is None:
            return None
        if field.number == _BATCHES_NUMBER and field.is_sized:
            # The last ones of several count.
            batches = view[field.position : field.end_position]
        else:
            rest += view[begin : field.end_position]
        begin = field.end_position
    return ReceivedPartition(log_pb2.FetchedPartition.FromString(bytes(rest)), batches)
