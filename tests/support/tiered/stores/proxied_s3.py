"""An HTTP proxy before a real S3 server: it counts what goes over the wire, and breaks answers on purpose.

Requests go on byte for byte, so that signatures hold. Of each one it notes the key, the bytes of its body and
those of the answer that were handed to the connection, whether the client reads them or not.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Final, NamedTuple, cast
from urllib.parse import parse_qs, unquote, urlsplit

from tests.support.tiered.s3_servers import S3Server

_PIECE_BYTES: Final = 64 << 10
_HOP_BY_HOP: Final = frozenset({"connection", "keep-alive", "transfer-encoding"})
_RESET: Final = struct.pack("ii", 1, 0)
"""SO_LINGER: a close sends RST at once."""


@dataclass(slots=True, kw_only=True)
class Exchange:
    """A request, and what came back for it. Belongs to the thread of its connection until that has ended."""

    method: str
    key: str
    """Below the bucket, with the prefix of the store."""
    query: frozenset[str]
    """The names of its parameters."""
    request_bytes: int
    status: int = 0
    answer_bytes: int = 0

    @property
    def is_listing(self) -> bool:
        return self.method == "GET" and not self.key

    @property
    def is_of_data(self) -> bool:
        """Whether it is about a data object, not about metadata."""
        return "/data/" in self.key


class Breakage(NamedTuple):
    """The fate of the body of an answer. By default it goes through."""

    after_bytes: int = 0
    """So much of it goes through first."""
    resets: bool = False
    """The connection is reset."""
    ends: bool = False
    """The connection is closed as if all had been sent."""
    idles: bool = False
    """Nothing comes any more, until the client has hung up."""
    piece_bytes: int = _PIECE_BYTES
    """It arrives in pieces of this size, each in a packet of its own."""

    @property
    def breaks_off(self) -> bool:
        return self.resets or self.ends or self.idles


WHOLE: Final = Breakage()


class ProxiedS3:
    """The wire to a server, seen from between. Thread-safe by `_lock`."""

    def __init__(self, target: S3Server, endpoint_url: str) -> None:
        self.target = target
        """The server itself."""
        self.server = replace(target, endpoint_url=endpoint_url)
        """The server as clients of the proxy see it."""
        self.breaks: Callable[[Exchange, int], Breakage] = lambda _exchange, _size_bytes: WHOLE
        """Called with each answer that has a body, and the size of that."""
        self._lock = threading.Lock()
        self._exchanges: list[Exchange] = []

    def clear(self) -> None:
        """Forget what was seen."""
        with self._lock:
            self._exchanges.clear()

    def note(self, exchange: Exchange) -> None:
        """An answer is about to go back."""
        with self._lock:
            self._exchanges.append(exchange)

    def seen(self) -> list[Exchange]:
        """All exchanges since the last `clear`."""
        with self._lock:
            return list(self._exchanges)

    def of_data(self, *methods: str) -> dict[str, list[Exchange]]:
        """Exchanges about data objects, by the name of the object."""
        found: dict[str, list[Exchange]] = {}
        for exchange in self.seen():
            if exchange.is_of_data and exchange.method in methods:
                found.setdefault(exchange.key.rpartition("/")[2], []).append(exchange)
        return found


class _Listener(ThreadingHTTPServer):
    """Accepts connections. Thread-safe: it does not change."""

    daemon_threads = True

    def __init__(self, target: S3Server) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.is_over = threading.Event()
        self.proxy = ProxiedS3(target, f"http://127.0.0.1:{self.server_address[1]}")

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        """Close a connection without a polite end, so that a reset is one."""
        self.close_request(request)


class _Handler(BaseHTTPRequestHandler):
    """One for each connection, on its thread, with a connection of its own to the server."""

    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def setup(self) -> None:
        super().setup()
        self.listener = cast("_Listener", self.server)
        address = urlsplit(self.listener.proxy.target.endpoint_url)
        self.upstream = HTTPConnection(address.hostname or "", address.port, timeout=60)
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def finish(self) -> None:
        self.upstream.close()
        super().finish()

    def handle_any(self) -> None:
        """Ask the server, note what it answers, and pass it on."""
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = urlsplit(self.path)
        exchange = Exchange(
            method=self.command,
            key=unquote(parts.path).partition("/")[2].partition("/")[2],
            query=frozenset(parse_qs(parts.query, keep_blank_values=True)),
            request_bytes=len(body),
        )
        answer = self._answer(body)
        exchange.status = answer.status
        proxy = self.listener.proxy
        proxy.note(exchange)
        length = answer.getheader("Content-Length")
        whole = answer.read() if length in (None, "0") or self.command == "HEAD" else None
        size_bytes = int(length or 0) if whole is None else len(whole)
        self.send_response_only(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in _HOP_BY_HOP | {"content-length"}:
                self.send_header(name, value)
        self.send_header("Content-Length", length or str(size_bytes))
        self.end_headers()
        if size_bytes:
            pieces = _pieces(answer) if whole is None else [whole]
            self._send_body(exchange, pieces, proxy.breaks(exchange, size_bytes))

    def _answer(self, body: bytes) -> HTTPResponse:
        self.upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
        for name, value in self.headers.items():
            if name.lower() not in _HOP_BY_HOP:
                self.upstream.putheader(name, value)
        self.upstream.endheaders(body or None)
        return self.upstream.getresponse()

    def _send_body(self, exchange: Exchange, pieces: Iterable[bytes], breakage: Breakage) -> None:
        left_bytes = breakage.after_bytes if breakage.breaks_off else sys.maxsize
        try:
            for piece in pieces:
                sent = piece[:left_bytes]
                for begin in range(0, len(sent), breakage.piece_bytes):
                    self.wfile.write(sent[begin : begin + breakage.piece_bytes])
                exchange.answer_bytes += len(sent)
                left_bytes -= len(sent)
                if left_bytes == 0:
                    break
        except ConnectionError:
            self._hang_up()
            return
        if breakage.breaks_off:
            self._hang_up()
            while breakage.idles and not self.listener.is_over.is_set() and not _is_gone(self.connection):
                pass
            if breakage.resets:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)

    def _hang_up(self) -> None:
        """Neither connection is used again."""
        self.close_connection = True
        self.upstream.close()

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - named by the base class

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
        """Silent."""


@contextmanager
def proxied_s3(server: S3Server) -> Generator[ProxiedS3]:
    """A proxy before `server`, which ends with the block."""
    listener = _Listener(server)
    thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield listener.proxy
    finally:
        listener.is_over.set()
        listener.shutdown()
        thread.join()
        listener.server_close()


def _pieces(answer: HTTPResponse) -> Generator[bytes]:
    while piece := answer.read(_PIECE_BYTES):
        yield piece


def _is_gone(connection: socket.socket) -> bool:
    """Wait a moment for the client to hang up."""
    connection.settimeout(0.05)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True
