"""The face of a client of the contract, for tests that each client passes, and the values that it takes and
returns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

Headers = tuple[tuple[str, bytes | None], ...]


class Stored(NamedTuple):
    """A record that was read."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Sent(NamedTuple):
    """A record to send."""

    key: bytes | None
    value: bytes | None
    headers: Headers = ()
    timestamp_ms: int | None = None
    """Milliseconds since 1970 UTC; None: the present time."""


class Place(NamedTuple):
    """The place of a record that was stored."""

    partition: int
    offset: int


class Numbered(NamedTuple):
    """The place of an append in the sequence of an idempotent producer of epoch 0."""

    producer_id: int
    base_sequence: int


class Appended(NamedTuple):
    """An append that was acknowledged."""

    base_offset: int
    duplicate: bool = False


class AtTime(NamedTuple):
    """The first record of this time or later."""

    timestamp_ms: int


class AtTail(NamedTuple):
    """So many offsets before the end."""

    offset_count: int


At = int | str | AtTime | AtTail
"""A position: an offset, or EARLIEST or LATEST, or one of the classes."""

EARLIEST, LATEST = "earliest", "latest"


class Explained(NamedTuple):
    """Retention of one partition, now."""

    log_start_offset: int
    new_log_start_offset: int
    expired: tuple[tuple[str, int, int], ...]
    """Rules, with the offsets from the first to the end (exclusive) that go by them."""


class Work(NamedTuple):
    """A retention that has ended."""

    states: tuple[str, ...]
    """Those of the operation, from its start to its end."""
    log_starts: Mapping[int, tuple[int, int]]
    """The log starts of each shortened partition, before and after."""


class RefusedError(Exception):
    """The server refused."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class WireClient(Protocol):
    """A client of a server. Every method raises RefusedError. Belongs to one event loop."""

    async def close(self) -> None: ...

    async def create(self, topic: str, partition_count: int, config: Mapping[str, str] | None = None) -> str:
        """Create a topic, and return its id."""
        ...

    async def delete(self, topic: str, topic_id: str = "") -> None: ...

    async def topics(self) -> list[str]:
        """The names of all topics."""
        ...

    async def send(self, topic: str, records: Sequence[Sent]) -> list[Place]:
        """Append by key, each record once, and return the places in order."""
        ...

    async def stream(self, topic: str, records: Sequence[tuple[int, Sent]]) -> list[int | str]:
        """Append to partitions over one stream, each record by itself. Returns the offset of each record, or
        the reason of its refusal; records behind a refused one are sent again.
        """
        ...

    async def append(
        self,
        topic: str,
        partition: int,
        records: Sequence[Sent],
        *,
        topic_id: str = "",
        expected_offset: int | None = None,
        fencing_token: str | None = None,
        numbered: Numbered | None = None,
    ) -> Appended:
        """Append as one batch."""
        ...

    async def producer_id(self) -> int: ...

    async def fence(self, topic: str, partition: int, token: str, current_token: str | None = None) -> int:
        """Set the fencing token, and return the end of the log."""
        ...

    async def read(self, topic: str, *, start: At = EARLIEST, topic_id: str = "") -> dict[int, list[Stored]]:
        """The records of each partition up to its end."""
        ...

    async def follow(self, topic: str, count: int) -> list[Stored]:
        """The first `count` records of partition 0, of which some may come later."""
        ...

    async def offsets(self, topic: str, at: At) -> dict[int, int]:
        """The offset of the place in each partition; -1 if there is no such record."""
        ...

    async def delete_records(
        self, topic: str, before: Mapping[int, At], topic_id: str = ""
    ) -> dict[int, int]:
        """Delete the records before these places, and return the log starts."""
        ...

    async def explain_retention(self, topic: str) -> dict[int, Explained]: ...

    async def run_retention(self, topic: str) -> Work:
        """Start the work, watch it, and return its result."""
        ...

    async def cancel(self, operation_id: str) -> None: ...
