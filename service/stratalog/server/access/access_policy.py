"""The principals that a server knows, and how their credentials are found out.

A call has a bearer token in its header `authorization`, or comes over a connection with a client certificate.
A token counts more than a certificate, and a wrong token is refused also where the certificate is right.

The id of a token finds its digest, and digests are compared in constant time, also for an unknown id. So the
time of a refusal says nothing about a secret.

A token comes with each call. `SeenTokens` keeps the headers whose tokens a policy knows, so that each is
hashed once; the same text needs a comparison, in constant time, too.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from stratalog.base.errors import AuthenticationFailedError
from stratalog.server.access.permissions import Permissions
from stratalog.server.access.tokens import ID_LENGTH, PREFIX, TokenDigest, digest_of

_SCHEME = "bearer "
_ID_BEGIN = len(_SCHEME) + len(PREFIX) + 1
_ID_END = _ID_BEGIN + ID_LENGTH
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
    open_calls: int | None = None
    """Calls that are open at once, streams and single calls together, over all its connections."""

    @property
    def is_set(self) -> bool:
        return self != _NO_QUOTA


_NO_QUOTA = Quota()


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


class Caller(NamedTuple):
    """The credentials of a call, and whose they are."""

    credentials: Credentials
    principal: Principal


class SeenTokens:
    """The callers whose tokens a policy knows, by the header that they send. Not thread-safe: guarded by its
    user.

    A header is in memory once a call with it was let in, at most one for each token of the policy. It is
    found by the id in it, which is no secret. Another policy needs another memory."""

    def __init__(self, policy: AccessPolicy) -> None:
        self.policy = policy
        self._callers: dict[str, tuple[str, Caller]] = {}

    def find(self, authorization: str | None) -> Caller | None:
        """The caller that sends this header; None for one that was not let in yet."""
        if authorization is None:
            return None
        # Where the id is in a header as most clients send it. Others are hashed each time.
        header, caller = self._callers.get(authorization[_ID_BEGIN:_ID_END], ("", None))
        is_same = authorization.isascii() and hmac.compare_digest(header, authorization)
        return caller if is_same else None

    def caller(self, authorization: str | None, certificate_names: tuple[str, ...] = ()) -> Caller:
        """The caller with these credentials. Raises AuthenticationFailedError."""
        found = self.find(authorization)
        if found is not None:
            return found
        credentials = credentials_of(authorization, certificate_names)
        caller = Caller(credentials, self.policy.principal(credentials))
        if authorization is not None and credentials.token is not None and authorization.isascii():
            self._callers[credentials.token.token_id] = (authorization, caller)
        return caller


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
