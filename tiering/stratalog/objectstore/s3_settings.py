"""The settings of an S3 store: its bucket, and how to reach it.

boto3 finds omitted settings where its users expect: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
`AWS_SESSION_TOKEN`, `AWS_PROFILE`, `AWS_DEFAULT_REGION`, `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`,
`AWS_CA_BUNDLE`, the files in `~/.aws`, the role of a container or an instance.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from stratalog.base.errors import InvalidConfigError, InvalidRequestError
from stratalog.objectstore.object_key import check_key

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_QUERY_NAMES: Final = ("endpoint", "region", "addressing", "profile")
_ADDRESSINGS: Final = ("auto", "path", "virtual")


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings:
    """Settings of an S3 object store. Immutable. `repr()` shows no secret."""

    bucket: str
    """Must exist: the store makes no buckets."""
    prefix: str = ""
    """Keys are put below `prefix/`; empty for the whole bucket."""
    endpoint_url: str | None = None
    """`http://host:port` of a store that is not AWS; None for boto3's own choice."""
    region: str | None = None
    addressing: str = "auto"
    """`path` (endpoint/bucket/key), `virtual` (bucket.endpoint/key); `auto`: `path` with an endpoint."""
    profile: str | None = None
    """A section of `~/.aws/config`; None for `AWS_PROFILE` or the default."""
    access_key_id: str | None = field(default=None, repr=False)
    """With `secret_access_key`, replaces boto3's chain, for embedding and tests. Never taken from a URL."""
    secret_access_key: str | None = field(default=None, repr=False)
    connect_timeout_s: float = 10.0
    """Also the time in which a new connection may accept no bytes of a body."""
    first_connect_timeout_s: float = 2.0
    """Replaces `connect_timeout_s` until the store has answered once. Such a connection is not retried, so a
    wrong endpoint is reported at once.
    """
    read_timeout_s: float = 30.0
    """Longest silence of the store while a response or a body is awaited."""
    call_timeout_s: float = 60.0
    """Limit of a whole call, plus a second for each `least_bytes_per_s` that it moves."""
    least_bytes_per_s: int = 256 << 10
    """A slower transfer counts as hanging."""
    max_attempts: int = 4
    """Attempts of a call without a precondition, the first included. A conditional write is sent once."""
    max_connections: int = 32
    """Connections kept open for reuse; at least the number of threads that call at the same time."""

    @classmethod
    def from_url(cls, url: str) -> S3Settings:
        """Parse `s3://bucket/prefix?endpoint=URL&region=NAME&addressing=path|virtual&profile=NAME`.

        Raises InvalidConfigError without the query, which may contain a secret.
        """
        parts = urlsplit(url)
        shown = url.partition("?")[0] if "@" not in parts.netloc else f"{parts.scheme}://…"
        if parts.scheme != "s3" or _BUCKET.fullmatch(parts.netloc) is None or parts.fragment:
            raise InvalidConfigError(
                "this is not the url of a bucket; correct it",
                name="store",
                value=shown,
                allowed="s3://bucket/prefix?endpoint=URL, with a bucket name of 2 to 63 letters, "
                "digits, dots, dashes and underscores",
            )
        query = _query_of(parts, shown)
        return cls(
            bucket=parts.netloc,
            prefix=_prefix_of(parts, shown),
            endpoint_url=query.get("endpoint"),
            region=query.get("region"),
            addressing=query.get("addressing", "auto"),
            profile=query.get("profile"),
        )

    @property
    def root(self) -> str:
        """The beginning of every key in the bucket: empty, or the prefix with its slash."""
        return f"{self.prefix}/" if self.prefix else ""

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


def endpoint_shown(endpoint_url: str | None) -> str:
    """An endpoint without user, password and query, for messages."""
    if endpoint_url is None:
        return "boto3's default"
    parts = urlsplit(endpoint_url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _prefix_of(parts: SplitResult, shown: str) -> str:
    prefix = unquote(parts.path).strip("/")
    try:
        return check_key(prefix) if prefix else ""
    except InvalidRequestError as error:
        raise InvalidConfigError(
            "the path of the store's url is not a valid prefix; correct it",
            name="store",
            value=shown,
            allowed="A-Z a-z 0-9 _ = . - /",
        ) from error


def _query_of(parts: SplitResult, shown: str) -> dict[str, str]:
    values: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in _QUERY_NAMES or name in values or not value:
            raise InvalidConfigError(
                "a name in the query of the store's url is unknown, repeated or empty; correct it",
                name="store",
                value=shown,
                allowed=", ".join(_QUERY_NAMES),
            )
        values[name] = value
    if "endpoint" in values:
        check_endpoint(values["endpoint"])
    if values.get("addressing", "auto") not in _ADDRESSINGS:
        raise InvalidConfigError(
            "there is no such addressing style; choose an allowed one",
            name="addressing",
            value=values["addressing"],
            allowed=", ".join(_ADDRESSINGS),
        )
    return values


def check_endpoint(endpoint: str) -> None:
    """Raise InvalidConfigError unless this is an `http://` or `https://` address."""
    parts = urlsplit(endpoint)
    if (
        parts.scheme not in ("http", "https")
        or not parts.hostname
        or parts.query
        or parts.fragment
        or "@" in parts.netloc
    ):
        raise InvalidConfigError(
            "the store's endpoint is not an address; correct it",
            name="endpoint",
            allowed="http://host:port or https://host:port",
        )


def is_protected(endpoint_url: str) -> bool:
    """Whether a body needs no hash in its signature: with TLS, or if it stays on this machine."""
    parts = urlsplit(endpoint_url)
    if parts.scheme == "https" or parts.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(parts.hostname or "").is_loopback
    except ValueError:
        return False
