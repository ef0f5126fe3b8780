"""Opens the object store that a URL names."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import unquote, urlsplit

from stratalog.base.clock import Clock, SystemClock
from stratalog.base.errors import InvalidConfigError
from stratalog.base.filesystem import FileSystem
from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.randomness import IdGenerator, SystemIdGenerator
from stratalog.objectstore.local import LocalObjectStore
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.objectstore.s3_settings import S3Settings

_ALLOWED = "file:///directory, s3://bucket/prefix or memory://"


def open_store(
    url: str,
    *,
    filesystem: FileSystem | None = None,
    clock: Clock | None = None,
    ids: IdGenerator | None = None,
    on_request: Callable[[str, str], None] | None = None,
) -> ObjectStore:
    """The store that `url` names, without contacting it. Seams default to the operating system's.

    `file:///directory` is made when first written to. `s3://bucket/prefix` takes `?endpoint=`, `&region=`,
    `&addressing=` and `&profile=`, see `S3Settings`; `on_request` sees its requests. Each `memory://` is a
    new store. Raises InvalidConfigError for a URL that names no store, StoreAccessDeniedError for a profile
    that does not exist.
    """
    clock = clock or SystemClock()
    parts = urlsplit(url)
    if parts.scheme == "s3":
        # Importing boto3 takes 0.2 s and 25 MB, which other stores do not need.
        from stratalog.objectstore.s3 import S3ObjectStore

        return S3ObjectStore(clock, S3Settings.from_url(url), on_request)
    if parts.query or parts.fragment:
        raise InvalidConfigError(
            "this kind of store takes no query in its url; remove it",
            name="store",
            value=_shown(url),
            allowed=_ALLOWED,
        )
    directory = store_directory(url)
    if directory is not None:
        return LocalObjectStore(filesystem or PosixFileSystem(), clock, ids or SystemIdGenerator(), directory)
    if url == "memory://":
        return MemoryObjectStore(clock)
    raise InvalidConfigError(
        "this is not the url of an object store; correct it",
        name="store",
        value=_shown(url)[:200],
        allowed=_ALLOWED,
    )


def _shown(url: str) -> str:
    """The URL without what may be a secret: user, password and query."""
    before, _, behind = url.rpartition("@")
    scheme, is_url, _ = before.partition("://")
    return f"{scheme if is_url else ''}{is_url}{behind.partition('?')[0]}"


def store_directory(url: str) -> str | None:
    """The local directory that `url` names; None for other kinds of stores."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    is_local = parts.scheme == "file" and parts.netloc in ("", "localhost") and path.rstrip("/") != ""
    return path if is_local else None
