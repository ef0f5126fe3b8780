"""A record: the unit that applications append and read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Record(NamedTuple):
    """An immutable record with its place in the partition."""

    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()

    @property
    def is_tombstone(self) -> bool:
        """The record has no value: under compaction it deletes its key."""
        return self.value is None


class RecordLike(Protocol):
    """The parts of a record that an encoder needs; the encoder chooses the offset."""

    @property
    def timestamp_ms(self) -> int: ...

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...
