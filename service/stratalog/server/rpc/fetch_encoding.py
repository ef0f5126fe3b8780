"""Encodes fetch responses, with one copy of the record batches.

A protobuf message copies a bytes field when it is set, again when its message goes into another, and again
when it is serialised; for answers of megabytes that is most of the cost of a fetch. So protobuf serialises
the small fields, and this module puts the batches behind them:

    FetchResponse    = { 0x0a varint(size) FetchedPartition }      field 1, length-delimited, repeated
    FetchedPartition = the other fields, by protobuf
                     | 0x1a varint(size) batches                   field 3, length-delimited

The order of fields is free in protobuf's wire format, so every parser reads this as the message that
log.proto says; a test compares it with protobuf's own encoding.

Readers that an append has woken get the same bytes, which the first of them encodes: an answer with batches
of one partition, as those at the end of a log are, is shared within a turn of the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stratalog.base.filesystem import Buffer
from stratalog.base.message_fields import sized_field_head
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.server.fetch.fetch_cursor import FetchCursor
from stratalog.server.fetch.turn_memo import TurnMemo
from stratalog.server.log_identity import UNKNOWN_EPOCH
from stratalog.server.rpc.answer_errors import AnswerErrors
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.v1 import log_pb2

_MESSAGES = log_pb2.DESCRIPTOR.message_types_by_name
_PARTITIONS_NUMBER = _MESSAGES["FetchResponse"].fields_by_name["partitions"].number
_BATCHES_NUMBER = _MESSAGES["FetchedPartition"].fields_by_name["batches"].number


class _Shared(NamedTuple):
    """An answer, and the chunks in it, whose names no other objects get as long as these are here."""

    chunks: tuple[Buffer, ...]
    answer: bytes


class FetchEncoder:
    """Encodes the answers of fetches. Belongs to the event loop."""

    def __init__(self, statuses: ErrorStatuses, loop: asyncio.AbstractEventLoop) -> None:
        self._statuses = statuses
        self._shared = TurnMemo[_Shared](loop)

    def encode(self, cursors: Sequence[FetchCursor]) -> bytes:
        """A serialised `FetchResponse` with the data of the cursors, which continue behind it."""
        if len(cursors) != 1 or cursors[0].error is not None or not cursors[0].chunks:
            return self._encoded(cursors)
        first = cursors[0]
        chunks = tuple(first.chunks)
        # The same batches come in the same objects, because their read was shared, too.
        names = tuple(map(id, chunks)), tuple(first.aborted_transactions)
        key = first.partition, first.start, first.position, first.tiered_epoch, names

        def encode() -> _Shared:
            return _Shared(chunks, self._encoded(cursors))

        shared = self._shared.get(key, encode)
        assert shared is not None
        if first.chunks:
            first.take()
        return shared.answer

    def _encoded(self, cursors: Iterable[FetchCursor]) -> bytes:
        parts: list[Buffer] = []
        errors = AnswerErrors(self._statuses)
        for cursor in cursors:
            fetch_offset = cursor.start
            chunks, size_bytes, aborted_transactions = cursor.take()
            head = _without_batches(errors, cursor, fetch_offset, aborted_transactions).SerializeToString()
            if size_bytes:
                head += sized_field_head(_BATCHES_NUMBER, size_bytes)
            parts += (sized_field_head(_PARTITIONS_NUMBER, len(head) + size_bytes), head, *chunks)
        return b"".join(parts)


def _without_batches(
    errors: AnswerErrors,
    cursor: FetchCursor,
    fetch_offset: int,
    aborted_transactions: Iterable[AbortedTransaction],
) -> log_pb2.FetchedPartition:
    answer = log_pb2.FetchedPartition(
        topic=cursor.topic_partition.topic,
        partition=cursor.topic_partition.partition,
        fetch_offset=fetch_offset,
        next_fetch_offset=cursor.position,
        last_epoch=UNKNOWN_EPOCH,
    )
    for aborted in aborted_transactions:
        answer.aborted_transactions.add(
            producer_id=aborted.producer_id,
            first_offset=aborted.first_offset,
            last_offset=aborted.last_offset,
        )
    if cursor.partition is not None and (cursor.error is None or not errors.is_full):
        marks = cursor.partition.watermarks()
        answer.log_start_offset = marks.log_start_offset
        answer.local_log_start_offset = marks.local_log_start_offset
        answer.high_watermark = marks.high_watermark
        answer.last_stable_offset = marks.last_stable_offset
        answer.topic_id = cursor.partition.identity.topic_id
        answer.leader_epoch = cursor.partition.identity.leader_epoch
        if cursor.error is None:
            answer.last_epoch = cursor.last_epoch
    if cursor.error is not None:
        where = f"a fetch from {cursor.topic_partition}"
        answer.error.CopyFrom(errors.status(cursor.error, where, cursor.topic_partition))
    return answer
