"""The synchronous client leaves nothing behind on its loop; the package loads what is used."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from stratalog.base.errors import InvalidRequestError, LogStoreError
from stratalog.client.blocking.loop_thread import LoopThread
from stratalog.client.blocking.sync_client import SyncClient
from stratalog.client.errors import ClientClosedError
from stratalog.client.retry import RetryPolicy

NOWHERE = "127.0.0.1:1"
WAIT_S = 60.0


async def task_without_end() -> asyncio.Task[None]:
    return asyncio.create_task(asyncio.sleep(3600))


async def wait_for_ever(begun: threading.Event, ended: threading.Event) -> None:
    begun.set()
    try:
        await asyncio.Event().wait()
    finally:
        # It ends a little later than it is cancelled.
        await asyncio.sleep(0)
        ended.set()


async def nothing() -> None:
    """Work that is done."""


def test_close_cancels_what_still_runs() -> None:
    client = SyncClient(NOWHERE)
    task = client.run(task_without_end())
    client.close()
    assert task.cancelled()


FORKS = """
import os
from stratalog.client import SyncClient
from stratalog.client.errors import ClientClosedError
client = SyncClient("127.0.0.1:1")
producer = client.producer()
child = os.fork()
if child == 0:
    refused = 0
    for call in (client.topics.list, lambda: producer.send("t")):
        try:
            call()
        except ClientClosedError:
            refused += 1
    os._exit(refused)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_has_no_client() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKS]
    assert subprocess.run(command, capture_output=True, timeout=WAIT_S, check=True).stdout == b"2\n"


FORKS_WITH_A_RECORD = """
import asyncio, os
from stratalog.client.errors import ClientClosedError
from stratalog.client.producer import Producer
from stratalog.client.producer_settings import ProducerSettings
from stratalog.client.channel import ServerChannel
from stratalog.client.owner_channels import OwnerChannels
from stratalog.client.retry import LONG_WORK
from stratalog.client.values import Topic

async def wait(delivery):
    await delivery

async def describe(name):
    return Topic(name, "id", 1, {}, {}, [], 0)

async def main():
    producer = Producer(OwnerChannels(ServerChannel("127.0.0.1:1")), describe, ProducerSettings(), LONG_WORK)
    await producer.learn("t")
    return producer, [producer.send("t", value="in a batch"), producer.send("u", value="early")]

loop = asyncio.new_event_loop()
producer, deliveries = loop.run_until_complete(main())
child = os.fork()
if child == 0:
    asyncio._set_running_loop(None)
    refused = 0
    waits = [lambda one=one: one.result(60) for one in deliveries]
    waits += [lambda one=one: asyncio.run(wait(one)) for one in deliveries]
    waits += [producer.wake]
    for one in waits:
        try:
            one()
        except ClientClosedError as error:
            refused += error.fields.get("outcome", "unknown") == "unknown"
    os._exit(refused)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
os._exit(0)
"""


def test_the_record_of_a_parent_process_has_no_outcome_in_a_fork() -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKS_WITH_A_RECORD]
    assert subprocess.run(command, capture_output=True, timeout=WAIT_S, check=True).stdout == b"5\n"


def test_close_ends_the_calls_that_other_threads_wait_for() -> None:
    client = SyncClient(NOWHERE)
    begun, ended = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.run, wait_for_ever(begun, ended))
        assert begun.wait(WAIT_S)
        client.close()
        assert ended.is_set()
        with pytest.raises(ClientClosedError):
            waiting.result(WAIT_S)


def test_a_call_that_meets_the_close_ends() -> None:
    for _ in range(30):
        client = SyncClient(NOWHERE)
        with ThreadPoolExecutor(3) as threads:
            at_once = threading.Barrier(3)

            def call(closed: SyncClient, at_once: threading.Barrier = at_once) -> int:
                at_once.wait(WAIT_S)
                for count in range(10_000):
                    try:
                        closed.run(nothing())
                    except ClientClosedError:
                        return count
                raise AssertionError("it is still open")

            calls = [threads.submit(call, client) for _ in range(2)]
            at_once.wait(WAIT_S)
            client.close()
            for one in calls:
                assert one.result(WAIT_S) >= 0


def test_close_cancels_the_tasks_that_begin_while_it_cancels_others() -> None:
    client = SyncClient(NOWHERE)
    tasks: list[asyncio.Task[None]] = []

    async def heir(generation: int) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            if generation:
                tasks.append(asyncio.create_task(heir(generation - 1)))

    async def begin() -> None:
        tasks.append(asyncio.create_task(heir(5)))
        await asyncio.sleep(0)

    client.run(begin())
    client.close()
    assert [task.cancelled() for task in tasks] == [True] * 6


def test_a_client_may_be_closed_twice_and_by_several_threads() -> None:
    for _ in range(20):
        client = SyncClient(NOWHERE)
        with ThreadPoolExecutor(4) as threads:
            for closing in [threads.submit(client.close) for _ in range(4)]:
                closing.result(WAIT_S)
        client.close()
        with pytest.raises(ClientClosedError):
            client.run(nothing())


def test_a_client_may_be_closed_inside_a_block_that_fails() -> None:
    def fail() -> None:
        with SyncClient(NOWHERE) as client:
            client.close()
            client.run(nothing())

    with pytest.raises(ClientClosedError):
        fail()


def test_the_loop_does_not_wait_for_itself() -> None:
    with SyncClient(NOWHERE) as client:

        async def call_back() -> None:
            client.run(nothing())

        with pytest.raises(InvalidRequestError):
            client.run(call_back())

        async def close() -> None:
            client.close()

        with pytest.raises(ClientClosedError):
            client.run(_then_for_ever(close))


async def _then_for_ever(first: Callable[[], Any]) -> None:
    await first()
    await asyncio.Event().wait()


def test_a_producer_that_was_not_closed_settles_its_deliveries_when_the_client_is() -> None:
    client = SyncClient(NOWHERE, retry=RetryPolicy(deadline_s=3600))
    producer = client.producer(linger_ms=3_600_000)
    inner: Any = producer._producer  # pyright: ignore[reportPrivateUsage]  # no server describes the topic
    inner.hold_topic("known", 1, 0)
    inner.open_topic("known")
    deliveries = [
        # It waits for its topic, in a batch, and as a part of a batch that waits for the server.
        inner.send("unknown", None, b"x"),
        inner.send("known", None, b"x"),
    ]
    sent = inner.send("known", None, b"x")
    client.run(_flushing(inner))
    deliveries += [sent, inner.send("known", None, b"x")]
    client.close()
    for delivery in deliveries:
        with pytest.raises(LogStoreError) as caught:
            delivery.result(0)
        assert caught.value.fields == {"outcome": "not stored"}
    for send in (producer.send, inner.send):
        for topic in ("known", "unknown", "known"):
            with pytest.raises(ClientClosedError):
                send(topic, None, b"x")
    assert inner.buffered_bytes == 0


async def _flushing(producer: Any) -> None:
    task = asyncio.create_task(producer.flush())
    await asyncio.sleep(0)
    assert not task.done()


class Interrupted:
    """A synchronous wait in the main thread, which gets a SIGINT once it is under way."""

    def __init__(self, thread: LoopThread) -> None:
        self._main = threading.main_thread().ident
        self._thread = thread
        self.closed_count = 0

    async def numbers(self) -> AsyncGenerator[int]:
        try:
            yield 1
            await asyncio.to_thread(self._interrupt)
            await asyncio.Event().wait()
        finally:
            self.closed_count += 1

    def _interrupt(self) -> None:
        assert self._main is not None
        signal.pthread_kill(self._main, signal.SIGINT)


def test_ctrl_c_ends_an_iteration_and_harms_nothing_else() -> None:
    with SyncClient(NOWHERE) as client:
        thread = client._thread  # pyright: ignore[reportPrivateUsage]  # for an iteration without a server
        source = Interrupted(thread)
        seen: list[int] = []
        with pytest.raises(KeyboardInterrupt):
            seen.extend(thread.iterate(source.numbers))
        assert source.closed_count == 1
        assert client.run(_left_count()) == 0
        client.run(nothing())


async def _left_count() -> int:
    return len(asyncio.all_tasks()) - 1


def test_an_iteration_that_was_left_does_not_mind_that_the_client_is_closed() -> None:
    client = SyncClient(NOWHERE)
    thread = client._thread  # pyright: ignore[reportPrivateUsage]  # for an iteration without a server
    numbers = thread.iterate(Interrupted(thread).numbers)
    assert next(numbers) == 1
    client.close()
    numbers.close()


def test_the_garbage_collector_does_not_wait_for_the_loop() -> None:
    """It may close an iteration in a thread that holds a lock for which the loop waits."""
    with SyncClient(NOWHERE) as client:
        thread = client._thread  # pyright: ignore[reportPrivateUsage]  # for an iteration without a server
        source = Interrupted(thread)
        numbers = thread.iterate(source.numbers)
        assert next(numbers) == 1
        held, begun = threading.Lock(), threading.Event()

        async def wait_for_lock() -> bool:
            begun.set()
            return held.acquire(timeout=WAIT_S)

        with ThreadPoolExecutor(1) as threads:
            with held:
                waiting = threads.submit(client.run, wait_for_lock())
                assert begun.wait(WAIT_S)
                del numbers
            assert waiting.result(WAIT_S)
        client.run(nothing())
        assert source.closed_count == 1


def test_a_wrong_address_leaves_no_thread() -> None:
    with pytest.raises(InvalidRequestError):
        SyncClient("nowhere")
    assert [one for one in threading.enumerate() if one.name == "stratalog-client"] == []


def run_program(program: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert answer.stderr == ""
    return answer.stdout


def test_a_program_ends_though_it_forgot_to_close_its_client() -> None:
    program = """
from stratalog.client import SyncClient
client = SyncClient("127.0.0.1:1")
client.producer()
print("done")
"""
    assert run_program(program) == "done\n"


def test_the_package_loads_its_classes_when_they_are_used() -> None:
    program = """
import sys
import stratalog.client
assert not [name for name in sys.modules if name.startswith("grpc")]
from stratalog.client import Client, SyncClient
assert (Client.__module__, SyncClient.__module__) == (
    "stratalog.client.client", "stratalog.client.blocking.sync_client")
try:
    stratalog.client.Nothing
except AttributeError:
    print("done")
"""
    assert run_program(program) == "done\n"
