"""Credentials of a client, and the authorities of its servers: TLS, client certificates and tokens.

A token goes only over TLS, or to this machine: elsewhere every listener between could use it. A token in a
file is read again when the file changes, so a program that runs for years takes a new one over. Files of TLS
are read when a connection to an address is first made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address

import grpc

from stratalog.base.errors import InvalidRequestError

SYSTEM = "system"
"""Stands for the public authorities that gRPC knows."""

VARIABLES: Mapping[str, str] = {
    "tls_ca": "STRATALOG_TLS_CA",
    "tls_cert": "STRATALOG_TLS_CERT",
    "tls_key": "STRATALOG_TLS_KEY",
    "token_file": "STRATALOG_TOKEN_FILE",
}
"""The environment variable of each field but the token itself, which has none: environments are printed."""

_NO_PROXY = (("grpc.enable_http_proxy", 0),)

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The credentials of a client, and the authority of its servers. Immutable; its text has no secret.
    Raises InvalidRequestError for fields that do not fit together."""

    tls_ca: str = ""
    """File with the authorities of the server's certificate, in PEM; `system` for the public ones. Empty: no
    TLS, unless there is a client certificate, and then the public ones."""

    tls_cert: str = ""
    """File with the client's certificate in PEM, and behind it those of the authorities between."""

    tls_key: str = ""
    """File with its key in PEM."""

    token_file: str = ""
    """File with a token. Read again when it changes."""

    token: str = field(default="", repr=False)
    """The token itself, in place of a file."""

    def __post_init__(self) -> None:
        if bool(self.tls_cert) is not bool(self.tls_key):
            raise InvalidRequestError("a client certificate needs its key; give both or neither")
        if self.token and self.token_file:
            raise InvalidRequestError("there is one token; give it, or its file")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Credentials:
        """The credentials that the variables of `VARIABLES` name."""
        return cls(**{name: environment.get(variable, "") for name, variable in VARIABLES.items()})

    @property
    def is_tls(self) -> bool:
        """Whether connections have TLS."""
        return bool(self.tls_ca or self.tls_cert)

    def channel(self, address: str, options: tuple[tuple[str, int], ...]) -> grpc.aio.Channel:
        """A channel to HOST:PORT. Raises InvalidRequestError if a file cannot be read, and for a token that
        would leave this machine in plain text."""
        if self.is_tls:
            return grpc.aio.secure_channel(
                address,
                grpc.ssl_channel_credentials(
                    None if self.tls_ca in ("", SYSTEM) else _content(self.tls_ca),
                    _content(self.tls_key) if self.tls_key else None,
                    _content(self.tls_cert) if self.tls_cert else None,
                ),
                options=options,
            )
        if not (self.token or self.token_file):
            return grpc.aio.insecure_channel(address, options=options)
        if not _is_loopback(address):
            raise InvalidRequestError(
                "the token would go over the network in plain text; give the authority of the server's"
                " certificate, tls_ca",
                server=address,
            )
        # gRPC sends calls to this machine, too, to the proxy that the environment names.
        return grpc.aio.insecure_channel(address, options=(*options, *_NO_PROXY))


class CallHeaders:
    """The headers of each call, with the token as it is now. Belongs to one event loop."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._stamp: tuple[int, int, int] | None = None
        self._headers: Metadata = _headers(credentials.token) if credentials.token else ()

    def now(self) -> Metadata:
        """The headers of a call that begins now. Raises InvalidRequestError if the token cannot be read."""
        path = self._credentials.token_file
        if path:
            try:
                # A look at a small local file, as at the files of certificates.
                state = os.stat(path)
                stamp = state.st_ino, state.st_mtime_ns, state.st_size
                if stamp != self._stamp:
                    self._headers = _headers(_content(path).decode("ascii"))
                    self._stamp = stamp
            except (OSError, UnicodeDecodeError):
                raise InvalidRequestError(
                    "the token cannot be read from its file; correct the name or the file", token_file=path
                ) from None
        return self._headers


def _headers(token: str) -> Metadata:
    """The header of a token. Raises InvalidRequestError for a text that no header can have, without it."""
    text = token.strip()
    if not text.isascii() or not text.isprintable() or " " in text or not text:
        raise InvalidRequestError("the token is not one line of letters and digits; correct it")
    return (("authorization", f"Bearer {text}"),)


def _content(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise InvalidRequestError(
            "the file of the credentials cannot be read; correct its name or its permissions",
            file=path,
            reason=error.strerror or str(error),
        ) from None


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
