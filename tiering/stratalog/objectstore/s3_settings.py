"""The settings of an S3 store: its bucket, and how to reach it.

boto3 finds omitted settings where its users expect: `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`,
`AWS_SESSION_TOKEN`, `AWS_PROFILE`, `AWS_DEFAULT_REGION`, `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`,
`AWS_CA_BUNDLE`, the files in `~/.aws`, the role of a container or an instance.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from stratalog.base.errors import InvalidConfigError, InvalidRequestError
from stratalog.objectstore.object_key import check_key
from stratalog.objectstore.s3_copy import COPY_PART_BYTES

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,62}")
_DIRECTORY_BUCKET: Final = "--x-s3"
ARCHIVE_CLASSES: Final = frozenset({"GLACIER", "DEEP_ARCHIVE"})
"""Storage classes that answer no reads. GLACIER_IR does."""
_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "addressing": ("auto", "path", "virtual"),
    "sse": ("AES256", "aws:kms", "aws:kms:dsse"),
    "sse-bucket-key": ("true", "false"),
    "checksum": ("crc32c", "md5", "none"),
    "request-payer": ("requester",),
    "versions": ("keep", "delete"),
}
_PATTERNS: Final[Mapping[str, tuple[re.Pattern[str], str]]] = {
    "sse-key": (re.compile(r"[A-Za-z0-9:/_-]{1,2048}"), "the id, alias or ARN of a key"),
    "storage-class": (
        re.compile(r"[A-Z][A-Z0-9_]{1,63}"),
        "STANDARD_IA, INTELLIGENT_TIERING, GLACIER_IR or another class without an archive",
    ),
    "bucket-owner": (re.compile(r"[0-9]{12}"), "the 12 digits of an account"),
}
_QUERY_NAMES: Final = ("endpoint", "region", "profile", *_CHOICES, *_PATTERNS)


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
    encryption: str | None = None
    """`AES256`, `aws:kms` or `aws:kms:dsse`, for all objects; None for the bucket's own default."""
    encryption_key_id: str | None = None
    """Id, alias or ARN of a KMS key; None for the account's default key."""
    uses_bucket_key: bool = False
    """One data key of KMS for many objects, which saves most requests to KMS."""
    storage_class: str | None = None
    """Storage class of data objects; metadata is always `STANDARD`. Never an archive, which answers no
    reads."""
    checksum: str = "crc32c"
    """`crc32c`; `md5` or `none` for servers that refuse the newer headers. Object Lock needs one."""
    bucket_owner: str | None = None
    """Account that must own the bucket, else all requests are refused: a name alone could be taken by
    others."""
    requester_pays: bool = False
    """The bucket's requests are paid by the account of the credentials."""
    deletes_versions: bool = False
    """Delete every version of an object, for good. Otherwise a bucket with versioning keeps them."""
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
    copy_part_bytes: int = COPY_PART_BYTES
    """The most that one request copies within the server (default 1 GiB; S3 takes up to 5 GiB)."""
    max_attempts: int = 4
    """Attempts of a call without a precondition, the first included. A conditional write is sent once."""
    max_connections: int = 32
    """Connections kept open for reuse; at least the number of threads that call at the same time."""

    @classmethod
    def from_url(cls, url: str) -> S3Settings:
        """Parse `s3://bucket/prefix?NAME=VALUE&...`; docs/stores.md lists the names.

        Raises InvalidConfigError without the query, which may contain a secret.
        """
        parts = urlsplit(url)
        # A user may stand anywhere before the last @, if the URL is mistyped.
        shown = url.partition("?")[0] if "@" not in url else f"{parts.scheme}://…"
        if parts.scheme != "s3" or _BUCKET.fullmatch(parts.netloc) is None or parts.fragment:
            raise InvalidConfigError(
                "this is not the url of a bucket; correct it",
                name="store",
                value=shown,
                allowed="s3://bucket/prefix?endpoint=URL, with a bucket name of 2 to 63 letters, "
                "digits, dots, dashes and underscores",
            )
        if parts.netloc.endswith(_DIRECTORY_BUCKET):
            raise InvalidConfigError(
                "a directory bucket (S3 Express) cannot hold a store: it keeps objects in one zone only, and"
                " cannot list names behind a given one; use a general purpose bucket",
                name="store",
                value=shown,
            )
        query = _query_of(parts, shown)
        return cls(
            bucket=parts.netloc,
            prefix=_prefix_of(parts, shown),
            endpoint_url=query.get("endpoint"),
            region=query.get("region"),
            addressing=query.get("addressing", "auto"),
            profile=query.get("profile"),
            encryption=query.get("sse"),
            encryption_key_id=query.get("sse-key"),
            uses_bucket_key=query.get("sse-bucket-key") == "true",
            storage_class=query.get("storage-class"),
            checksum=query.get("checksum", "crc32c"),
            bucket_owner=query.get("bucket-owner"),
            requester_pays="request-payer" in query,
            deletes_versions=query.get("versions") == "delete",
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
    for name, value in values.items():
        _check_value(name, value)
    if {"sse-key", "sse-bucket-key"} & values.keys() and not values.get("sse", "").startswith("aws:kms"):
        raise InvalidConfigError(
            "a key of KMS needs sse=aws:kms in the store's url; add it", name="sse", allowed="aws:kms"
        )
    return values


def _check_value(name: str, value: str) -> None:
    """Raise InvalidConfigError if the option of this name does not take the value."""
    choices = _CHOICES.get(name)
    pattern, allowed = _PATTERNS.get(name, (None, ""))
    if choices is not None and value not in choices:
        allowed = ", ".join(choices)
    elif pattern is None or (pattern.fullmatch(value) is not None and value not in ARCHIVE_CLASSES):
        return
    raise InvalidConfigError(
        "an option of the store's url does not take this value; choose an allowed one",
        name=name,
        value=value[:64],
        allowed=allowed,
    )


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
