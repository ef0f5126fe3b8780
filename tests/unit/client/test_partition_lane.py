"""A lane keeps the order of its batches through failures, halves and pauses, and resumes after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from stratalog.base.errors import (
    InvalidRecordError,
    LogStoreError,
    OverloadedError,
    PrecedingAppendFailedError,
    RecordTooLargeError,
)
from stratalog.base.types import TopicPartition
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.partition_lane import MAX_IN_FLIGHT_COUNT, SURE_BYTES, PartitionLane
from stratalog.client.retry import RetryPolicy
from stratalog.client.sealed_batch import Acknowledged, SealedBatch
from stratalog.record.batch import decode
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.v1 import log_pb2

HERE = TopicPartition("t", 0)
LIMIT_BYTES = 32 << 20
AT_ONCE = RetryPolicy(deadline_s=60.0, first_pause_s=0.0, max_pause_s=0.0)


class LaneBench:
    """A lane whose requests the test answers. Belongs to the test's loop."""

    def __init__(self, retry: RetryPolicy = AT_ONCE) -> None:
        self.outcomes: list[tuple[bytes, type[LogStoreError] | None]] = []
        """The first value and the error of each batch that is settled."""
        self.pause_is_over = asyncio.Event()
        self.lane = PartitionLane(HERE, retry, self._settled, self._split, lambda _: self.pause_is_over.set())
        self.futures: list[asyncio.Future[Acknowledged]] = []
        self.sequence = 0
        self._values: dict[SealedBatch, bytes] = {}

    def queue(self, *values: bytes) -> None:
        """Queue one batch of these records."""
        batch = encode_batch([Record(0, 0, None, value) for value in values])
        futures = [asyncio.get_running_loop().create_future() for _ in values]
        self.futures += futures
        sealed = SealedBatch(HERE, batch, range(len(values)), list(enumerate(futures)), len(batch))
        self._values[sealed] = values[0]
        self.lane.queue(sealed)

    def take(self, limit_bytes: int | None = LIMIT_BYTES) -> tuple[int, bytes, bool] | None:
        """The sequence, the first value and the resume of the next request."""
        taken = self.lane.take(self.sequence + 1, limit_bytes)
        self.lane.check()
        if taken is None:
            return None
        self.sequence += 1
        return self.sequence, decode(taken.batch)[0].value or b"", taken.resume

    def take_all(self) -> list[tuple[int, bytes, bool]]:
        taken: list[tuple[int, bytes, bool]] = []
        while (request := self.take()) is not None:
            taken.append(request)
        return taken

    def acknowledge(self, sequence: int, base_offset: int, record_count: int = 1) -> None:
        ack = log_pb2.AppendResponse(
            base_offset=base_offset,
            last_offset=base_offset + record_count - 1,
            durability=log_pb2.DURABILITY_OS,
        )
        self.lane.acknowledge(sequence, ack)
        self.lane.check()

    def refuse(self, sequence: int, error: LogStoreError) -> None:
        self.lane.refuse(sequence, error)
        self.lane.check()

    def _settled(self, batch: SealedBatch, error: LogStoreError | None) -> None:
        self.outcomes.append((self._values.pop(batch), None if error is None else type(error)))

    def _split(self, batch: SealedBatch, halves: Sequence[SealedBatch]) -> None:
        del self._values[batch]
        for half in halves:
            self._values[half] = decode(half.batch)[0].value or b""


async def test_a_lane_has_a_bounded_number_of_batches_in_flight_and_settles_them_in_order() -> None:
    bench = LaneBench()
    values = [b"%d" % number for number in range(MAX_IN_FLIGHT_COUNT + 2)]
    for value in values:
        bench.queue(value)
    requests = bench.take_all()
    assert requests == [(place + 1, value, False) for place, value in enumerate(values[:-2])]
    bench.acknowledge(1, 100)
    assert bench.take() == (MAX_IN_FLIGHT_COUNT + 1, values[-2], False)
    for sequence in range(2, MAX_IN_FLIGHT_COUNT + 2):
        bench.acknowledge(sequence, 100 + sequence)
    assert [future.done() for future in bench.futures] == [True] * (len(values) - 1) + [False]
    assert bench.futures[0].result().offset == 100


async def test_behind_a_refused_batch_the_others_go_again_and_the_first_resumes() -> None:
    bench = LaneBench()
    for value in (b"a", b"b", b"c", b"d"):
        bench.queue(value)
    bench.take_all()
    bench.acknowledge(1, 0)
    bench.refuse(2, InvalidRecordError("bad"))
    assert bench.take_all() == [(5, b"c", True), (6, b"d", False)]
    # The answers to their former requests still come.
    bench.refuse(3, PrecedingAppendFailedError("refused"))
    bench.refuse(4, PrecedingAppendFailedError("refused"))
    bench.acknowledge(5, 1)
    bench.acknowledge(6, 2)
    assert bench.outcomes == [(b"a", None), (b"b", InvalidRecordError), (b"c", None), (b"d", None)]
    assert not bench.lane.is_busy


async def test_a_failure_of_the_last_batch_is_resumed_by_a_later_one() -> None:
    bench = LaneBench()
    bench.queue(b"a")
    bench.take()
    bench.refuse(1, InvalidRecordError("bad"))
    assert not bench.lane.is_busy
    bench.queue(b"b")
    assert bench.take() == (2, b"b", True)


@pytest.mark.parametrize("error", [OverloadedError("full"), PrecedingAppendFailedError("refused")])
async def test_a_refusal_without_effect_pauses_the_lane_and_nothing_fails(error: LogStoreError) -> None:
    bench = LaneBench()
    for value in (b"a", b"b", b"c"):
        bench.queue(value)
    bench.take_all()
    bench.acknowledge(1, 0)
    bench.refuse(2, error)
    assert bench.take() is None, "it pauses"
    bench.refuse(3, PrecedingAppendFailedError("refused"))
    await bench.pause_is_over.wait()
    assert bench.take_all() == [(4, b"b", True), (5, b"c", False)]
    assert bench.outcomes == [(b"a", None)]


async def test_at_the_deadline_the_oldest_batch_fails_and_the_others_go_again() -> None:
    bench = LaneBench(RetryPolicy(deadline_s=0))
    for value in (b"a", b"b"):
        bench.queue(value)
    bench.take_all()
    bench.refuse(1, OverloadedError("full"))
    assert bench.outcomes == [(b"a", OverloadedError)]
    assert bench.take_all() == [(3, b"b", True)]


async def test_a_batch_that_is_too_large_goes_again_in_halves_and_so_does_the_next() -> None:
    bench = LaneBench()
    bench.queue(b"1", b"2", b"3", b"4")
    bench.queue(b"5", b"6", b"7", b"8")
    bench.queue(b"9")
    bench.take_all()
    bench.refuse(1, RecordTooLargeError("too large"))
    assert bench.take_all() == [
        (4, b"1", True),
        (5, b"3", False),
        (6, b"5", False),
        (7, b"7", False),
        (8, b"9", False),
    ]
    bench.refuse(4, RecordTooLargeError("too large"))
    assert bench.take() == (9, b"1", True)
    bench.refuse(9, RecordTooLargeError("too large"))
    assert bench.outcomes == [(b"1", RecordTooLargeError)], "alone, it fails"
    assert bench.take() == (10, b"2", True)


async def test_a_batch_above_the_servers_limit_waits_for_its_turn_and_is_not_sent() -> None:
    bench = LaneBench()
    bench.queue(b"small")
    bench.queue(bytes(SURE_BYTES))
    bench.queue(b"behind")
    assert bench.take(None) == (1, b"small", False)
    assert bench.take(None) is None, "the limit is not known yet"
    assert bench.take(SURE_BYTES) is None, "one is in flight"
    bench.acknowledge(1, 0)
    assert bench.take(SURE_BYTES) is None
    assert bench.outcomes[-1] == (bytes(SURE_BYTES), RecordTooLargeError)
    assert bench.take(SURE_BYTES) == (2, b"behind", False), "the server has refused nothing"


async def test_a_lost_connection_fails_those_in_flight_alone() -> None:
    bench = LaneBench()
    for number in range(MAX_IN_FLIGHT_COUNT + 1):
        bench.queue(b"%d" % number)
    bench.take_all()
    bench.lane.fail_in_flight(ServerUnavailableError("gone"))
    assert [error for _, error in bench.outcomes] == [ServerUnavailableError] * MAX_IN_FLIGHT_COUNT
    request = bench.take()
    assert request is not None
    assert request[1] == b"%d" % MAX_IN_FLIGHT_COUNT


async def test_an_abandoned_lane_settles_nothing() -> None:
    bench = LaneBench()
    for value in (b"a", b"b"):
        bench.queue(value)
    bench.take()
    bench.refuse(1, OverloadedError("full"))
    bench.lane.abandon()
    assert (bench.lane.is_busy, bench.outcomes) == (False, [])
