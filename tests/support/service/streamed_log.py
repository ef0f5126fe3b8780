"""Clients that stream appends to one partition, and the answers that they got.

The writer, the flushes and the log are the real ones; a commit is one more flush, without an object store.
Appends, turns, flushes and commits alternate as a seed says, so that requests of several clients wait
together, are written in one group, and are flushed beside the writes behind them. A client does as those of a
stream: it sends ahead of the answers, and after a failure it sends again from the first failed request on, in
a new session.

The oracle has the answers to the clients. It knows nothing of groups, segments and flushes.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import NamedTuple

from stratalog.base.errors import DataDirectoryError, InvalidRecordError, PrecedingAppendFailedError
from stratalog.base.types import Durability
from stratalog.log.append_info import AppendInfo
from stratalog.log.isolation import Isolation
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.server.append.commit_waiters import CommitWaiters
from stratalog.server.append.partition_writer import PartitionWriter, WriterChecks, WriterThreads
from stratalog.server.append.pending_append import AppendSession, PendingAppend
from stratalog.server.request_memory import RequestMemory
from stratalog.testing.faulty_filesystem import FaultyFileSystem, SimulatedCrash
from stratalog.testing.manual_clock import ManualClock
from tests.support.logs.log_consumer import read_up_to
from tests.support.logs.log_machine import machine_on
from tests.support.plain_calls import PlainCalls
from tests.support.service.hand_executor import HandExecutor
from tests.support.service.held_writer import SOME_LOG

EPOCH = 1
MAX_IN_FLIGHT = 5
"""A log recognises the last five batches of a producer."""
MAX_TRIES = 30
"""A client gives up behind so many tries: the log is offline."""
LOOK_PATH = "/"
LOOK = f"exists {LOOK_PATH}"
"""The operation with which a test notices that the process is dead."""

_READ_BYTES = 1 << 20


class Told(NamedTuple):
    """The answer to a request: its record is at that offset, at that durability."""

    offset: int
    durability: Durability


class _Request(NamedTuple):
    number: int | None
    """The number of its record; None for a request that no log takes."""
    durability: Durability
    append: PendingAppend


class StreamClient:
    """One client, with records that are numbered from 0. Used by one thread."""

    def __init__(self, name: str, producer_id: int | None) -> None:
        """With a producer id it sends what it sends again with the same sequence."""
        self.name = name
        self.producer_id = producer_id
        self.told: dict[int, Told] = {}
        """By number: the requests that were answered with an offset."""
        self.session = AppendSession()
        self.in_flight: list[_Request] = []
        self.next_number = 0
        self.failure_count = 0
        self._is_broken = False
        self._has_failed_commit = False
        """Whether the session is broken by a failed commit, for which others behind it did not wait."""

    def value(self, number: int) -> bytes:
        return f"{self.name}:{number}".encode().ljust(40, b".")

    def batch(self, number: int) -> bytes:
        record = Record(0, 1000 + number, b"key", self.value(number))
        if self.producer_id is None:
            return encode_batch([record])
        return encode_batch([record], producer=BatchProducer(self.producer_id, 0, number, False))

    def hear(self) -> None:
        """Take the answers that are there, in the order of the requests."""
        while self.in_flight and self.in_flight[0].append.future.done():
            request = self.in_flight.pop(0)
            error = request.append.future.exception()
            if error is not None:
                self._hear_failure(request, error)
                continue
            assert not self._is_broken or self._has_failed_commit, "nothing is acknowledged behind a failure"
            assert request.number is not None
            info = request.append.future.result()
            assert info.base_offset == info.last_offset
            self.told[request.number] = Told(info.base_offset, request.append.durability)
        if self._is_broken and not self.in_flight:
            self._is_broken, self.session = False, AppendSession()

    def _hear_failure(self, request: _Request, error: BaseException) -> None:
        self.failure_count += 1
        if self._is_broken:
            # A request that is no good may be judged before the flush of those before it fails.
            is_judged = isinstance(error, InvalidRecordError) and request.number is None
            assert is_judged or isinstance(error, PrecedingAppendFailedError | DataDirectoryError), repr(
                error
            )
            return
        assert not isinstance(error, PrecedingAppendFailedError), (
            "the first failure of a session has its own answer"
        )
        expected = (
            DataDirectoryError if request.number is not None else InvalidRecordError | DataDirectoryError
        )
        assert isinstance(error, expected), repr(error)
        self._is_broken = True
        self._has_failed_commit = request.durability is Durability.OBJECT and request.number is not None
        self.next_number = min(
            (one.number for one in (request, *self.in_flight) if one.number is not None),
            default=self.next_number,
        )


class StreamedLog:
    """A partition with three clients, of which two are idempotent. Used by one thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        seed: int,
        *,
        request_count: int = 24,
        max_record_count: int = 12,
    ) -> None:
        """`loop` does not run; the test closes it."""
        self.disk = FaultyFileSystem()
        self.clients = [StreamClient("a", 1), StreamClient("b", 2), StreamClient("c", None)]
        self._loop = loop
        self._seed = seed
        self._request_count = request_count
        self._max_record_count = max_record_count
        self._memory = RequestMemory(1 << 30)
        self.log = machine_on(self.disk, data_dirs=("/data",)).start()
        self.appends, self.flushes = HandExecutor(), HandExecutor()
        self.writer = PartitionWriter(
            PlainCalls(self._loop),
            WriterThreads(lambda: self.appends, lambda: self.flushes),
            self.log,
            WriterChecks(lambda: EPOCH),
            CommitWaiters(ManualClock(), self._loop),
            lambda: None,
        )

    def run(self) -> None:
        """Send, write and flush at random; then let each client go on until all its records are acknowledged,
        or the log is offline. Raises SimulatedCrash."""
        try:
            self._run()
        except SimulatedCrash:
            self._loop.run_until_complete(asyncio.sleep(0))
            for client in self.clients:
                for request in client.in_flight:
                    request.append.abandon()
            raise

    def _run(self) -> None:
        chance = random.Random(self._seed)
        for _ in range(self._request_count):
            for _ in range(chance.randrange(1, 5)):
                self._send(chance.choice(self.clients), chance)
            self._step(self.appends, chance)
            self._step(self.flushes, chance)
            if chance.random() < 0.3:
                self._commit()
                self._hear()
        self._finish(chance)

    def _finish(self, chance: random.Random) -> None:
        for _ in range(MAX_TRIES):
            self._settle()
            if self.log.availability.is_offline or not any(map(self._has_more, self.clients)):
                break
            for client in self.clients:
                while self._has_more(client) and self._may_send(client):
                    self._send(client, chance, is_sound=True)
        assert self._memory.held_bytes == 0, "every request is answered"

    def _has_more(self, client: StreamClient) -> bool:
        return client.next_number < self._max_record_count

    def _may_send(self, client: StreamClient) -> bool:
        return len(client.in_flight) < MAX_IN_FLIGHT and not client.session.is_broken

    def _send(self, client: StreamClient, chance: random.Random, *, is_sound: bool = False) -> None:
        durability = chance.choice(list(Durability))
        is_sound = chance.random() > 0.1 or is_sound
        if not self._may_send(client) or not self._has_more(client):
            return
        number = client.next_number if is_sound else None
        data = b"no batch at all" * 8 if number is None else client.batch(number)
        future: asyncio.Future[AppendInfo] = self._loop.create_future()
        append = PendingAppend(
            batches=data,
            durability=durability,
            future=future,
            memory=self._memory.lease(len(data)),
            identity=SOME_LOG,
            session=client.session,
        )
        client.in_flight.append(_Request(number, durability, append))
        client.next_number += is_sound
        self.writer.submit(append)

    def _step(self, executor: HandExecutor, chance: random.Random) -> None:
        if executor.waiting and chance.random() < 0.6:
            executor.run_one()
            self._hear()

    def _commit(self) -> None:
        """Acknowledge what waits at `object`. A commit that finds no descriptor is made later."""
        waiters = self.writer.commit_waiters
        if not waiters.count:
            return
        try:
            waiters.acknowledge(self.log.flusher.flush())
        except DataDirectoryError as error:
            if self.log.availability.is_offline:
                waiters.fail(error)

    def _settle(self) -> None:
        while self.appends.waiting or self.flushes.waiting or self.writer.commit_waiters.count:
            self.appends.run_all()
            self.flushes.run_all()
            self._commit()
        self._hear()

    def _hear(self) -> None:
        # A process that died answers nothing: this look at the disk tells.
        self.disk.exists(LOOK_PATH)
        self._loop.run_until_complete(asyncio.sleep(0))
        for client in self.clients:
            client.hear()

    def verify(
        self,
        log: UnifiedLog,
        *,
        must_have: Callable[[Told], bool],
        has_all: bool = False,
        may_repeat: bool = False,
    ) -> None:
        """Compare a log with what the clients know. `must_have` tells of an acknowledgement whether the log
        must keep it. `has_all`: nothing was lost, and nothing is open. `may_repeat`: flushes have failed of
        records that the log kept, so that a client without a producer id may have sent them twice."""
        log.check()
        records = read_up_to(log.offsets.log_end_offset, log, Isolation.LOG_END, _READ_BYTES)
        at = {record.offset: record.value for record in records}
        for client in self.clients:
            found = [
                record.value for record in records if (record.value or b"").startswith(client.value(0)[:2])
            ]
            numbers = {client.value(number): number for number in range(self._max_record_count)}
            stored = [numbers[value] for value in found if value is not None]
            is_exact = client.producer_id is not None or (has_all and not may_repeat)
            if is_exact:
                assert stored == list(range(len(stored))), "in order, none twice, none left out"
            for number, told in client.told.items():
                if must_have(told):
                    assert at.get(told.offset) == client.value(number), (client.name, number, told)
            if has_all:
                assert sorted(set(stored)) == sorted(client.told) == list(range(self._max_record_count))
