"""GETs of ranges that repeat one of boto3's, because boto3 takes most of the time that a small GET costs.

It finds the endpoint, checks the parameters and reads all headers of the response anew for each request: more
than a millisecond of processor time. But the GETs of a store differ in name, range, time and signature only.
So the first one that boto3 has sent with success is the pattern of those that follow: they have its URL and
its headers, are signed by botocore, and go through the client's own connections.

A GET that has no good response is boto3's to send again: there it has its attempts, and its error. The
pattern is forgotten with it, so a store that fails sees one request more, not one more for each GET.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final, NamedTuple, cast

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSPreparedRequest, AWSRequest, AWSResponse
from botocore.credentials import Credentials
from botocore.exceptions import BotoCoreError
from urllib3.exceptions import HTTPError

_SCOPE: Final = re.compile(
    r"AWS4-HMAC-SHA256 Credential=[^,]*/[0-9]{8}/(?P<region>[^/,]+)/(?P<service>s3)/aws4_request,.*"
)
"""The only signature that is repeated: not the one of many regions, nor that of S3 Express."""
_OWN_HEADERS: Final = frozenset(
    {
        "authorization",
        "range",
        "x-amz-content-sha256",
        "x-amz-date",
        "x-amz-security-token",
        "amz-sdk-invocation-id",
        "amz-sdk-request",
    }
)
"""Those that belong to one request, or that its signature brings."""
_PARTIAL_CONTENT: Final = 206


class _Pattern(NamedTuple):
    """The common parts of all GETs of ranges. Immutable."""

    url_root: str
    """The URL up to the object's name."""
    headers: Mapping[str, str]
    region: str
    service: str


class S3RangeGets:
    """Sends GETs of ranges after a pattern. Thread-safe: the pattern is replaced as a whole, and the client
    is thread-safe."""

    def __init__(self, client: Any, credentials: Credentials) -> None:
        """`client` is one of boto3, whose connections are used."""
        self._connections = client._endpoint.http_session
        self._credentials = credentials
        self._pattern: _Pattern | None = None

    def learn(self, request: AWSPreparedRequest, name: str) -> None:
        """Take a GET of a range of the object with this name, which boto3 has sent with success, as the
        pattern. One that cannot be repeated is ignored."""
        if self._pattern is not None:
            return
        headers = {key: _text(value) for key, value in request.headers.items()}
        scope = _SCOPE.fullmatch(headers.get("Authorization", ""))
        if scope is None or not request.url.endswith(f"/{name}"):
            return
        common = {key: value for key, value in headers.items() if key.lower() not in _OWN_HEADERS}
        url_root = request.url.removesuffix(name)
        self._pattern = _Pattern(url_root, common, scope["region"], scope["service"])

    def open(
        self, name: str, position: int, size: int, check: Callable[[AWSPreparedRequest], None]
    ) -> Any | None:
        """The raw body of exactly `size` bytes from `position` on; None if boto3 has to send the GET.

        `check` is called before the request goes out, and may raise what ends the call.
        """
        pattern = self._pattern
        if pattern is None:
            return None
        last = position + size - 1
        request = _signed(pattern, self._credentials, name, f"bytes={position}-{last}")
        check(request)
        response: AWSResponse | None = None
        with suppress(BotoCoreError, HTTPError, OSError):
            response = self._connections.send(request)
        if response is not None:
            if _has_range(response, position, last):
                return response.raw
            response.raw.close()
        self._pattern = None
        return None


def _signed(pattern: _Pattern, credentials: Credentials, name: str, sent_range: str) -> AWSPreparedRequest:
    request = AWSRequest(
        method="GET",
        url=pattern.url_root + name,
        headers={**pattern.headers, "Range": sent_range},
        stream_output=True,
    )
    # Credentials that expire are renewed here, as boto3 does.
    frozen = credentials.get_frozen_credentials()
    S3SigV4Auth(cast("Credentials", frozen), pattern.service, pattern.region).add_auth(request)
    return request.prepare()


def _has_range(response: AWSResponse, first: int, last: int) -> bool:
    """Whether the response has the bytes that were asked for, and no others."""
    headers = response.headers
    return (
        response.status_code == _PARTIAL_CONTENT
        and _text(headers.get("Content-Range", "")).startswith(f"bytes {first}-{last}/")
        and _text(headers.get("Content-Length", "")) == str(last - first + 1)
        and "Content-Encoding" not in headers
    )


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value
