"""The HTTP endpoint of the metrics, with TLS and bearer tokens where the server has them, and of probes.

Probes of health need no token, as health checks of gRPC do not: those of Kubernetes have none.

The handshake of a connection runs on the connection's own thread and has a deadline, so a stranger who
connects and says nothing holds up no scrape. Strangers who connect again and again close the connections that
have been open for longest, so they take a bounded number of threads and descriptors.
"""

from __future__ import annotations

import logging
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from socketserver import ThreadingMixIn
from typing import Any, Protocol, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

from prometheus_client import exposition
from prometheus_client.registry import Collector, CollectorRegistry

from stratalog.base.errors import AuthenticationFailedError, AuthorizationFailedError, InvalidConfigError
from stratalog.server.access.access_control import AccessControl
from stratalog.server.access.access_policy import credentials_of
from stratalog.server.access.server_tls import ServerTls
from stratalog.server.configuration.settings import listen_address
from stratalog.server.metrics.health_probes import ProbeAnswer

logger = logging.getLogger(__name__)

PATIENCE_S = 10.0
"""The longest silence of a client."""

MAX_CONNECTION_COUNT = 32
"""Connections that may be open at once; one more closes the oldest. A scrape takes far less than a second."""

_CERTIFICATE_NAMES = "stratalog.certificate_names"
_Environ = dict[str, Any]
_Application = Callable[[_Environ, Callable[..., Any]], Iterable[bytes]]


class Probes(Protocol):
    """Answers probes. Thread-safe."""

    def answer(self, path: str) -> ProbeAnswer | None:
        """The answer to a probe of this path; None if it is no path of a probe."""
        ...


class MetricsEndpoint:
    """Serves a collector over HTTP until `close`, on threads of its own. Belongs to one thread."""

    def __init__(
        self,
        listen: str,
        collector: Collector,
        tls: ServerTls | None = None,
        access: AccessControl | None = None,
        probes: Probes | None = None,
    ) -> None:
        """Listen for requests for metrics. Raises InvalidConfigError if the address is not free."""
        registry = CollectorRegistry()
        registry.register(collector)
        host, port = listen_address(listen, "metrics-listen")
        # The types of its parameters are incomplete.
        application: _Application = cast(Any, exposition).make_wsgi_app(registry)
        try:
            self._server = _HttpServer(host.strip("[]"), port, tls)
        except OSError as error:
            raise InvalidConfigError(
                "cannot listen on this address for metrics; stop the process that has the port, or choose"
                " another address",
                name="metrics-listen",
                value=listen,
                reason=error.strerror or str(error),
            ) from None
        guarded = application if access is None else _guarded(application, access)
        self._server.set_app(guarded if probes is None else _answering_probes(guarded, probes))
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(WSGIRequestHandler):
    """A connection: without lines in the log, and with the names of its certificate. One for each thread."""

    def get_environ(self) -> _Environ:
        environ: _Environ = super().get_environ()
        if isinstance(self.connection, ssl.SSLSocket):
            environ[_CERTIFICATE_NAMES] = _names(self.connection)
        return environ

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Log nothing."""


class _HttpServer(ThreadingMixIn, WSGIServer):
    """A server with a thread for each connection. `serve_forever` belongs to one thread; `_lock` guards the
    open connections."""

    # A scrape that hangs does not delay the end.
    daemon_threads = True
    # With the few of the default, connections that come together wait for a second or more.
    request_queue_size = 128

    def __init__(self, host: str, port: int, tls: ServerTls | None) -> None:
        """Listen at the address. Raises OSError if it is not free."""
        self._tls = tls
        self._lock = threading.Lock()
        self._open: dict[Any, socket.socket] = {}
        """Connections by the addresses of their clients, the oldest first."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        super().__init__((str(found[0][4][0]), port), _Handler)

    def finish_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(PATIENCE_S)
        if self._tls is None:
            with self._counting(request, client_address):
                super().finish_request(request, client_address)
            return
        context = self._tls.context
        with (
            context.wrap_socket(request, server_side=True, do_handshake_on_connect=False) as secure,
            self._counting(secure, client_address),
        ):
            secure.do_handshake()
            super().finish_request(secure, client_address)

    @contextmanager
    def _counting(self, connection: socket.socket, client_address: Any) -> Generator[None]:
        """Have the connection among the open ones, and the oldest of too many closed."""
        with self._lock:
            if len(self._open) >= MAX_CONNECTION_COUNT:
                oldest = self._open.pop(next(iter(self._open)))
                with suppress(OSError):
                    # Its thread notices, and closes it. TLS would not let go of it without the other side.
                    socket.socket.shutdown(oldest, socket.SHUT_RDWR)
            self._open[client_address] = connection
        try:
            yield
        finally:
            with self._lock:
                self._open.pop(client_address, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("a request for metrics from %s failed: %s", client_address, sys.exc_info()[1])


def _guarded(application: _Application, access: AccessControl) -> _Application:
    """The application for principals that may see metrics."""

    def guarding(environ: _Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        try:
            access.require_metrics(
                credentials_of(environ.get("HTTP_AUTHORIZATION"), environ.get(_CERTIFICATE_NAMES, ()))
            )
        except AuthenticationFailedError as error:
            access.count_refusal(error.code)
            start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer"), _TEXT])
            return [f"{error.message}\n".encode()]
        except AuthorizationFailedError as error:
            access.count_refusal(error.code)
            start_response("403 Forbidden", [_TEXT])
            return [f"{error.message}\n".encode()]
        return application(environ, start_response)

    return guarding


def _answering_probes(application: _Application, probes: Probes) -> _Application:
    """The application, and probes of health beside it."""

    def answering(environ: _Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        answer = probes.answer(environ.get("PATH_INFO", ""))
        if answer is None:
            return application(environ, start_response)
        start_response(answer.status, [_TEXT])
        return [f"{answer.text}\n".encode()]

    return answering


_TEXT = ("Content-Type", "text/plain; charset=utf-8")


def _names(connection: ssl.SSLSocket) -> tuple[str, ...]:
    """The alternative names of the client's certificate, and its common name."""
    certificate: dict[str, Any] = dict(connection.getpeercert() or {})
    alternative = (name for _, name in certificate.get("subjectAltName", ()))
    common = (value for part in certificate.get("subject", ()) for key, value in part if key == "commonName")
    return (*alternative, *common)
