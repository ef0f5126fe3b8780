"""The object store, as something that is handed in.

Eight methods, chosen so that S3, a local directory and memory can all keep the same promises
(``stratalog.testing.object_store_contract`` checks them):

* An object appears whole or not at all, and a read that follows a finished write sees it.
* A conditional write is atomic: of two writers with the same precondition at most one succeeds.
* **No method retries a conditional write by itself.** A refusal (`PreconditionFailedError`) and a failure
  (`StoreUnavailableError`) both leave it unknown whether an earlier attempt landed; the metadata protocol settles that.
* Keys are `/`-separated, relative to the store's root; listings come in an order of the store's own choosing inside a
  page, so callers sort (SeaweedFS does not list in byte order).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview


class ObjectInfo(NamedTuple):
    """An object as a listing or HEAD shows it."""

    key: str
    size: int
    etag: str


class StoredObject(NamedTuple):
    """A whole object. `date_ms` is the store's own clock at the answer (`Date`), for judging ages."""

    data: bytes
    etag: str
    date_ms: int


class ReadStream(Protocol):
    """The body of one GET, moving forward only. One user at a time."""

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end, where it returns b"". Raises StoreUnavailableError when cut off."""
        ...

    def close(self) -> None: ...


class ObjectStore(Protocol):
    """Thread-safe. Every method raises StoreUnavailableError (retriable), StoreAccessDeniedError or StoreNotUsableError
    (no such bucket) besides what it names."""

    @property
    def url(self) -> str:
        """Where this is, for people: `s3://bucket/prefix` or `file:///dir`. Never holds secrets."""
        ...

    def put(self, key: str, data: Buffer, *, if_match: str | None = None, if_absent: bool = False) -> str:
        """Store an object in one request; returns its ETag. Without a precondition it may retry by itself.

        Raises PreconditionFailedError where `if_match` is not the current ETag (or nothing is there), or where
        `if_absent` and something is there.
        """
        ...

    def put_parts(self, key: str, parts: Sequence[Buffer], *, part_bytes: int = 64 << 20) -> str:
        """Store a large object from consecutive parts (multipart above `part_bytes`), without copying them together."""
        ...

    def get(self, key: str) -> StoredObject:
        """The whole object. Raises ObjectNotFoundError."""
        ...

    def get_if_changed(self, key: str, etag: str) -> StoredObject | None:
        """None where the object still has this ETag (If-None-Match). Raises ObjectNotFoundError."""
        ...

    def get_range(self, key: str, position: int, size: int) -> bytes:
        """Exactly `size` bytes from `position`, in one GET. Raises ObjectNotFoundError, StoreCorruptError where shorter."""
        ...

    def open_range(self, key: str, position: int, size: int) -> ReadStream:
        """A stream over exactly that range, one GET, resumed never: a cut-off stream raises. Raises ObjectNotFoundError."""
        ...

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """All objects whose key begins with `prefix`, behind `start_after` in byte order where one is given."""
        ...

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects, in bulk requests of at most 1,000; a missing one is no error."""
        ...

    def close(self) -> None: ...
