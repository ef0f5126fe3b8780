"""TLS between a server that random inputs are sent to and their senders."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from stratalog.client.access.credentials import Credentials
from tests.support.access.certificates import Authority
from tests.support.fuzz.http2_connection import tls_context


class FuzzTls(NamedTuple):
    """The files and contexts of TLS, or plain connections. Immutable."""

    options: tuple[str, ...] = ()
    """Those of the server's command."""
    ca_path: str = ""
    """The authority of the server's certificate; empty: no TLS."""
    context: ssl.SSLContext | None = None
    """That of connections that gRPC does not make."""

    @classmethod
    def in_folder(cls, folder: Path) -> FuzzTls:
        """TLS with a certificate that is issued for this."""
        authority = Authority(folder, "ca")
        cert, key = authority.issue("server", "localhost", "127.0.0.1")
        options = ("--tls-cert", cert, "--tls-key", key)
        return cls(options, authority.path, tls_context(authority.path))

    @property
    def credentials(self) -> Credentials:
        return Credentials(tls_ca=self.ca_path)

    def channel(self, address: str, options: Sequence[tuple[str, Any]] = ()) -> grpc.aio.Channel:
        if not self.ca_path:
            return grpc.aio.insecure_channel(address, options=options)
        trust = grpc.ssl_channel_credentials(Path(self.ca_path).read_bytes())
        return grpc.aio.secure_channel(address, trust, options=options)

    def http_url(self, port: int, path: str) -> str:
        return f"{'https' if self.ca_path else 'http'}://127.0.0.1:{port}{path}"
