"""Digests of the content of an object: the ETag of stores that have none of their own, and the checksum that
proves that a store has the bytes that were sent."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from stratalog.base.errors import StoreCorruptError
from stratalog.objectstore.protocol import Buffer
from stratalog.record.native.kernels import crc32c


def content_etag(parts: Iterable[Buffer]) -> str:
    """Half a SHA-256 in hex, quoted as HTTP quotes ETags. The split into parts does not matter."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return f'"{digest.hexdigest()[:32]}"'


def content_crc(parts: Iterable[Buffer], crc: int = 0) -> int:
    """CRC-32C of the parts in their order, continued from `crc`. The split into parts does not matter."""
    for part in parts:
        crc = crc32c(part, crc)
    return crc


def require_crc(found: int, sent: int, key: str) -> None:
    """Raise StoreCorruptError unless the store's checksum is that of the bytes that were sent."""
    if found != sent:
        raise other_bytes(key, found_crc=f"{found:08x}", sent_crc=f"{sent:08x}")


def other_bytes(key: str, **fields: object) -> StoreCorruptError:
    """The error for a new object whose checksum in the store is not that of the bytes that were sent."""
    return StoreCorruptError(
        "the store has other bytes of a new object than were sent to it, so the object is not used; try"
        " again, and if it comes again, check the network and the store's disks",
        key=key,
        **fields,
    )
