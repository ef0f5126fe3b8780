"""A writer of a partition with everything around it under the test's control."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from typing import cast

from stratalog.base.errors import InvalidRecordError, LogStoreError, PrecedingAppendFailedError
from stratalog.base.filesystem import Buffer
from stratalog.base.types import Durability
from stratalog.log.append.unpacking import Unpacking
from stratalog.log.append_info import AppendInfo
from stratalog.log.unified_log import UnifiedLog
from stratalog.server.append.commit_waiters import CommitWaiters
from stratalog.server.append.partition_writer import PartitionWriter, WriterChecks, WriterThreads
from stratalog.server.append.pending_append import AppendConditions, AppendSession, PendingAppend
from stratalog.server.request_memory import RequestMemory
from stratalog.testing.manual_clock import ManualClock
from tests.support.plain_calls import PlainCalls
from tests.support.service.hand_executor import HandExecutor
from tests.support.service.held_writer import SOME_LOG

BAD = b"bad"
EPOCH = 7


class FakeLog:
    """Takes everything but BAD, one offset a request, and lists the calls. It is its own parts."""

    def __init__(self) -> None:
        self.appender = self.flusher = self.offsets = self
        self.calls: list[str] = []
        self.stored: list[bytes] = []
        self.recovery_point = self.tiered_end_offset = 0
        self.min_durability = Durability.OS
        self.epoch = EPOCH
        self.takes_epochs = True
        self.epoch_error: Exception | None = None
        self.flush_error: Exception | None = None
        self.flush_messages = 1 << 62
        self.beside: Callable[[], object] = lambda: None
        """Takes place when a group is written, before the writer goes on."""

    @property
    def log_start_offset(self) -> int:
        return 0

    @property
    def log_end_offset(self) -> int:
        return len(self.stored)

    @property
    def high_watermark(self) -> int:
        ends = {Durability.OS: self.log_end_offset, Durability.DISK: self.recovery_point}
        return ends.get(self.min_durability, self.tiered_end_offset)

    def visible_ends(self) -> tuple[int, int]:
        return self.high_watermark, self.high_watermark

    def has_epoch(self, leader_epoch: int) -> bool:
        return self.epoch == leader_epoch

    def write_epoch(self, leader_epoch: int) -> None:
        self.calls.append(f"epoch {leader_epoch}")
        if self.epoch_error is not None:
            raise self.epoch_error
        if self.takes_epochs:
            self.epoch = leader_epoch

    def append_group(
        self,
        requests: Sequence[Buffer],
        leader_epoch: int,
        expected_offsets: Sequence[int | None],
        chains: Sequence[Hashable | None],
        *,
        unpackings: Sequence[Unpacking],
        flushes: bool,
    ) -> list[AppendInfo | LogStoreError]:
        assert leader_epoch == EPOCH
        assert len(unpackings) == len(requests)
        assert not flushes, "fsyncs have threads of their own"
        assert list(expected_offsets) == [None] * len(requests)
        self.calls.append(f"append {len(requests)}")
        outcomes: list[AppendInfo | LogStoreError] = []
        broken: set[Hashable] = set()
        for request, chain in zip(requests, chains, strict=True):
            if chain in broken:
                outcomes.append(PrecedingAppendFailedError("behind"))
            elif request == BAD:
                outcomes.append(InvalidRecordError("bad"))
                broken |= {chain} - {None}
            else:
                outcomes.append(AppendInfo(len(self.stored), len(self.stored), len(request)))
                self.stored.append(bytes(request))
        self.beside()
        return outcomes

    def has_many(self) -> bool:
        return len(self.stored) - self.recovery_point >= self.flush_messages

    def flush(self) -> int:
        self.calls.append("flush")
        if self.flush_error is not None:
            raise self.flush_error
        self.recovery_point = len(self.stored)
        return self.recovery_point


class WriterBench:
    """A writer, its log, and the threads that the test runs. Belongs to the test's loop."""

    def __init__(
        self,
        leader_epoch: Callable[[], int] = lambda: EPOCH,
        ensure_heard: Callable[[], None] | None = None,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.executor = HandExecutor()
        self.threads_error: Exception | None = None
        """The threads cannot be had, because of it."""
        self.log = FakeLog()
        self.advances: list[str] = []
        """The last call of the log, each time that readers were woken."""
        self.appends: list[PendingAppend] = []
        self.memory = RequestMemory(1 << 30)
        self.clock = ManualClock()
        self.token = ""
        """The partition's fencing token in the catalog."""
        self.writer = PartitionWriter(
            PlainCalls(self.loop),
            WriterThreads(self._threads, self._threads),
            cast(UnifiedLog, self.log),
            WriterChecks(leader_epoch, ensure_heard, lambda: self.token),
            CommitWaiters(self.clock, self.loop),
            self._advance,
        )

    def _threads(self) -> HandExecutor:
        if self.threads_error is not None:
            raise self.threads_error
        return self.executor

    def _advance(self) -> None:
        self.advances.append(self.log.calls[-1])

    def append(
        self,
        data: Buffer | Callable[[], Buffer],
        durability: Durability = Durability.OS,
        session: AppendSession | None = None,
        token: str | None = None,
        size_bytes: int = 1,
    ) -> asyncio.Future[AppendInfo]:
        future: asyncio.Future[AppendInfo] = self.loop.create_future()
        self.appends.append(
            PendingAppend(
                batches=data,
                durability=durability,
                future=future,
                memory=self.memory.lease(size_bytes),
                identity=SOME_LOG,
                session=session,
                conditions=AppendConditions(fencing_token=token),
            )
        )
        self.writer.submit(self.appends[-1])
        return future

    def submit(self, data: Buffer, durability: Durability = Durability.OS) -> None:
        """Submit an append whose result is not used."""
        self.append(data, durability).add_done_callback(lambda future: future.exception())

    async def run_all(self) -> None:
        while self.executor.waiting:
            self.executor.run_one()
        await asyncio.sleep(0)
        assert self.memory.held_bytes == 0, "whatever became of them"
