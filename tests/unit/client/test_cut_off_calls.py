"""Calls that a proxy cuts off: the transport of grpc, against a server that speaks just enough HTTP/2."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio

from stratalog.client import Client
from stratalog.client.errors import ServerUnavailableError
from stratalog.client.retry import RetryPolicy

PREFACE_BYTES = 24
HEADER = struct.Struct(">BHBBI")
"""The header of a frame: 24 bits of size, type, flags, stream."""

HEADERS, RST_STREAM, SETTINGS, PING = 1, 3, 4, 6
ACK = END_STREAM = 1
END_HEADERS = 4
NO_ERROR, INTERNAL_ERROR, CANCEL = 0, 2, 8


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return HEADER.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def reset(stream: int, code: int) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">I", code))


def headers(stream: int, flags: int) -> bytes:
    """The first headers of an answer, in HPACK's plain form."""
    fields = ((b":status", b"200"), (b"content-type", b"application/grpc"))
    plain = b"".join(b"\0%c%b%c%b" % (len(name), name, len(value), value) for name, value in fields)
    return frame(HEADERS, flags | END_HEADERS, stream, plain)


class CuttingServer:
    """Cuts every call off. Belongs to the event loop."""

    def __init__(self) -> None:
        self.way = "reset 0"
        self.port = 0
        self.connections: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        self.connections.add(asyncio.ensure_future(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(PREFACE_BYTES)
            writer.write(frame(SETTINGS, 0, 0))
            while True:
                high, low, kind, flags, stream = HEADER.unpack(await reader.readexactly(HEADER.size))
                payload = await reader.readexactly(high << 16 | low)
                if kind in (SETTINGS, PING) and not flags & ACK:
                    writer.write(frame(kind, ACK, 0, payload if kind == PING else b""))
                if kind == HEADERS:
                    writer.write(self._answer(stream))
        except (asyncio.IncompleteReadError, ConnectionError):
            # The client is closed.
            pass
        finally:
            writer.close()

    def _answer(self, stream: int) -> bytes:
        match self.way.split():
            case ["reset", code]:
                return reset(stream, int(code))
            case ["headers", "reset"]:
                return headers(stream, 0) + reset(stream, INTERNAL_ERROR)
            case _:
                return headers(stream, END_STREAM)


@pytest_asyncio.fixture
async def cutting() -> AsyncGenerator[CuttingServer]:
    server = CuttingServer()
    listening = await asyncio.start_server(server.accept, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    yield server
    listening.close()
    for connection in server.connections:
        connection.cancel()
    await asyncio.gather(*server.connections, return_exceptions=True)
    # Its transports close in the next turn of the loop.
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    "way",
    [f"reset {NO_ERROR}", f"reset {INTERNAL_ERROR}", f"reset {CANCEL}", "headers reset", "headers end"],
)
async def test_a_call_that_is_cut_off_may_be_made_again(cutting: CuttingServer, way: str) -> None:
    cutting.way = way
    async with Client(f"127.0.0.1:{cutting.port}", retry=RetryPolicy(deadline_s=0)) as client:
        with pytest.raises(ServerUnavailableError):
            await client.topics.list()
