"""Plain appends against an oracle that is a plain list of records.

Producers with sequences, retries, expected offsets and fencing tokens alternate at random with the turns of
the partition's writer, so that requests wait and are written in groups, and with stops and kills of the
server. The writer, the log and the catalog are the real ones.

The oracle applies the requests that wait one by one. It knows nothing of groups, batches and snapshots.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from stratalog.base.errors import (
    FencingTokenMismatchError,
    LogStoreError,
    OutOfOrderSequenceError,
    UnexpectedOffsetError,
)
from stratalog.base.types import Durability
from stratalog.log.append_info import AppendInfo
from stratalog.log.isolation import Isolation
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.record import Record
from stratalog.server.append.commit_waiters import CommitWaiters
from stratalog.server.append.partition_writer import PartitionWriter, WriterChecks, WriterThreads
from stratalog.server.append.pending_append import PendingAppend
from stratalog.server.request_memory import RequestMemory
from stratalog.server.rpc import convert
from stratalog.testing.manual_clock import ManualClock
from stratalog.v1 import log_pb2
from tests.support.decoded_records import decode_all
from tests.support.logs.log_machine import LogMachine
from tests.support.plain_calls import PlainCalls
from tests.support.service.hand_executor import HandExecutor
from tests.support.service.held_writer import SOME_LOG
from tests.support.tiered.metadata_harness import MetadataHarness

EPOCH = 1
TOKENS = ("", "a", "b")
CURRENT = "current"
"""Stands for the token that the partition has when the request is sent."""
CONFIG = LogConfig(segment_bytes=1024, index_interval_bytes=100, retention_ms=-1)


class Append(NamedTuple):
    """A plain append. The sequence and the offset are relative to what the oracle expects when it is sent."""

    producer: int | None
    """Index of the producer."""
    sequence_delta: int
    """0 for the next sequence, -1 for the last request again, -2 for the one before it, 2 for a gap."""
    record_count: int
    offset_delta: int | None
    """0 for the end of the log with all requests that wait; None: any offset."""
    token: str | None
    is_flushed: bool


class Fence(NamedTuple):
    """A new token, and the index of the token to replace."""

    token: str
    current: str | None


APPENDS = st.builds(
    Append,
    producer=st.sampled_from([0, 0, 0, 1, None]),
    sequence_delta=st.sampled_from([0, 0, 0, 0, -1, -2, -2, 2]),
    record_count=st.integers(1, 3),
    offset_delta=st.sampled_from([None, None, None, None, 0, 0, -1, 1]),
    token=st.sampled_from([None, None, None, CURRENT, CURRENT, "a"]),
    is_flushed=st.booleans(),
)
FENCES = st.builds(Fence, token=st.sampled_from(TOKENS), current=st.sampled_from([None, *TOKENS]))
ACTIONS = st.sampled_from(["turn", "turn", "turn", "turn", "stop", "kill"])
STEPS = st.lists(
    st.integers(0, 9).flatmap(lambda kind: APPENDS if kind < 7 else ACTIONS if kind < 9 else FENCES),
    min_size=10,
    max_size=50,
)


class Sent(NamedTuple):
    """A request that waits for the writer."""

    producer: int | None
    sequence: int
    values: tuple[bytes, ...]
    expected_offset: int | None
    token: str | None
    future: asyncio.Future[AppendInfo]


class Stored(NamedTuple):
    """A request that the oracle has applied."""

    producer: int | None
    sequence: int
    base_offset: int
    values: tuple[bytes, ...]


class Run:
    """The partition and its oracle. Belongs to the test's loop."""

    def __init__(self) -> None:
        self.machine = LogMachine(config=CONFIG)
        self.catalog = MetadataHarness().catalog()
        self.topic_id = self.catalog.create("t", 1).topic_id
        self.producer_ids = self.catalog.take_producer_ids(2)
        self.memory = RequestMemory(1 << 20)
        self.token = ""
        self.stored: list[Stored] = []
        self.waiting: list[Sent] = []
        self.sent: dict[int, list[Sent]] = {0: [], 1: []}
        self.value_count = 0
        self.outcomes: set[str] = set()
        self._open()

    def _open(self) -> None:
        self.log: UnifiedLog = self.machine.start()
        self.executor = HandExecutor()
        self.writer = PartitionWriter(
            PlainCalls(asyncio.get_running_loop()),
            WriterThreads(lambda: self.executor, lambda: self.executor),
            self.log,
            WriterChecks(lambda: EPOCH, None, partial(self.catalog.fencing_token, self.topic_id, 0)),
            CommitWaiters(ManualClock(), asyncio.get_running_loop()),
            lambda: None,
        )

    @property
    def end_offset(self) -> int:
        """The end of the log by the oracle."""
        return self.stored[-1].base_offset + len(self.stored[-1].values) if self.stored else 0

    async def take(self, step: Append | Fence | str) -> None:
        if isinstance(step, Append):
            self._send(step)
        elif isinstance(step, Fence):
            await self._fence(step)
        elif step == "turn":
            await self._turn()
        else:
            await self._restart(step)

    def _send(self, step: Append) -> None:
        """Send a new request, or a former one of the producer again."""
        sent = self._again(step) or self._new(step)
        request = log_pb2.AppendRequest(topic="t", partition=0)
        request.records.records.extend(log_pb2.Record(key=b"k", value=value) for value in sent.values)
        if sent.producer is not None:
            request.producer.producer_id = self.producer_ids[sent.producer]
            request.producer.base_sequence = sent.sequence
            self.sent[sent.producer].append(sent)
        if sent.expected_offset is not None:
            request.expected_offset = sent.expected_offset
        if sent.token is not None:
            request.fencing_token = sent.token
        self.waiting.append(sent)
        self.writer.submit(
            PendingAppend(
                identity=SOME_LOG,
                batches=partial(
                    convert.plain_batch,
                    request.records.SerializeToString(),
                    CONFIG.max_message_bytes,
                    self.machine.clock.now_ms(),
                    convert.batch_producer(request),
                ),
                durability=Durability.DISK if step.is_flushed else Durability.OS,
                future=sent.future,
                memory=self.memory.lease(1),
                conditions=convert.append_conditions(request),
            )
        )

    def _again(self, step: Append) -> Sent | None:
        former = [] if step.producer is None else self.sent[step.producer]
        if step.sequence_delta >= 0 or len(former) < -step.sequence_delta:
            return None
        again = former[step.sequence_delta]
        return again._replace(future=asyncio.get_running_loop().create_future())

    def _new(self, step: Append) -> Sent:
        first, self.value_count = self.value_count, self.value_count + step.record_count
        values = tuple(b"%d" % number for number in range(first, self.value_count))
        waiting_count = sum(len(sent.values) for sent in self.waiting)
        expected_offset = None
        if step.offset_delta is not None:
            expected_offset = max(0, self.end_offset + waiting_count + step.offset_delta)
        return Sent(
            producer=step.producer,
            sequence=self._next_sequence(step.producer) + max(step.sequence_delta, 0),
            values=values,
            expected_offset=expected_offset,
            token=self.token if step.token == CURRENT else step.token,
            future=asyncio.get_running_loop().create_future(),
        )

    def _next_sequence(self, producer: int | None) -> int:
        """The next sequence if all waiting requests succeed."""
        stored = self._stored_by(producer)
        begun = stored[-1].sequence + len(stored[-1].values) if stored else 0
        waiting = [sent.sequence + len(sent.values) for sent in self.waiting if sent.producer == producer]
        return max([begun, *waiting])

    def _stored_by(self, producer: int | None) -> list[Stored]:
        return [] if producer is None else [one for one in self.stored if one.producer == producer]

    async def _fence(self, step: Fence) -> None:
        """Set a token, and let the writer settle it in its next turn."""
        is_valid = step.current in (None, self.token) or step.token == self.token
        fence = partial(self.catalog.fence, self.topic_id, 0, step.token, step.current)
        if not is_valid:
            with pytest.raises(FencingTokenMismatchError) as caught:
                fence()
            assert caught.value.fields == {"fencing_token": step.current, "current_token": self.token}
            return
        fence()
        self.token = step.token
        end_offset = self.end_offset
        settled = asyncio.create_task(self.writer.settled())
        await asyncio.sleep(0)
        await self._turn()
        assert await settled == end_offset, "the requests that waited were judged by the new token"

    async def _turn(self) -> None:
        """Let the writer apply all that waits, and compare it with the oracle."""
        while self.executor.waiting:
            self.executor.run_one()
        await asyncio.sleep(0)
        waiting, self.waiting = self.waiting, []
        for sent in waiting:
            assert sent.future.done()
            error = sent.future.exception()
            assert error is None or isinstance(error, LogStoreError)
            self._compare(sent, sent.future.result() if error is None else error)

    def _compare(self, sent: Sent, outcome: AppendInfo | LogStoreError) -> None:
        before = self._stored_by(sent.producer)
        # A request with other records in the place of a stored one is a mistake that the log cannot see.
        place = (sent.sequence, len(sent.values))
        places = [one for one in before if (one.sequence, len(one.values)) == place]
        if sent.token not in (None, self.token):
            self._note("token")
            assert type(outcome) is FencingTokenMismatchError
        elif places:
            self._note("duplicate" if places[0] is before[-1] else "late duplicate")
            if isinstance(outcome, AppendInfo):
                assert outcome.is_duplicate
                last_offset = places[0].base_offset + len(sent.values) - 1
                assert (outcome.base_offset, outcome.last_offset) == (places[0].base_offset, last_offset)
            else:
                # The log has forgotten it; never is it stored twice.
                assert places[0] is not before[-1], "the last one is always known"
                assert type(outcome) in (OutOfOrderSequenceError, UnexpectedOffsetError)
        elif sent.expected_offset not in (None, self.end_offset):
            self._note("unexpected")
            assert type(outcome) is UnexpectedOffsetError
            assert outcome.fields == {
                "expected_offset": sent.expected_offset,
                "log_end_offset": self.end_offset,
            }
        elif before and sent.sequence != before[-1].sequence + len(before[-1].values):
            self._note("gap")
            assert type(outcome) is OutOfOrderSequenceError
        else:
            self._note("stored")
            assert isinstance(outcome, AppendInfo)
            assert (outcome.base_offset, outcome.is_duplicate) == (self.end_offset, False)
            self.stored.append(Stored(sent.producer, sent.sequence, self.end_offset, sent.values))

    def _note(self, outcome: str) -> None:
        self.outcomes.add(outcome)

    async def _restart(self, how: str) -> None:
        """End the server, in order or not, and start another; a stop first lets the writer finish."""
        if how == "stop":
            await self._turn()
            self.machine.stop()
        else:
            # What waits is never applied, and its clients hear nothing.
            self.waiting.clear()
            self.machine.kill()
        self._open()

    def check(self) -> None:
        records: list[Record] = []
        offset = 0
        while offset < self.log.offsets.log_end_offset:
            data = self.log.reader.read(offset, 1 << 20, Isolation.LOG_END, min_one_message=True)
            records += decode_all(data.batches)
            offset = data.next_offset
        expected = [value for one in self.stored for value in one.values]
        assert [(record.offset, record.value) for record in records] == list(enumerate(expected))
        assert self.log.offsets.log_end_offset == self.end_offset
        self.log.check()


def play(steps: Callable[[Run], Coroutine[Any, Any, None]]) -> Run:
    async def run() -> Run:
        world = Run()
        await steps(world)
        await world.take("turn")
        world.check()
        return world

    return asyncio.run(run())


@given(steps=STEPS)
def test_each_record_is_stored_once_where_and_for_whom_it_may(steps: list[Append | Fence | str]) -> None:
    async def take_all(world: Run) -> None:
        for step in steps:
            await world.take(step)

    for outcome in sorted(play(take_all).outcomes):
        event(outcome)
