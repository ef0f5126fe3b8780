"""TLS of the server: its certificate, its key, and the authorities of client certificates, reloaded on
change.

gRPC asks for a configuration before the handshake of each connection, on threads of its own. Each server of
gRPC begins with the one in force, and gets a new one once, after the files have changed; connections that
stand keep theirs. The endpoint of metrics takes the context that is current when a connection comes.

A certificate that has expired does not replace one that has not: no client would take it. A start takes it,
and complains, because there is no other one, and the clock may be wrong.

With client authorities every client needs a certificate, for gRPC and for metrics: Python's gRPC can demand
one from all clients or ask none.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, cast

import grpc

from stratalog.base.clock import Clock
from stratalog.base.errors import InvalidConfigError
from stratalog.server.access.certificate_dates import CertificateDates, dates_of
from stratalog.server.access.certificate_key import rare_key
from stratalog.server.access.reloaded_files import ReloadedFiles, read_files

logger = logging.getLogger(__name__)

SETTING = "tls"


class TlsPaths(NamedTuple):
    """The files of TLS, in PEM."""

    cert: str
    """The server's certificate, and behind it those of the authorities between."""
    key: str
    client_ca: str = ""
    """The authorities of client certificates; empty: clients have none."""


class ServerTls:
    """TLS that follows its files. Thread-safe: a configuration is replaced as a whole."""

    def __init__(self, paths: TlsPaths, clock: Clock) -> None:
        """Read the files. Raises InvalidConfigError if one cannot be read, or the key is not that of the
        certificate."""
        self._paths = paths
        self._clock = clock
        self.configuration: grpc.ServerCertificateConfiguration | None = None
        """The configuration of gRPC's connections that begin now; None until the files were read."""
        self._context: ssl.SSLContext | None = None
        self.dates: CertificateDates | None = None
        """The time in which the certificate in force and those behind it are valid; None: unknown."""
        self.rare_key = ""
        """The kind of its key, if clients of gRPC's C core cannot use it."""
        self._present = [path for path in paths if path]
        self.files = ReloadedFiles(SETTING, self._present, self._take)

    @property
    def context(self) -> ssl.SSLContext:
        """The context of connections that begin now, without gRPC."""
        assert self._context is not None, "the files were taken"
        return self._context

    def credentials(self) -> grpc.ServerCredentials:
        """The credentials of one more server of gRPC, which asks for changes. Any number of servers may have
        them, one after the other or beside each other."""
        first = self.configuration
        assert first is not None, "the files were taken"
        changes = _Changes(self, first)
        return grpc.dynamic_ssl_server_credentials(
            # Its type leaves out None, which stands for no change.
            first,
            cast(Any, changes.take),
            require_client_authentication=bool(self._paths.client_ca),
        )

    def _take(self, contents: Sequence[bytes]) -> None:
        cert, key, *client_ca = contents
        context = self._checked_context(client_ca)
        if read_files(SETTING, self._present) != contents:
            # OpenSSL has read the files once more, and would have judged others than those that gRPC gets.
            raise InvalidConfigError(
                "the files change while they are read; replace them as a whole, and start again",
                name="tls-cert",
                value=self._paths.cert,
            )
        configuration = grpc.ssl_server_certificate_configuration(
            [(key, cert)], root_certificates=client_ca[0] if client_ca else None
        )
        try:
            dates = dates_of(cert)
        except ValueError:
            # OpenSSL takes it, so it serves.
            dates = None
        is_first = self.configuration is None
        if not is_first and self._has_expired(dates) and not self._has_expired(self.dates):
            raise InvalidConfigError(
                "the certificate has expired, and the former one has not; renew it, or correct the clock",
                name="tls-cert",
                value=self._paths.cert,
            )
        self._context = context
        self.dates = dates
        self.rare_key = rare_key(cert)
        self.configuration = configuration
        if not is_first:
            self.complain()

    def _has_expired(self, dates: CertificateDates | None) -> bool:
        return dates is not None and dates.end_s <= self._clock.now_ms() / 1000

    def complain(self) -> None:
        """Say in the log why clients cannot connect with the certificate in force, if it is known."""
        assert self.configuration is not None, "the files were taken"
        if self._has_expired(self.dates):
            logger.error("tls: no client connects, because the certificate %s has expired", self._paths.cert)
        elif self.rare_key:
            logger.warning(
                "tls: no client of gRPC's C core connects, such as one in Python, because the certificate %s"
                " has a key of the kind %s; use P-256, P-384 or RSA",
                self._paths.cert,
                self.rare_key,
            )

    def _checked_context(self, client_ca: Sequence[bytes]) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            # Otherwise OpenSSL asks the terminal.
            context.load_cert_chain(self._paths.cert, self._paths.key, password=_no_password)
        except (OSError, ValueError) as error:
            raise InvalidConfigError(
                "the certificate and the key cannot be used together; give a certificate in PEM and its key"
                " without a password",
                name="tls-cert",
                value=self._paths.cert,
                reason=str(error),
            ) from None
        if client_ca:
            try:
                context.load_verify_locations(cadata=client_ca[0].decode("ascii", "replace"))
            except (OSError, ValueError) as error:
                raise InvalidConfigError(
                    "the authorities of client certificates cannot be used; give certificates in PEM",
                    name="tls-client-ca",
                    value=self._paths.client_ca,
                    reason=str(error),
                ) from None
            context.verify_mode = ssl.CERT_REQUIRED
        return context


class _Changes:
    """The configurations that one server of gRPC has not had. Thread-safe: `_lock` guards the last one."""

    def __init__(self, tls: ServerTls, first: grpc.ServerCertificateConfiguration) -> None:
        self._tls = tls
        self._lock = threading.Lock()
        self._taken = first

    def take(self) -> grpc.ServerCertificateConfiguration | None:
        """The configuration in force; None if this server has it."""
        with self._lock:
            found = self._tls.configuration
            if found is None or found is self._taken:
                return None
            self._taken = found
            return found


def _no_password() -> NoReturn:
    raise ValueError("the key has a password")
