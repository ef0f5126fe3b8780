"""The protocol of object stores.

A few methods, chosen so that S3, a local directory and memory can keep the same promises
(``stratalog.testing.object_store_contract`` checks them):

* An object appears whole or not at all. A read that follows a finished write returns it.
* A conditional write is atomic: of two writers with the same precondition at most one succeeds.
* **No method retries a conditional write.** After a refusal (`PreconditionFailedError`) and after a failure
  (`StoreUnavailableError`) an earlier attempt may or may not have landed; the metadata protocol settles that.
* Keys are `/`-separated, relative to the store's root, in the alphabet of ``object_key``. Listings are in
  byte order whatever the store's own order is (SeaweedFS, for one, lists directory by directory).
* An ETag is opaque and depends only on the content: equal contents may have equal ETags. To tell two writes
  of the same content apart, put something unique into it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

Buffer = bytes | bytearray | memoryview

DEFAULT_PART_BYTES = 64 << 20
"""Above this size `put_parts` sends a multipart upload, in parts of this size."""
LEAST_PART_BYTES = 5 << 20
"""Stores take no smaller part but the last of an object."""
MAX_PART_COUNT = 10_000
"""Stores take no more parts of an object."""


class ObjectInfo(NamedTuple):
    """An object in a listing. `modified_ms` is the time of the write, by the store's clock."""

    key: str
    size: int
    modified_ms: int
    is_archived: bool = False
    """Whether it is in a class that answers no reads, as far as the listing says. It may have been restored
    for some days, so that it can be read, and archive tiers within a class do not show."""


class UnfinishedUpload(NamedTuple):
    """A multipart upload that was begun and neither completed nor aborted. Its parts cost money."""

    key: str
    upload_id: str
    begun_ms: int
    """The time of its beginning, by the store's clock."""


class ObjectPlace(NamedTuple):
    """The place of an object as its server knows it, for a copy within that server. Immutable."""

    server: str
    """The endpoint; only stores with the same one copy from each other."""
    bucket: str
    name: str
    bucket_owner: str | None = None
    """Account that must own the bucket; None for any."""


class StoredObject(NamedTuple):
    """A whole object. `date_ms` is the time of the response (`Date`), by the store's clock, for ages."""

    data: bytes
    etag: str
    date_ms: int


class ReadStream(Protocol):
    """The body of one GET, moving forward only. One user at a time."""

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes; fewer only at the end of the range, b"" behind it.

        Raises StoreUnavailableError if the stream is cut off before the end of the range.
        """
        ...

    def etag(self) -> str:
        """The ETag of the object that the stream reads; empty if the store tells none. It may cost a read of
        the whole object, so ask only when it is needed, before `close`."""
        ...

    def close(self) -> None:
        """Release the connection or file. May be called repeatedly."""
        ...


class ObjectUpload(Protocol):
    """A data object on its way in parts, which appears when it is complete. One user at a time; `complete` or
    `abort` ends it."""

    def put_part(self, number: int, data: Sequence[Buffer]) -> None:
        """Send part `number`, in order from 1. All but the last have one size, of `LEAST_PART_BYTES` or more.

        After StoreUnavailableError the same bytes may be sent again under the same number.
        """
        ...

    def complete(self, crc: int) -> None:
        """Let the object appear. `crc` is the CRC-32C of all its bytes. After StoreUnavailableError it may be
        called again: whether an earlier call has had its effect makes no difference.

        Raises StoreCorruptError if the store has other bytes, as far as it tells: do not use the object then.
        """
        ...

    def abort(self) -> None:
        """Discard the parts. After `complete` this changes nothing. After an error they stay in the store as
        an `UnfinishedUpload`."""
        ...


class ObjectStore(Protocol):
    """A bucket: objects by key, with conditional writes. Thread-safe.

    Besides the errors that it names, every method raises StoreUnavailableError (retriable),
    StoreAccessDeniedError, StoreNotUsableError (no such bucket), and InvalidRequestError for a key outside
    the alphabet.
    """

    @property
    def url(self) -> str:
        """The URL for people: `s3://bucket/prefix` or `file:///dir`. Contains no secrets."""
        ...

    def put(self, key: str, data: Buffer, *, if_match: str | None = None, if_absent: bool = False) -> str:
        """Store an object in one request; returns its ETag. Writes without a precondition may be retried.

        Raises PreconditionFailedError if `if_match` is not the current ETag (or there is no object), or
        where `if_absent` and there is an object.
        """
        ...

    def put_parts(self, key: str, parts: Iterable[Buffer], *, part_bytes: int = DEFAULT_PART_BYTES) -> None:
        """Store a data object from consecutive parts, without joining them; multipart above `part_bytes`.
        Only these objects get the storage class that a store is configured for.

        There is no condition, and so no ETag is returned: a data object is written once, under a fresh name.
        Each part is taken once, in order. Memory holds at most `part_bytes` and one part.
        """
        ...

    def open_upload(self, key: str) -> ObjectUpload:
        """Begin to store a data object that is not there yet, part by part: a multipart upload.

        For objects that are sent while they are made. A small one is cheaper with `put_parts`.
        """
        ...

    def place_of(self, key: str) -> ObjectPlace | None:
        """The place of an object of this key, whether it is there or not; None where objects cannot be copied
        within the server. Sends no request."""
        ...

    def copy(self, source: ObjectPlace, key: str, size_bytes: int) -> bool:
        """Store a data object as a copy of another one of that size, made by the server: its bytes do not
        come through this machine.

        False if the server, or the credentials, cannot copy from there: then nothing is written. Raises
        ObjectNotFoundError if the source is not there.
        """
        ...

    def get(self, key: str) -> StoredObject:
        """The whole object. Raises ObjectNotFoundError."""
        ...

    def get_if_changed(self, key: str, etag: str) -> StoredObject | None:
        """The object; None if it still has this ETag (If-None-Match). Raises ObjectNotFoundError."""
        ...

    def get_range(self, key: str, position: int, size: int) -> bytes:
        """Exactly `size` > 0 bytes from `position`, in one GET.

        Raises ObjectNotFoundError, StoreCorruptError if the object ends sooner.
        """
        ...

    def open_range(self, key: str, position: int, size: int, *, if_match: str | None = None) -> ReadStream:
        """A stream over exactly that range: one GET, sent now, never resumed.

        Raises ObjectNotFoundError, StoreCorruptError if the object ends sooner, PreconditionFailedError if
        `if_match` is not its ETag.
        """
        ...

    def list(self, prefix: str, *, start_after: str = "") -> Iterator[ObjectInfo]:
        """All objects with keys that begin with `prefix` and sort behind `start_after`, in byte order.

        Lazy: pages are fetched on demand, so concurrent writes and deletions may be visible or not.
        """
        ...

    def delete_many(self, keys: Sequence[str]) -> None:
        """Delete objects, in bulk requests of at most 1,000. A missing object is no error.

        Raises DeletionRefusedError with the keys that the store keeps, once all others are deleted.
        """
        ...

    def list_uploads(self, prefix: str) -> Iterator[UnfinishedUpload]:
        """The unfinished multipart uploads of keys that begin with `prefix`, page by page.

        A store that knows no multipart uploads has none. Raises StoreNotUsableError if the server cannot
        list them, StoreAccessDeniedError if the credentials may not.
        """
        ...

    def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Discard an unfinished multipart upload and its parts. One that is over is no error."""
        ...

    def remarks(self) -> Sequence[str]:
        """Sentences for the operator about a store that keeps deleted data; empty if it is not known to.
        Raises no StoreError."""
        ...

    def close(self) -> None:
        """Release connections. No call may follow."""
        ...
