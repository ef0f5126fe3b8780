"""The object store, as something that is handed in.

Eight methods, chosen so that S3, a local directory and memory can all keep the same promises
(``stratalog.testing.object_store_contract`` checks them):

* An object appears whole or not at all, and a read that follows a finished write sees it.
* A conditional write is atomic: of two writers with the same precondition at most one succeeds.
* **No method retries a conditional write by itself.** A refusal (`PreconditionFailedError`) and a failure
  (`StoreUnavailableError`) both leave it unknown whether an earlier attempt landed; the metadata protocol
  settles that.
* Keys are `/`-separated, relative to the store's root, in the alphabet of ``object_key``; listings come in
  byte order whatever the store's own order is (SeaweedFS, for one, lists a directory at a time).
* An ETag is opaque and depends on nothing but the content: equal contents may have equal ETags, so whoever
  needs to tell two writes of the same content apart puts something unique into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview

DEFAULT_PART_BYTES = 64 << 20
"""Above this size `put_parts` sends a multipart upload, in parts of this size."""


class ObjectInfo(NamedTuple):
    """An object as a listing shows it. `modified_ms` is the store's own clock at the write."""

    key: str
    size: int
    modified_ms: int


class StoredObject(NamedTuple):
    """A whole object. `date_ms` is the store's own clock at the answer (`Date`), for judging ages."""

    data: bytes
    etag: str
    date_ms: int


class ReadStream(Protocol):
    """The body of one GET, moving forward only. One user at a time."""

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes, fewer only at the range's end and b"" behind it.

        Raises StoreUnavailableError when cut off: what comes back short is never passed off as the end.
        """
        ...

    def close(self) -> None:
        """Let go of the connection or file; harmless when repeated."""
        ...


class ObjectStore(Protocol):
    """Thread-safe.

    Besides what it names, every method raises StoreUnavailableError (retriable), StoreAccessDeniedError or
    StoreNotUsableError (no such bucket), and InvalidRequestError for a key outside the alphabet.
    """

    @property
    def url(self) -> str:
        """Where this is, for people: `s3://bucket/prefix` or `file:///dir`. Never holds secrets."""
        ...

    def put(self, key: str, data: Buffer, *, if_match: str | None = None, if_absent: bool = False) -> str:
        """Store an object in one request; returns its ETag. Without a precondition it may retry by itself.

        Raises PreconditionFailedError where `if_match` is not the current ETag (or nothing is there), or
        where `if_absent` and something is there.
        """
        ...

    def put_parts(self, key: str, parts: Iterable[Buffer], *, part_bytes: int = DEFAULT_PART_BYTES) -> str:
        """Store an object from consecutive parts, without joining them; multipart above `part_bytes`. Each
        part is asked for once, in order, and of an object on its way no more is held than `part_bytes` and
        one part.
        """
        ...

    def get(self, key: str) -> StoredObject:
        """The whole object. Raises ObjectNotFoundError."""
        ...

    def get_if_changed(self, key: str, etag: str) -> StoredObject | None:
        """None where the object still has this ETag (If-None-Match). Raises ObjectNotFoundError."""
        ...

    def get_range(self, key: str, position: int, size: int) -> bytes:
        """Exactly `size` > 0 bytes from `position`, in one GET.

        Raises ObjectNotFoundError, StoreCorruptError where the object ends sooner.
        """
        ...

    def open_range(self, key: str, position: int, size: int) -> ReadStream:
        """A stream over exactly that range, one GET, sent now and resumed never: a cut-off stream raises.

        Raises ObjectNotFoundError, StoreCorruptError where the object ends sooner.
        """
        ...

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """All objects whose key begins with `prefix`, in byte order, behind `start_after` where one is given.

        Lazy: pages are asked for as the iterator moves on, so what is written or deleted meanwhile may show
        or not.
        """
        ...

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects, in bulk requests of at most 1,000; a missing one is no error."""
        ...

    def close(self) -> None:
        """Give back connections. No call may follow."""
        ...
