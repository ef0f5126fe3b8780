"""The principals that a server knows, and how their credentials are found out.

A call has a bearer token in its header `authorization`, or comes over a connection with a client certificate.
A token counts more than a certificate, and a wrong token is refused also where the certificate is right.

The id of a token finds its digest, and digests are compared in constant time, also for an unknown id. So the
time of a refusal says nothing about a secret.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stratalog.base.errors import AuthenticationFailedError
from stratalog.server.access.permissions import Permissions
from stratalog.server.access.tokens import TokenDigest, digest_of

_SCHEME = "bearer "
_NO_DIGEST = bytes(32)


class Quota(NamedTuple):
    """The most that a principal may do in a second, and have open at once; None: no limit."""

    bytes_in_per_s: int | None = None
    """Bytes of its requests."""
    bytes_out_per_s: int | None = None
    """Bytes of its answers."""
    requests_per_s: int | None = None
    """Calls, and requests in streams."""
    open_streams: int | None = None
    """Streams that are open at once, over all its connections."""

    @property
    def is_set(self) -> bool:
        return any(limit is not None for limit in self)


class Principal(NamedTuple):
    """A user of the server: a program or a person."""

    name: str
    permissions: Permissions
    quota: Quota = Quota()


class Credentials(NamedTuple):
    """The credentials of a call. They hold no secret: a digest in place of the token."""

    token: TokenDigest | None
    certificate_names: tuple[str, ...] = ()
    """The names in the client's certificate that the connection has proved, the most telling first."""


class AccessPolicy:
    """The principals by their credentials. Immutable."""

    def __init__(
        self,
        principals: Iterable[Principal],
        tokens: Mapping[str, tuple[bytes, str]],
        certificates: Mapping[str, str],
    ) -> None:
        """`tokens` has the digest and the principal's name by the id of the token, `certificates` the
        principal's name by a name in its certificate."""
        self._principals = {one.name: one for one in principals}
        self._tokens = dict(tokens)
        self._certificates = dict(certificates)

    @property
    def principals(self) -> tuple[Principal, ...]:
        return tuple(self._principals.values())

    def principal(self, credentials: Credentials) -> Principal:
        """The principal of the credentials. Raises AuthenticationFailedError."""
        token = credentials.token
        if token is not None:
            digest, name = self._tokens.get(token.token_id, (_NO_DIGEST, ""))
            if hmac.compare_digest(digest, token.digest) and name:
                return self._principals[name]
            raise AuthenticationFailedError(
                "the server does not know this token; use one whose digest is in its access file",
                token_id=token.token_id,
            )
        for certificate_name in credentials.certificate_names:
            if certificate_name in self._certificates:
                return self._principals[self._certificates[certificate_name]]
        if credentials.certificate_names:
            raise AuthenticationFailedError(
                "no principal of the server's access file has a name of this client certificate; add it"
                " there, or use a token",
                certificate=credentials.certificate_names[0],
            )
        raise AuthenticationFailedError(
            "the call has no credentials; send a token as the header authorization: Bearer TOKEN, or connect"
            " with a client certificate"
        )


def credentials_of(authorization: str | None, certificate_names: tuple[str, ...] = ()) -> Credentials:
    """The credentials of a call with this header. Raises AuthenticationFailedError for a header that has no
    token."""
    if authorization is None:
        return Credentials(None, certificate_names)
    is_bearer = authorization[: len(_SCHEME)].lower() == _SCHEME
    token = digest_of(authorization[len(_SCHEME) :].strip()) if is_bearer else None
    if token is None:
        # The text is not repeated: it may be a secret in the wrong place.
        raise AuthenticationFailedError(
            "the header authorization has no token; send `Bearer` and a token of `stratalog server token"
            " create`"
        )
    return Credentials(token, certificate_names)
