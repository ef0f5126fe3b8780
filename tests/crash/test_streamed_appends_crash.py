"""Streams of appends on a machine that dies, or whose disk refuses, at every single operation.

Groups hold many requests of a session, are cut by rolls, and are flushed while the next ones are written.
What was acknowledged is there at its level, in the order of its session, and nothing is there twice.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator

import pytest

from stratalog.base.types import Durability
from tests.support.logs.crash_moments import NOTHING_KEPT
from tests.support.logs.crash_sweep import CrashSweep, Death, Failure
from tests.support.logs.log_machine import machine_on
from tests.support.logs.sampling import IS_WHOLE, SEED
from tests.support.service.streamed_log import LOOK, StreamedLog, Told

SEEDS = range(SEED, SEED + (12 if IS_WHOLE else 2))


def is_any(_told: Told) -> bool:
    return True


def is_at_disk(told: Told) -> bool:
    return told.durability >= Durability.DISK


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_what_was_acknowledged_survives_at_its_level(loop: asyncio.AbstractEventLoop, seed: int) -> None:
    def verify(death: Death[StreamedLog]) -> None:
        disks = list(death.disks())
        for disk in disks:
            # The last one is that of a process that was killed alone.
            must_have = is_any if disk is disks[-1] else is_at_disk
            log = machine_on(disk, data_dirs=("/data",), ids=1).start()
            death.subject.verify(log, must_have=must_have)

    CrashSweep(lambda: StreamedLog(loop, seed), StreamedLog.run, count=30).at_deaths(verify)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_disk_that_refuses_once_loses_nothing_and_stores_nothing_twice(
    loop: asyncio.AbstractEventLoop, seed: int
) -> None:
    online_count = failure_count = 0

    def verify(failure: Failure[StreamedLog]) -> None:
        nonlocal online_count, failure_count
        subject = failure.subject
        log = subject.log
        is_online = not log.availability.is_offline
        online_count += is_online
        failure_count += any(client.failure_count for client in subject.clients)
        if is_online:
            has_no_descriptor = failure.number == errno.EMFILE
            subject.verify(log, must_have=is_any, has_all=True, may_repeat=has_no_descriptor)
        found = machine_on(subject.disk.reopened(NOTHING_KEPT), data_dirs=("/data",), ids=1).start()
        subject.verify(found, must_have=is_at_disk)

    sweep = CrashSweep(lambda: StreamedLog(loop, seed), StreamedLog.run)
    sweep.at_failures(verify, errors=(errno.ENOSPC, errno.EIO, errno.EMFILE), only=lambda name: name != LOOK)
    assert online_count, "some are survived"
    assert failure_count, "some reach a client"
