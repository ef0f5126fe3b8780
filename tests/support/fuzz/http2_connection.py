"""Connections of a client that writes HTTP/2 by hand, for what no gRPC library would send: flags and lengths
of messages that are not true, broken frames, headers that make no sense.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from contextlib import suppress
from random import Random

from tests.support.fuzz.message_bytes import changed

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS = 0x0, 0x1, 0x3, 0x4
_END_STREAM, _END_HEADERS = 0x1, 0x4
_STREAM = 1
_INITIAL_WINDOW_SIZE = 0x4
_ENCODINGS = ("", "identity", "gzip", "deflate", "snappy", "no such encoding", "x" * 5000)
_TIMEOUTS = ("", "10S", "1n", "-1S", "99999999H", "S", "x" * 100)
_ODD_HEADERS = (
    ("x-odd-bin", "!"),
    ("x-odd-bin", "AAAA"),
    ("x-odd-bin", "a" * 9000),
    # No UTF-8, which the transport lets through.
    ("x-odd", "\udce9"),
    ("authorization", "Bearer \udce9"),
)
_CONTENT_TYPES = ("application/grpc", "application/grpc", "application/grpc+proto", "text/plain", "")


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """A frame."""
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def header(name: str, value: str) -> bytes:
    """A header as a literal without an index, which needs no table."""
    return b"\0" + _hpack_text(name) + _hpack_text(value)


def _hpack_text(text: str) -> bytes:
    data = text.encode(errors="surrogateescape")
    if len(data) < 127:
        return bytes((len(data),)) + data
    rest, length = len(data) - 127, bytearray((127,))
    while rest > 127:
        length.append(rest & 127 | 128)
        rest >>= 7
    return bytes((*length, rest)) + data


def odd_call(random: Random, path: str, messages: Sequence[bytes]) -> bytes:
    """The bytes of a connection with one call in which something is odd."""
    headers = [
        (":method", random.choice(("POST", "POST", "POST", "GET", "x"))),
        (":scheme", random.choice(("http", "http", "https", "x"))),
        (":path", random.choice((path, path, path, path + "x", "", "/" * 3000))),
        (":authority", random.choice(("localhost", "", "x" * 300))),
        ("te", random.choice(("trailers", "trailers", "x"))),
        ("content-type", random.choice(_CONTENT_TYPES)),
        ("grpc-encoding", random.choice(_ENCODINGS)),
        ("grpc-timeout", random.choice(_TIMEOUTS)),
        *(random.choice(_ODD_HEADERS) for _ in range(random.choice((0, 0, 1, 3)))),
    ]
    sent = [(name, value) for name, value in headers if value or random.random() < 0.2]
    body = b"".join(_odd_message(random, data) for data in messages)
    frames = [
        frame(_SETTINGS, 0, 0, b""),
        frame(_HEADERS, _END_HEADERS, _STREAM, b"".join(header(*one) for one in sent)),
        *(frame(_DATA, 0, _STREAM, body[at : at + 16_000]) for at in range(0, len(body), 16_000)),
        random.choice(
            (
                frame(_DATA, _END_STREAM, _STREAM, b""),
                frame(_DATA, _END_STREAM, _STREAM, b""),
                frame(_RESET, 0, _STREAM, random.choice((0, 8, 99)).to_bytes(4, "big")),
                b"",
            )
        ),
    ]
    connection = b"".join(frames)
    return _PREFACE + (changed(random, connection) if random.random() < 0.3 else connection)


def unread_calls(path: str, message: bytes, count: int) -> bytes:
    """The bytes of a connection with calls of the path, whose answers it gives the server no room to send."""
    headers = (
        *((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost")),
        *(("te", "trailers"), ("content-type", "application/grpc")),
    )
    block = b"".join(header(*one) for one in headers)
    body = b"\0" + len(message).to_bytes(4, "big") + message
    calls = [
        frame(_HEADERS, _END_HEADERS, stream, block) + frame(_DATA, _END_STREAM, stream, body)
        for stream in range(1, 2 * count, 2)
    ]
    no_room = _INITIAL_WINDOW_SIZE.to_bytes(2, "big") + bytes(4)
    return _PREFACE + frame(_SETTINGS, 0, 0, no_room) + b"".join(calls)


def call_of_path(path: str) -> bytes:
    """The bytes of a connection with one call, without a message; surrogates in the path are single bytes."""
    headers = ((":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"))
    return call_of_headers(*headers, ("te", "trailers"), ("content-type", "application/grpc"))


def call_of_headers(*headers: tuple[str, str]) -> bytes:
    """The bytes of a connection with one call that has these headers, without a message."""
    block = b"".join(header(*one) for one in headers)
    return (
        _PREFACE + frame(_SETTINGS, 0, 0, b"") + frame(_HEADERS, _END_HEADERS | _END_STREAM, _STREAM, block)
    )


def _odd_message(random: Random, data: bytes) -> bytes:
    flag = random.choice((0, 0, 1, 2, 255))
    length = random.choice((len(data), len(data), 0, len(data) + 1, 2**31 - 1, 2**32 - 1))
    return bytes((flag,)) + length.to_bytes(4, "big") + data


def tls_context(ca_path: str, cert_path: str = "", key_path: str = "") -> ssl.SSLContext:
    """TLS of a client of HTTP/2 that trusts this authority, with a certificate or without."""
    context = ssl.create_default_context(cafile=ca_path)
    context.set_alpn_protocols(["h2"])
    if cert_path:
        context.load_cert_chain(cert_path, key_path)
    return context


async def send_bytes(address: str, data: bytes, patience_s: float, tls: ssl.SSLContext | None = None) -> None:
    """Send the bytes over a connection of their own, and read until the server closes it or time is up."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    try:
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(patience_s):
                writer.write(data)
                await writer.drain()
                while await reader.read(65_536):
                    pass
    finally:
        writer.transport.abort()
