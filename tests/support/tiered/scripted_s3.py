"""An HTTP server that answers what a test wrote down, for what no real S3 server does on demand."""

from __future__ import annotations

import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

from stratalog.base.clock import Clock, SystemClock
from stratalog.objectstore.s3 import S3ObjectStore
from stratalog.objectstore.s3_settings import S3Settings

DATE = "Sat, 21 Nov 2026 08:49:37 GMT"
DATE_MS = 1_795_250_977_000


class Answer(NamedTuple):
    """`cut_bytes` closes the connection after so much of the body; `hangs` says nothing, `drops` hangs up."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = {"Date": DATE, "ETag": '"etag"'}
    cut_bytes: int | None = None
    hangs: bool = False
    drops: bool = False


class Request(NamedTuple):
    """A request that the server got."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


def error_answer(status: int, code: str, message: str = "prose") -> Answer:
    """An error as S3 words it."""
    body = f"<Error><Code>{code}</Code><Message>{message}</Message></Error>"
    headers = {"Date": DATE, "Content-Type": "application/xml", "x-amz-request-id": "r1"}
    return Answer(status, body.encode(), headers)


class ScriptedS3(NamedTuple):
    """A running server. `script` may be changed between requests."""

    endpoint_url: str
    requests: list[Request]
    script: list[Answer]

    def settings(self, **changes: float) -> S3Settings:
        return S3Settings(
            bucket="bucket",
            prefix="root",
            endpoint_url=self.endpoint_url,
            region="us-east-1",
            access_key_id="AKIDEXAMPLE",
            secret_access_key="wJalrXUtnFEMI",
            connect_timeout_s=changes.get("connect_timeout_s", 5),
            read_timeout_s=changes.get("read_timeout_s", 5),
            call_timeout_s=changes.get("call_timeout_s", 30),
            max_attempts=int(changes.get("max_attempts", 3)),
        )

    def open_store(self, *, clock: Clock | None = None, **changes: float) -> S3ObjectStore:
        return S3ObjectStore(clock or SystemClock(), self.settings(**changes))


@contextmanager
def scripted_s3(answers: Sequence[Answer]) -> Generator[ScriptedS3]:
    """Gives the answers one by one, the last one for ever."""
    requests: list[Request] = []
    script = list(answers)
    is_over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        """One for each connection, on its thread."""

        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            requests.append(Request(self.command, self.path, dict(self.headers.items()), body))
            answer = script.pop(0) if len(script) > 1 else script[0]
            if answer.hangs or answer.drops:
                is_over.wait(30 if answer.hangs else 0)
                self.close_connection = True
                return
            self.send_response_only(answer.status)
            for name, value in {"Content-Length": str(len(answer.body)), **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.body[: answer.cut_bytes])
            self.close_connection = answer.cut_bytes is not None

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815 - named by the base class

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the base class
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield ScriptedS3(f"http://127.0.0.1:{server.server_address[1]}", requests, script)
    finally:
        is_over.set()
        server.shutdown()
        thread.join()
        server.server_close()
