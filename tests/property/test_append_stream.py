"""A stream of appends against an oracle that sees each partition's requests alone and in order.

Requests, writes, fsyncs and topics that are created again alternate at random. The oracle knows nothing of
them, because the outcome of a request depends only on the requests before it that name its partition. If it
names none, its outcome depends on nothing.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

from hypothesis import event, given
from hypothesis import strategies as st

from stratalog.base.errors import (
    InvalidRecordError,
    InvalidRequestError,
    LogStoreError,
    OverloadedError,
    PrecedingAppendFailedError,
)
from stratalog.base.types import Durability
from stratalog.log.append_info import AppendInfo
from stratalog.server.append.append_decoding import Decoded, DecodedStreamAppend
from stratalog.server.append.append_pipeline import AppendPipeline
from stratalog.server.append.partition_writer import PartitionWriter
from stratalog.server.append.pending_append import AppendSession, PendingAppend
from stratalog.server.append.stream_lane import StreamAnswer
from stratalog.server.fetch.closing import Closing
from stratalog.server.request_memory import RequestMemory
from stratalog.v1 import log_pb2
from tests.support.service.held_writer import BAD, SOME_LOG, HeldWriter

PARTITION_COUNT = 3


class Step(NamedTuple):
    """A request of a partition, or an action of its writer."""

    kind: str
    partition: int
    is_named: bool
    """The request names its partition; otherwise the server chooses it."""
    resume: bool
    durability: Durability


STEPS = st.builds(
    Step,
    kind=st.sampled_from(
        ["good"] * 4 + ["bad", "overload", "unresolved"] + ["write"] * 4 + ["flush", "create again"]
    ),
    partition=st.integers(0, PARTITION_COUNT - 1),
    is_named=st.sampled_from([True, True, False]),
    resume=st.sampled_from([False, False, False, True]),
    durability=st.sampled_from([Durability.OS, Durability.DISK]),
)


FAILURES: dict[str, type[LogStoreError]] = {
    "bad": InvalidRecordError,
    "overload": OverloadedError,
    "unresolved": InvalidRequestError,
}
"""The error of a request of each kind that fails by itself."""


class Expected(NamedTuple):
    """The errors that a request may have; None stands for success."""

    errors: set[type[Exception] | None]


def oracle(requests: Sequence[Step]) -> tuple[dict[int, Expected], dict[int, list[bytes]]]:
    """The outcome of each request by its sequence, and the data that each partition stores."""
    outcomes: dict[int, Expected] = {}
    stored: dict[int, list[bytes]] = defaultdict(list)
    has_failed: dict[int, bool] = defaultdict(bool)
    for sequence, request in enumerate(requests):
        if request.is_named and request.resume:
            has_failed[request.partition] = False
        if request.is_named and has_failed[request.partition]:
            outcomes[sequence] = Expected({PrecedingAppendFailedError})
            if request.kind in ("overload", "unresolved"):
                # It may arrive before the failure is known.
                outcomes[sequence].errors.add(FAILURES[request.kind])
        elif request.kind == "good":
            outcomes[sequence] = Expected({None})
            stored[request.partition].append(b"%d" % sequence)
        else:
            outcomes[sequence] = Expected({FAILURES[request.kind]})
            has_failed[request.partition] |= request.is_named
    return outcomes, stored


class Run:
    """A pipeline that takes the steps one by one. Belongs to the test's loop."""

    def __init__(self) -> None:
        self.memory = RequestMemory(1 << 20)
        self.requests: list[Step] = []
        self.answers: list[StreamAnswer] = []
        self.writers: dict[int, list[HeldWriter]] = {
            partition: [HeldWriter()] for partition in range(PARTITION_COUNT)
        }
        """By partition: those of the deleted topics, and the current one."""
        self._arriving: asyncio.Queue[DecodedStreamAppend | None] = asyncio.Queue()
        self.pipeline = AppendPipeline(
            self._source(), self._resolve, self._prepare, self.memory, Closing(asyncio.get_running_loop())
        )
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async with aclosing(self.pipeline.answers()) as answers:
            async for answer in answers:
                self.answers.append(answer)

    async def _source(self) -> AsyncIterator[DecodedStreamAppend]:
        while (request := await self._arriving.get()) is not None:
            yield request

    async def _resolve(self, decoded: DecodedStreamAppend) -> None:
        step = self.requests[decoded.request.sequence]
        if step.kind == "unresolved":
            raise InvalidRequestError("no producer, or keys of several partitions")
        decoded.request.partition = step.partition

    def _prepare(
        self, decoded: DecodedStreamAppend, session: AppendSession | None
    ) -> tuple[PartitionWriter, PendingAppend]:
        step = self.requests[decoded.request.sequence]
        assert (session is not None) == step.is_named
        if step.kind == "overload":
            raise OverloadedError("no room")
        data = BAD if step.kind == "bad" else b"%d" % decoded.request.sequence
        future: asyncio.Future[AppendInfo] = asyncio.get_running_loop().create_future()
        append = PendingAppend(
            batches=data,
            durability=step.durability,
            future=future,
            memory=self.memory.lease(1),
            identity=SOME_LOG,
            session=session,
        )
        return self.writers[step.partition][-1], append

    async def take(self, step: Step) -> None:
        writers = self.writers[step.partition]
        if step.kind == "write":
            busy = [writer for writer in writers if writer.waiting]
            if busy:
                busy[0].write_one()
        elif step.kind == "flush":
            writers[0].flush()
            writers[-1].flush()
        elif step.kind == "create again":
            writers.append(HeldWriter())
        else:
            message = log_pb2.AppendStreamRequest(sequence=len(self.requests), resume=step.resume)
            if step.is_named:
                message.partition = step.partition
            self.requests.append(step)
            self._arriving.put_nowait(Decoded(message, None, None, 1))
        await self._settle()

    async def finish(self) -> None:
        """Half-close, and write everything until the stream ends."""
        self._arriving.put_nowait(None)
        async with asyncio.timeout(30):
            while not self._task.done():
                self._write_all()
                await self._settle()
        await self._task

    async def cancel(self) -> None:
        self._task.cancel()
        await self._settle()
        self._write_all()
        await self._settle()

    def stored(self, partition: int) -> list[bytes]:
        return [data for writer in self.writers[partition] for data in writer.written]

    def _write_all(self) -> None:
        for writers in self.writers.values():
            for writer in writers:
                writer.write_all()

    async def _settle(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)
        self.pipeline.check()

    def check(self, *, has_ended: bool) -> None:
        outcomes, stored = oracle(self.requests)
        by_lane: dict[int | None, list[int]] = defaultdict(list)
        for answer in self.answers:
            request = self.requests[answer.sequence]
            by_lane[request.partition if request.is_named else None].append(answer.sequence)
            error = None if answer.error is None else type(answer.error)
            assert error in outcomes[answer.sequence].errors
        alone = {n for n, request in enumerate(self.requests) if not request.is_named}
        assert len(set(by_lane[None])) == len(by_lane[None]), "one answer for each request"
        assert alone >= set(by_lane[None])
        assert alone == set(by_lane[None]) or not has_ended
        for partition in range(PARTITION_COUNT):
            sequences = [
                n
                for n, request in enumerate(self.requests)
                if request.is_named and request.partition == partition
            ]
            answered = by_lane[partition]
            written = self.stored(partition)
            assert answered == sequences[: len(answered)], "in the order of the requests"
            assert written == stored[partition][: len(written)]
            if has_ended:
                assert (answered, written) == (sequences, stored[partition])
        assert self.memory.held_bytes == 0


@given(steps=st.lists(STEPS, max_size=60))
def test_each_partition_goes_its_own_way(steps: list[Step]) -> None:
    async def run() -> None:
        stream = Run()
        for step in steps:
            await stream.take(step)
        await stream.finish()
        stream.check(has_ended=True)
        event(f"{len({answer.sequence for answer in stream.answers if answer.error}) // 5 * 5}+ failures")

    asyncio.run(run())


@given(steps=st.lists(STEPS, max_size=30))
def test_a_stream_that_is_cut_off_applies_no_request_out_of_order_and_holds_nothing(
    steps: list[Step],
) -> None:
    async def run() -> None:
        stream = Run()
        for step in steps:
            await stream.take(step)
        await stream.cancel()
        stream.check(has_ended=False)

    asyncio.run(run())
