"""Logs open beside a disk that hangs: it is given up, and what it answers later does no harm. A disk that is
slow, or idle because the store is slow, is waited for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

import pytest

from stratalog.base.errors import DataDirectoryError, UnknownTopicOrPartitionError
from stratalog.base.types import TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.log_directory import DirectoryState
from stratalog.manager.directories.silent_disks import PROBE_FILE
from stratalog.manager.log_opener import SoughtPartition
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.offline_partition import OfflinePartition
from stratalog.server.partitions.opening.partition_opener import PartitionOpener
from tests.support.logs.hooked_disk import HookedDisk
from tests.support.logs.log_machine import TOPIC_ID
from tests.support.partition_opening import A, B, LookClock, Opening, states, wanted
from tests.support.standstill import Standstill, StandstillThread

FIRST = TopicPartition("orders", 0)
ALL = wanted(*range(4))
LOOK_S = 5


class HangingOpening:
    """Partitions 0 and 2 in A, 1 and 3 in B, with a record each, that a start opens after a crash. From some
    operation on, those in A hang. Belongs to the test's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.still = Standstill()
        self.disk = HookedDisk()
        self._writing = ThreadPoolExecutor(1)
        self._threads: list[StandstillThread] = []
        self.opening = Opening(self._writing, loop, disk=self.disk)
        for partition in self.opening.opener.open(wanted(*range(4), is_new=True)):
            self.opening.append(partition)
        self.count = 0
        """Operations in A since the last start."""
        self._hangs_from: int | None = None
        self.look_count = 0
        self.before_look: Callable[[], None] = lambda: None
        """Is called before time passes until the next look, when all threads stand still."""
        self.disk.before = self._before

    def _before(self, name: str, path: str) -> None:
        if f"{path}/".startswith(f"{A}/") and name != "close":
            self.count += 1
            if self._hangs_from is not None and self.count >= self._hangs_from:
                self.still.pass_through()

    def _thread(self) -> StandstillThread:
        self._threads.append(StandstillThread(self.still))
        return self._threads[-1]

    def start(self, *data_dirs: str) -> PartitionOpener:
        """Start a process. Its disks answer so far."""
        self._hangs_from = None
        self.look_count = 0
        self.opening.hosted.clear()
        self.clock = LookClock(self._settle)
        threads = {path: self._thread() for path in (A, B)}
        opener = self.opening.start(
            *data_dirs or (A, B),
            clock=self.clock,
            executor_of=threads.__getitem__,
            run_beside=lambda work: self._thread().submit(work),
        )
        self.count = 0
        return opener

    def hang_from(self, number: int) -> None:
        """Let this operation hang, and all later ones."""
        self.still.close()
        self._hangs_from = number

    def _settle(self) -> None:
        self.still.settle()
        self.look_count += 1
        self.before_look()

    def answer(self) -> None:
        """Let the disk answer, and all threads come to their end."""
        self.still.open()
        self.still.settle()

    def close(self) -> None:
        self.still.open()
        for thread in (*self._threads, self._writing):
            thread.shutdown()

    def require_given_up(self, opened: Sequence[HostedPartition | OfflinePartition]) -> None:
        """A is offline, because it did not answer for 30 s, and B is served."""
        assert states(opened) == [False, True, False, True]
        manager = self.opening.manager
        found = [one.state for one in manager.directories.statuses()]
        assert found == [DirectoryState.OFFLINE, DirectoryState.LIVE]
        for one in opened:
            if isinstance(one, OfflinePartition):
                assert one.path == f"{A}/{one.topic_partition}"
                assert "did not answer for 30 s when the server started" in one.reason
        assert [str(log.topic_partition) for log in manager.logs()] == ["orders-1", "orders-3"]

    def appended_offset(self, partition: HostedPartition | OfflinePartition) -> int:
        assert isinstance(partition, HostedPartition)
        return self.opening.append(partition).base_offset


@pytest.fixture
def hanging() -> Iterator[HangingOpening]:
    loop = asyncio.new_event_loop()
    hanging = HangingOpening(loop)
    yield hanging
    hanging.close()
    loop.close()


def test_a_disk_that_hangs_while_logs_open_is_given_up(
    hanging: HangingOpening, caplog: pytest.LogCaptureFixture
) -> None:
    opener = hanging.start()
    hanging.hang_from(1)
    with caplog.at_level(logging.INFO):
        opened = opener.open_what_can_be(ALL)
    hanging.require_given_up(opened)
    assert hanging.clock.monotonic_s() == 30
    assert [message for message in caplog.messages if message.startswith("opening logs")] == [
        f"opening logs: 2 of 4 remain, 2 in {A}{silence}"
        for silence in (
            "",
            *(f" (whose disk has not answered for {silent_s} s)" for silent_s in (10, 15, 20, 25, 30)),
        )
    ]
    assert sum("stays offline" in message for message in caplog.messages) == 2
    assert hanging.appended_offset(opened[1]) == 1


def test_a_log_that_opens_late_is_let_go(hanging: HangingOpening) -> None:
    """Whichever operation hangs."""
    assert states(hanging.start().open_what_can_be(wanted(0, 1))) == [True, True]
    count = hanging.count
    assert count > 10
    for number in range(1, count + 1):
        opener = hanging.start()
        hanging.hang_from(number)
        opened = opener.open_what_can_be(ALL)
        hanging.require_given_up(opened)
        since = hanging.disk.operation_count
        hanging.answer()
        late = {line.split()[0] for line in hanging.disk.trace[since:] if f" {A}" in line}
        assert late <= {"close"}, number
        hanging.require_given_up(opened)
        hanging.opening.manager.check()
        # The thread has ended, so the refusal is that of the directory.
        with pytest.raises(DataDirectoryError) as refusal:
            hanging.opening.manager.open_log(FIRST, TOPIC_ID, LogConfig())
        assert "did not answer" in str(refusal.value.fields["reason"])
        assert hanging.appended_offset(opened[1]) == number
    opened = hanging.start().open_what_can_be(ALL)
    assert [hanging.appended_offset(one) for one in opened] == [1, count + 1, 1, 1]


def test_a_partition_that_is_hosted_late_is_withdrawn(hanging: HangingOpening) -> None:
    """Behind the last operation of an opening nothing is refused any more."""
    opener = hanging.start()

    def wait(log: UnifiedLog) -> None:
        if log.topic_partition == FIRST:
            hanging.hang_from(1)
            hanging.still.pass_through()

    hanging.opening.before_host = wait
    opened = opener.open_what_can_be(ALL)
    hanging.require_given_up(opened)
    hanging.answer()
    [late] = [one for one in hanging.opening.hosted if one.topic_partition == FIRST]
    assert late.log.availability.is_closed
    with pytest.raises(UnknownTopicOrPartitionError):
        late.ensure_served()
    hanging.require_given_up(opened)


def test_the_name_of_a_log_that_a_thread_still_opens_is_refused(hanging: HangingOpening) -> None:
    """A log of another topic of that name could be closed by it."""
    opener = hanging.start()
    hanging.hang_from(1)
    opener.open_what_can_be(ALL)
    manager, another = hanging.opening.manager, UUID(int=8)

    def create() -> None:
        manager.create_logs([SoughtPartition(FIRST, another, is_first_opening=True)])
        manager.open_log(FIRST, another, LogConfig(), is_first_opening=True)

    calls: list[Callable[[], object]] = [
        create,
        lambda: manager.open_log(FIRST, TOPIC_ID, LogConfig()),
        lambda: manager.set_aside(FIRST, "fenced"),
        lambda: manager.delete_log(FIRST),
        create,
    ]
    for call in calls:
        with pytest.raises(DataDirectoryError):
            call()
    hanging.answer()
    # It was deleted, as far as this process is concerned.
    create()
    assert manager.directory_of(FIRST) == B


def test_a_disk_that_is_slow_is_waited_for(hanging: HangingOpening) -> None:
    """It answers an operation each 25 s."""
    opener = hanging.start()
    hanging.hang_from(1)

    def answer_now_and_then() -> None:
        if hanging.look_count % 5 == 0:
            hanging.still.let_one_pass()
            hanging.still.settle()

    hanging.before_look = answer_now_and_then
    assert states(opener.open_what_can_be(ALL)) == [True] * 4
    assert hanging.clock.monotonic_s() > 300


def test_a_log_that_waits_for_the_store_is_waited_for(
    hanging: HangingOpening, caplog: pytest.LogCaptureFixture
) -> None:
    opener = hanging.start()
    hanging.still.close()
    hanging.opening.before_host = lambda _: hanging.still.pass_through()
    hanging.before_look = lambda: hanging.answer() if hanging.look_count == 30 else None
    with caplog.at_level(logging.INFO):
        assert states(opener.open_what_can_be(ALL)) == [True] * 4
    assert hanging.clock.monotonic_s() == 30 * LOOK_S
    assert len(caplog.messages) == 29
    assert all(
        message.startswith(f"opening logs: 4 of 4 remain, 2 in {A}, 2 in {B};") for message in caplog.messages
    )
    assert PROBE_FILE not in {*hanging.disk.list_directory(A), *hanging.disk.list_directory(B)}
    assert any(line == f"sync {A}/{PROBE_FILE}" for line in hanging.disk.trace)


def test_the_only_log_directory_is_waited_for(
    hanging: HangingOpening, caplog: pytest.LogCaptureFixture
) -> None:
    opener = hanging.start(A)
    hanging.hang_from(1)
    hanging.before_look = lambda: hanging.answer() if hanging.look_count == 20 else None
    with caplog.at_level(logging.WARNING):
        assert states(opener.open_what_can_be(wanted(0, 2))) == [True] * 2
    assert hanging.clock.monotonic_s() == 20 * LOOK_S
    waits = [message for message in caplog.messages if "waits for the only log directory" in message]
    assert len(waits) == len(range(30, 20 * LOOK_S, LOOK_S))
    assert all(f"path=`{A}`" in message for message in waits)


def test_logs_that_open_at_run_time_are_waited_for(
    hanging: HangingOpening, caplog: pytest.LogCaptureFixture
) -> None:
    """The directory stays online: calls about new topics have bounds of their own."""
    opener = hanging.start()
    hanging.hang_from(1)
    hanging.before_look = lambda: hanging.answer() if hanging.look_count == 20 else None
    with caplog.at_level(logging.INFO):
        assert states(opener.open(ALL)) == [True] * 4
    assert f"opening logs: 2 of 4 remain, 2 in {A}" in caplog.messages
