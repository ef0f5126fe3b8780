"""Plain reads as a client without a codec makes them, and an oracle that reads the same with Fetch.

The oracle decodes whole batches, and leaves out aborted transactions by the rule of Kafka's consumer: from
the first offset of an aborted transaction until the next marker of its producer.
"""

from __future__ import annotations

import dataclasses
from typing import cast

import grpc
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from stratalog.client.isolation_level import IsolationLevel
from stratalog.client.messages import wire_isolation
from stratalog.record.batch import batches, decode
from stratalog.record.record import Record
from stratalog.v1 import log_pb2
from tests.support.service.error_details import error_info
from tests.support.service.service_bench import PATIENCE_S, ServiceBench


@dataclasses.dataclass(slots=True)
class PlainRead:
    """The records of a read, by partition."""

    records: dict[int, list[Record]] = dataclasses.field(default_factory=dict[int, list[Record]])
    next_offsets: dict[int, int] = dataclasses.field(default_factory=dict[int, int])
    last_epochs: dict[int, int] = dataclasses.field(default_factory=dict[int, int])
    errors: dict[int, str] = dataclasses.field(default_factory=dict[int, str])
    """Reasons of the partitions that failed."""
    sizes: list[int] = dataclasses.field(default_factory=list[int])
    """The serialised size of each response."""
    counts: list[int] = dataclasses.field(default_factory=list[int])
    """The number of records of each response."""
    heartbeat_count: int = 0

    def add(self, response: log_pb2.ReadResponse) -> None:
        assert response.topic_id
        assert response.time_ms > 0
        self.heartbeat_count += not response.partitions
        self.sizes.append(response.ByteSize())
        self.counts.append(sum(len(part.records) for part in response.partitions))
        for part in response.partitions:
            former = self.next_offsets.get(part.partition, 0)
            assert part.next_offset >= former, "a read goes forward"
            assert all(former <= one.offset < part.next_offset for one in part.records)
            self.records.setdefault(part.partition, []).extend(map(plain_record, part.records))
            self.next_offsets[part.partition] = part.next_offset
            self.last_epochs[part.partition] = part.last_epoch
            if part.HasField("error"):
                self.errors[part.partition] = error_info(part.error).reason


def plain_record(stored: log_pb2.StoredRecord) -> Record:
    """The record of a response."""
    return Record(
        stored.offset,
        stored.timestamp_ms,
        stored.key if stored.HasField("key") else None,
        stored.value if stored.HasField("value") else None,
        tuple((one.key, one.value if one.HasField("value") else None) for one in stored.headers),
    )


async def read_plain(bench: ServiceBench, request: log_pb2.ReadRequest) -> PlainRead:
    """All responses of a read that ends. Raises AioRpcError."""
    read = PlainRead()
    async for response in bench.client.log.Read(request, timeout=PATIENCE_S):
        read.add(response)
    return read


async def fetched_records(
    bench: ServiceBench, topic: str, partition: int, isolation: IsolationLevel
) -> list[Record]:
    """The records of the partition from its log start to its end."""
    wanted = log_pb2.FetchPartition(
        topic=topic, partition=partition, start=log_pb2.Position(spec=log_pb2.OFFSET_SPEC_EARLIEST)
    )
    records: list[Record] = []
    while True:
        request = log_pb2.FetchRequest(partitions=[wanted], isolation=wire_isolation(isolation))
        [answer] = (await bench.client.log.Fetch(request)).partitions
        assert not answer.HasField("error"), answer.error
        found = _decoded(answer)
        records += [one for one in found if answer.fetch_offset <= one.offset < answer.next_fetch_offset]
        if answer.next_fetch_offset == answer.fetch_offset:
            return records
        wanted.start.offset = answer.next_fetch_offset


def _decoded(answer: log_pb2.FetchedPartition) -> list[Record]:
    waiting = sorted(answer.aborted_transactions, key=lambda one: one.first_offset)
    aborted: set[int] = set()
    found: list[Record] = []
    for position, header in batches(answer.batches):
        while waiting and waiting[0].first_offset <= header.last_offset:
            aborted.add(waiting.pop(0).producer_id)
        if header.is_control:
            aborted.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in aborted):
            found += decode(answer.batches, position)
    return found


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """The reason of a failed call."""
    status = cast(Status, rpc_status.from_call(cast(grpc.Call, error)))  # pyright: ignore[reportUnknownMemberType]  # without types
    return error_info(status).reason
