"""Responses of plain records: their sizes, the work of each step, and the memory that is held."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stratalog.base.errors import LogStoreError, OffsetOutOfRangeError
from stratalog.base.types import TopicPartition
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.server.fetch.fetch_cursor import Collected, Watermarks
from stratalog.server.request_memory import RequestMemory
from stratalog.server.rpc.error_statuses import ErrorStatuses
from stratalog.server.rpc.read.read_encoding import (
    MAX_RESPONSE_BYTES,
    MAX_STEP_BYTES,
    FetchedBatches,
    ReadEncoder,
)
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.sequential_ids import SequentialIds
from stratalog.v1 import log_pb2

MIB = 1 << 20


def encoder_over(
    memory: RequestMemory, max_count: int | None = None, *, is_single: bool = False
) -> ReadEncoder:
    clock = ManualClock()
    statuses = ErrorStatuses(clock, SequentialIds())
    return ReadEncoder(clock, statuses, memory, "some-id", max_count, is_single=is_single)


def fetched(
    partition: int,
    batches: Sequence[bytes],
    start_offset: int,
    next_offset: int,
    error: LogStoreError | None = None,
) -> FetchedBatches:
    return FetchedBatches(
        topic_partition=TopicPartition("t", partition),
        start_offset=start_offset,
        next_offset=next_offset,
        collected=Collected(list(batches), sum(map(len, batches)), ()),
        marks=Watermarks(0, 0, next_offset, next_offset),
        error=error,
    )


def parsed(data: bytes | None) -> log_pb2.ReadResponse | None:
    return None if data is None else log_pb2.ReadResponse.FromString(data)


def test_a_walk_over_records_before_the_start_takes_many_small_steps() -> None:
    memory = RequestMemory(64 * MIB)
    encoder = encoder_over(memory)
    batch = encode_batch([Record(0, 0, None, bytes(100_000))] * 900, codec=Codec.ZSTD)
    most_held_bytes = 0
    steps: list[log_pb2.ReadResponse | None] = []
    for step in encoder.responses([fetched(0, [batch], 899, 900)]):
        most_held_bytes = max(most_held_bytes, memory.held_bytes)
        steps.append(parsed(step))
    assert MAX_STEP_BYTES < most_held_bytes < 20 * MIB
    assert steps[:-1] == [None] * (len(steps) - 1)
    # Each piece counts twice, beside the buffer.
    assert len(steps) > 90 * MIB / MAX_STEP_BYTES
    last = steps[-1]
    assert last is not None
    assert [one.offset for one in last.partitions[0].records] == [899]
    encoder.close()
    assert memory.held_bytes == 0


def test_a_large_record_holds_its_memory_until_it_is_sent() -> None:
    memory = RequestMemory(64 * MIB)
    encoder = encoder_over(memory)
    batch = encode_batch([Record(0, 0, None, bytes(size)) for size in (1, 12 * MIB, 2)], codec=Codec.GZIP)
    steps = (step for step in encoder.responses([fetched(0, [batch], 0, 3)]) if step is not None)
    assert memory.held_bytes == 0
    assert [len(next(steps)) > 12 * MIB for _ in range(2)] == [False, True]
    assert memory.held_bytes > 12 * MIB
    assert len(list(steps)) == 1
    assert memory.held_bytes == 0


def test_small_partitions_share_a_response_and_large_ones_are_cut() -> None:
    memory = RequestMemory(64 * MIB)
    encoder = encoder_over(memory)
    small = encode_batch([Record(0, 0, b"k", bytes(1000))] * 3)
    large = encode_batch([Record(0, 0, b"k", bytes(1000))] * 3000)
    answer = [
        fetched(number, [large if number == 2 else small], 0, 3000 if number == 2 else 3)
        for number in range(4)
    ]
    responses = [one for one in map(parsed, encoder.responses(answer)) if one is not None]
    assert all(one.ByteSize() < MAX_RESPONSE_BYTES + 1000 for one in responses)
    assert len(responses) == 3
    numbers = [[part.partition for part in one.partitions] for one in responses]
    assert numbers == [[0, 1, 2], [2], [2, 3]]
    next_offsets = [[part.next_offset for part in one.partitions] for one in responses]
    cut = [
        one.partitions[-1 if index == 0 else 0].records[-1].offset + 1 for index, one in enumerate(responses)
    ]
    assert next_offsets == [[3, 3, cut[0]], [cut[1]], [3000, 3]]
    assert {one.topic_id for one in responses} == {"some-id"}


def test_the_failure_of_a_partition_comes_behind_its_records() -> None:
    error = OffsetOutOfRangeError("gone", offset=3)
    batch = encode_batch([Record(0, 0, b"k", b"v")] * 3)
    answer = [fetched(0, [batch], 0, 3, error), fetched(1, [batch], 0, 3)]
    encoder = encoder_over(RequestMemory(MIB))
    [response] = map(parsed, encoder.responses(answer))
    assert response is not None
    assert [(len(part.records), part.HasField("error")) for part in response.partitions] == [
        (3, True),
        (3, False),
    ]
    assert encoder.failures == {0: error}
    assert list(encoder.responses(answer[:1])) == [], "it has left the read"
    single = encoder_over(RequestMemory(MIB), is_single=True).responses(answer[:1])
    before = parsed(next(single))
    assert before is not None
    assert [(len(part.records), part.HasField("error")) for part in before.partitions] == [(3, False)]
    with pytest.raises(OffsetOutOfRangeError):
        next(single)


def test_a_finished_read_names_the_places_of_the_other_partitions() -> None:
    batch = encode_batch([Record(0, 0, b"k", b"v")] * 3)
    encoder = encoder_over(RequestMemory(MIB), 4)
    answer = [fetched(number, [batch], 0, 3) for number in range(3)]
    [response] = map(parsed, encoder.responses(answer))
    assert response is not None
    assert [(len(part.records), part.next_offset) for part in response.partitions] == [(3, 3), (1, 1), (0, 0)]
    assert encoder.is_finished


def test_many_failures_take_several_responses() -> None:
    error = OffsetOutOfRangeError("gone " * 100, offset=3)
    encoder = encoder_over(RequestMemory(MIB))
    answer = [fetched(number, [], 0, 0, error) for number in range(4000)]
    responses = [one for one in map(parsed, encoder.responses(answer)) if one is not None]
    assert len(responses) > 1
    assert all(one.ByteSize() < 1.5 * MAX_RESPONSE_BYTES for one in responses)
    assert [part.partition for one in responses for part in one.partitions] == list(range(4000))
