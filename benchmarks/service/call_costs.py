"""The cost of the counts of calls, of the access file and of TLS, in the server's time for small appends.

Four servers take the same unary appends of 100 bytes at `os` in turns, each from 16 callers over one
connection: one as it starts without options, one whose calls are not counted for metrics, one with an access
file, and one with TLS. Many short turns, because other work on the machine comes and goes; their sums are
compared.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import grpc

from append_fetch import LOG, OPTIONS, SMALL_BYTES, batch_of
from report import Row, run
from server_process import ServerProcess, running, stratalog_command
from stratalog.base.randomness import SystemIdGenerator
from stratalog.server.access.tokens import digest_of, new_token
from stratalog.v1 import admin_pb2, admin_pb2_grpc, log_pb2
from tests.support.access.certificates import Authority

METER_TARGET = 0.98
GATE_TARGET = 0.95
TLS_TARGET = 0.85
CALLER_COUNT = 16
TURN_CALL_COUNT = 25
"""The calls of a caller in one turn."""
UNMETERED = """
from stratalog.server.meters.call_meter import CallMeter
CallMeter.metering = lambda self, service: service
"""
"""A program that lets a server count no calls."""
PRINCIPAL = """
[principals.bench]
tokens = ["{entry}"]
allow = [{{ topics = ["*"], operations = ["all"] }}, {{ cluster = true, operations = ["all"] }}]
"""


class Side(NamedTuple):
    """A server, and how to reach it."""

    server: ServerProcess
    channel: grpc.aio.Channel
    metadata: Sequence[tuple[str, str]]

    async def create_topic(self) -> None:
        admin = admin_pb2_grpc.AdminServiceStub(self.channel)
        await admin.CreateTopic(admin_pb2.CreateTopicRequest(name="small"), metadata=self.metadata)

    async def appends_s(self) -> float:
        """The processor time of the server for one turn of appends."""
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = self.channel.unary_unary(LOG + "Append")
        request = log_pb2.AppendRequest(
            topic="small",
            partition=0,
            durability=log_pb2.DURABILITY_OS,
            batches=batch_of(SMALL_BYTES, SMALL_BYTES - 75),
        ).SerializeToString()

        async def one() -> None:
            for _ in range(TURN_CALL_COUNT):
                await call(request, metadata=self.metadata)

        before_s = self.server.processor_s()
        await asyncio.gather(*(one() for _ in range(CALLER_COUNT)))
        return self.server.processor_s() - before_s


class Sides(NamedTuple):
    """The four servers."""

    plain: Side
    unmetered: Side
    gated: Side
    encrypted: Side


class Totals(NamedTuple):
    """The processor time of each, in seconds."""

    plain: float
    unmetered: float
    gated: float
    encrypted: float


async def measure_turns(sides: Sides, turn_count: int) -> Totals:
    sums_s = [0.0] * len(sides)
    for side in sides:
        await side.create_topic()
    for turn in range(turn_count + 2):
        # The order changes, so that none always comes behind the same one.
        for place in range(len(sides)):
            number = (turn + place) % len(sides)
            taken_s = await sides[number].appends_s()
            sums_s[number] += taken_s if turn >= 2 else 0.0
    return Totals(*sums_s)


async def measure_servers(
    folder: Path, servers: Sequence[ServerProcess], token: str, turn_count: int
) -> Totals:
    plain, unmetered, gated, encrypted = servers
    credentials = grpc.ssl_channel_credentials((folder / "ca.pem").read_bytes())
    async with contextlib.AsyncExitStack() as stack:
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(one.address, OPTIONS))
            for one in (plain, unmetered, gated)
        ]
        secure = grpc.aio.secure_channel(encrypted.address, credentials, OPTIONS)
        channels.append(await stack.enter_async_context(secure))
        authorization = (("authorization", f"Bearer {token}"),)
        return await measure_turns(
            Sides(
                Side(plain, channels[0], ()),
                Side(unmetered, channels[1], ()),
                Side(gated, channels[2], authorization),
                Side(encrypted, channels[3], ()),
            ),
            turn_count,
        )


def measure(quick: bool) -> Iterator[Row]:
    """The server's processor time of small appends, with each part and without."""
    turn_count = 10 if quick else 60
    with tempfile.TemporaryDirectory(prefix="stratalog-bench-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        token = new_token(SystemIdGenerator())
        digest = digest_of(token)
        assert digest is not None
        access_file = folder / "access.toml"
        access_file.write_text(PRINCIPAL.format(entry=digest.entry))
        certificate = Authority(folder, "ca").issue("server", "localhost", "127.0.0.1")
        option, program = stratalog_command(f"{name}/unmetered")
        commands = (
            stratalog_command(f"{name}/plain"),
            (option, UNMETERED + program),
            stratalog_command(f"{name}/gated", "--access-file", str(access_file)),
            stratalog_command(
                f"{name}/encrypted", "--tls-cert", certificate.cert, "--tls-key", certificate.key
            ),
        )
        servers = [stack.enter_context(running(*command)) for command in commands]
        totals = asyncio.run(measure_servers(folder, servers, token, turn_count))
    call_count = turn_count * CALLER_COUNT * TURN_CALL_COUNT
    for work, ours_s, reference_s, target in (
        ("append of 100 B with counts of calls", totals.plain, totals.unmetered, METER_TARGET),
        ("append of 100 B with an access file", totals.gated, totals.plain, GATE_TARGET),
        ("append of 100 B with TLS", totals.encrypted, totals.plain, TLS_TARGET),
    ):
        yield Row(
            work=work,
            unit="us/append",
            ours=1e6 * ours_s / call_count,
            reference=1e6 * reference_s / call_count,
            target=target,
            is_cost=True,
        )


if __name__ == "__main__":
    sys.exit(run(measure))
