"""Every call of a server, found in the descriptors, with random bytes and random fields: a million inputs by
`make simulate`, some hundreds in CI.

Each call ends in time, with OK or with a documented error that is no defect; health and a topic beside are
right all the time; memory, descriptors and threads stay level. A failing input is sent again alone with
`STRATALOG_FUZZ_INPUT=number`, under the seed that the failure names.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import AsyncGenerator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest

from stratalog.client.client import Client
from stratalog.client.retry import RetryPolicy
from tests.support.fuzz.fuzz_tls import FuzzTls
from tests.support.fuzz.fuzzed_calls import DEADLINE_S, METHODS, Fuzz, FuzzInput
from tests.support.fuzz.fuzzed_server import OPTIONS, FuzzedServer
from tests.support.fuzz.message_bytes import fields_of, varint
from tests.support.logs.sampling import IS_WHOLE, SEED
from tests.support.service.server_process import ServerProcess
from tests.support.torture.process_use import IS_SHOWN, ProcessUse

INPUT_COUNT = int(os.environ.get("STRATALOG_FUZZ_COUNT", "1000000" if IS_WHOLE else "1000"))
ONLY_INPUT = os.environ.get("STRATALOG_FUZZ_INPUT", "")
SENDER_COUNT = 64
CHANNEL_COUNT = 8
CHECK_COUNT = 500
"""Inputs between two looks at the health and the control topic."""
CHECK_S = 30.0
"""The time that a check has over a connection that was lost."""
TEND_COUNT = 100
"""Inputs between two looks for topics that they have deleted."""
MAX_FAULT_COUNT = 10
PART_COUNT = 10 if IS_WHOLE else 2
MEASURED_AT = [INPUT_COUNT * number // PART_COUNT for number in range(PART_COUNT + 1)]
"""The server is measured at these inputs, but for the first one. The last measure is compared with the
first."""
GROWTH_BYTES = 128 << 20
"""The heap keeps the memory of the most elements that requests had at the same moment, which comes late by
chance. A leak of 150 bytes an input shows in a million of them."""
GROWTH_COUNT = 10
"""Descriptors and threads that may be more at the end: pools grow to their bounds as they are needed."""
TLS_INPUT_COUNT = INPUT_COUNT // 10
"""TLS is below all that the inputs are about."""
PLAIN = FuzzTls()
AGAIN = "repeat it with STRATALOG_SIMULATION_FIRST_SEED={seed} STRATALOG_FUZZ_INPUT={number}"


@asynccontextmanager
async def channels(address: str, tls: FuzzTls) -> AsyncGenerator[list[grpc.aio.Channel]]:
    options = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_metadata_size", 1 << 20))
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(tls.channel(address, options)) for _ in range(CHANNEL_COUNT)]


async def send_all(
    fuzz: Fuzz, server: FuzzedServer, address: str, numbers: Iterable[int], tls: FuzzTls = PLAIN
) -> list[str]:
    """Send these inputs, many at once; returns what was wrong."""
    faults: list[str] = []
    left = iter(numbers)

    async def sender(channel: grpc.aio.Channel) -> None:
        for number in left:
            if len(faults) >= MAX_FAULT_COUNT:
                break
            one = fuzz.input(number)
            if number % TEND_COUNT == 0:
                await server.tend()
            if number % CHECK_COUNT == 0:
                await server.check()
            try:
                fault = await within_time(fuzz, channel, one)
            except OSError as error:
                fault = f"no connection ({error}), {server.last_words()}"
            if fault:
                faults.append(f"{fault}: {AGAIN.format(seed=SEED, number=number)}: {one}")

    async with channels(address, tls) as found, asyncio.TaskGroup() as senders:
        for _, channel in zip(range(SENDER_COUNT), itertools.cycle(found), strict=False):
            senders.create_task(sender(channel))
    return faults


async def within_time(fuzz: Fuzz, channel: grpc.aio.Channel, one: FuzzInput) -> str:
    try:
        return await asyncio.wait_for(fuzz.send(channel, one), 2 * DEADLINE_S)
    except TimeoutError:
        return "did not end"


@pytest.mark.skipif(not IS_SHOWN, reason="it reads /proc")
@pytest.mark.timeout(120 + INPUT_COUNT)
async def test_no_input_hurts_the_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ServerProcess(f"{tmp_path}/data", options=OPTIONS) as process:
        async with Client(process.address, retry=RetryPolicy(deadline_s=0)) as client:
            server, fuzz = FuzzedServer(process, client, PLAIN), Fuzz(SEED, process.address)
            await server.prepare()
            begin_s = time.monotonic()
            if ONLY_INPUT:
                faults = await send_all(fuzz, server, process.address, [int(ONLY_INPUT)])
                require_none(faults + await server.faults())
                return
            uses: list[ProcessUse] = []
            for begin, end in itertools.pairwise(MEASURED_AT):
                faults = await send_all(fuzz, server, process.address, range(begin, end))
                require_none(faults + await server.faults())
                await server.check()
                uses.append(await server.settled_use())
            seconds = time.monotonic() - begin_s
            with capsys.disabled():
                sys.stdout.write(
                    f"\nseed {SEED}, {INPUT_COUNT} inputs for {len(METHODS)} calls in {seconds:.1f} s;"
                    f" then, and before, {'; '.join(map(str, reversed(uses)))}\n"
                )
            require_level(uses[0], uses[-1])
            assert process.stop() == 0


@pytest.mark.timeout(120 + TLS_INPUT_COUNT)
async def test_no_input_hurts_a_server_with_tls(tmp_path: Path) -> None:
    tls = FuzzTls.in_folder(tmp_path)
    with ServerProcess(f"{tmp_path}/data", options=OPTIONS + tls.options) as process:
        patience = RetryPolicy(deadline_s=CHECK_S)
        async with Client(process.address, retry=patience, credentials=tls.credentials) as client:
            server, fuzz = FuzzedServer(process, client, tls), Fuzz(SEED, process.address, tls.context)
            await server.prepare()
            faults = await send_all(fuzz, server, process.address, range(TLS_INPUT_COUNT), tls)
            require_none(faults + await server.faults())
            for _ in range(2):
                await server.check()
                # gRPC's failure is in the log, as a defect is.
                await server.survives_a_path_without_unicode()
            assert process.stop() == 0


def require_none(faults: list[str]) -> None:
    assert not faults, "\n".join(faults)


def require_level(before: ProcessUse, after: ProcessUse) -> None:
    assert after.resident_bytes - before.resident_bytes <= GROWTH_BYTES
    assert after.descriptor_count - before.descriptor_count <= GROWTH_COUNT
    assert after.thread_count - before.thread_count <= GROWTH_COUNT


def test_the_fields_of_a_message_are_found() -> None:
    fields = [b"\x08\x96\x01", b"\x12\x03abc", b"\x1d1234", b"\x2112345678", varint(100 << 3 | 2) + b"\x00"]
    assert fields_of(b"".join(fields)) == fields
    assert fields_of(b"\x08\x01\x12\x05abc") == [b"\x08\x01", b"\x12\x05abc"]
