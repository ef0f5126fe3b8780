"""One read of a cursor within the memory that all fetches share."""

from __future__ import annotations

from stratalog.server.fetch.fetch_cursor import FetchCursor, Found, LocalSource
from stratalog.server.request_memory import LEAST_FETCH_BYTES, MemoryLease


def leased_look(
    lease: MemoryLease,
    cursor: FetchCursor,
    budget_bytes: int,
    *,
    is_first: bool,
    is_owed: bool,
    source: LocalSource = LocalSource.FILES,
) -> Found:
    """Read once, on a thread if the source may block, as much as the memory of all fetches has room for. The
    lease has the bytes of the result.

    Without room, read only what the answer owes to the readers that wait for it.
    """
    wish_bytes = min(budget_bytes, cursor.max_bytes - cursor.size_bytes)
    least_bytes = min(wish_bytes, LEAST_FETCH_BYTES) if is_owed else 0
    granted_bytes = lease.take_up_to(wish_bytes, least_bytes)
    if not granted_bytes:
        return Found(lacks_room=True, lacks_memory=wish_bytes > 0)
    used_bytes = 0
    try:
        found = cursor.look(granted_bytes, is_first=is_first, source=source)
        used_bytes = 0 if found.data is None else found.data.size_bytes
        return found
    finally:
        lease.settle(granted_bytes, used_bytes)
