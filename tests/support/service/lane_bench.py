"""A lane of a producer whose requests a test answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from copy import copy

from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicPartition
from stratalog.client.retry import RetryPolicy
from stratalog.client.sending.batch_receipt import BatchReceipt
from stratalog.client.sending.partition_lane import PartitionLane, TakenBatch
from stratalog.client.sending.producer_identities import ProducerIdentity
from stratalog.client.sending.sealed_batch import BatchContents, EncodedBatch, SealedBatch
from stratalog.record.batch import decode
from stratalog.record.builder import NO_PRODUCER, encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import HEADER_SIZE, parse_header
from stratalog.record.record import Record
from stratalog.v1 import log_pb2

HERE = TopicPartition("t", 0)
LIMIT_BYTES = 32 << 20
AT_ONCE = RetryPolicy(deadline_s=60.0, first_pause_s=0.0, max_pause_s=0.0)


class LaneBench:
    """A lane whose requests the test answers. Belongs to the test's loop."""

    def __init__(self, retry: RetryPolicy = AT_ONCE, identity: ProducerIdentity | None = None) -> None:
        self.outcomes: list[tuple[bytes, type[LogStoreError] | None]] = []
        """The first value and the error of each batch that is settled."""
        self.stored: list[str] = []
        """The field `outcome` of each batch that has failed."""
        self.pause_is_over = asyncio.Event()
        self.identity = identity
        self.topic_id = ""
        """The topic that batches are placed for."""
        self.max_batch_bytes: int | None = None
        self.lane = PartitionLane(
            HERE,
            retry,
            self._settled,
            self._split,
            lambda _: self.pause_is_over.set(),
            is_idempotent=identity is not None,
        )
        self.receipts: list[BatchReceipt] = []
        self.sequence = 0
        self._values: dict[SealedBatch, bytes] = {}

    def queue(self, *values: bytes) -> None:
        """Queue one batch of these records."""
        batch = encode_batch([Record(0, 0, None, value) for value in values])
        self.receipts.append(BatchReceipt(*HERE))
        contents = BatchContents(len(values), 0, 0, Codec.NONE)
        sealed = SealedBatch(
            HERE, self.receipts[-1], 0, contents, len(batch), batch[HEADER_SIZE:], self.topic_id
        )
        self._values[sealed] = values[0]
        self.lane.queue(sealed)

    def batches(self) -> list[SealedBatch]:
        """Those that are not settled."""
        return list(self._values)

    def take(self, limit_bytes: int | None = LIMIT_BYTES) -> tuple[int, bytes, bool] | None:
        """The sequence, the first value and the resume of the next request."""
        batch = self.take_batch(limit_bytes)
        return None if batch is None else (self.sequence, _first_value(batch.batch), batch.resume)

    def take_batch(self, limit_bytes: int | None = LIMIT_BYTES) -> TakenBatch | None:
        """The next request."""
        taken = self.lane.take(self.sequence + 1, limit_bytes, self.identity, self.max_batch_bytes)
        self.lane.check()
        if taken is None:
            return None
        self.sequence += 1
        return taken

    def take_numbers(self) -> list[tuple[bytes, int, int]]:
        """The first value, the producer id and the base sequence of each request that may be sent now."""
        taken: list[tuple[bytes, int, int]] = []
        while (request := self.take_batch()) is not None:
            header = parse_header(request.batch.head)
            taken.append((_first_value(request.batch), header.producer_id, header.base_sequence))
        return taken

    def take_all(self) -> list[tuple[int, bytes, bool]]:
        taken: list[tuple[int, bytes, bool]] = []
        while (request := self.take()) is not None:
            taken.append(request)
        return taken

    def acknowledge(
        self,
        sequence: int,
        base_offset: int,
        record_count: int = 1,
        durability: log_pb2.Durability.ValueType = log_pb2.DURABILITY_OS,
    ) -> None:
        ack = log_pb2.AppendResponse(
            base_offset=base_offset,
            last_offset=base_offset + record_count - 1,
            durability=durability,
        )
        self.lane.acknowledge(sequence, ack)
        self.lane.check()

    def refuse(self, sequence: int, error: LogStoreError) -> None:
        self.lane.refuse(sequence, error)
        self.lane.check()

    def _settled(self, batch: SealedBatch, error: LogStoreError | None) -> None:
        self.outcomes.append((self._values.pop(batch), None if error is None else type(error)))
        if error is not None:
            self.stored.append(str(error.fields["outcome"]))

    def _split(self, batch: SealedBatch, halves: Sequence[SealedBatch]) -> None:
        del self._values[batch]
        for half in halves:
            self._values[half] = _first_value(copy(half).encode(NO_PRODUCER))


def _first_value(batch: EncodedBatch) -> bytes:
    return decode(b"".join(batch))[0].value or b""
