"""The ETag of stores that have none of their own: a hash of the content, as S3's is in practice."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from stratalog.objectstore.protocol import Buffer


def content_etag(parts: Iterable[Buffer]) -> str:
    """Half a SHA-256 in hex, quoted as HTTP quotes ETags. The split into parts does not matter."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return f'"{digest.hexdigest()[:32]}"'
