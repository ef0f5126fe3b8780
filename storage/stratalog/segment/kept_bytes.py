"""The bytes of an append that stay in memory, without a copy until a reader needs them.

An append has its batches in many parts: new prefixes, and the rest as it lies in the requests. Where the
parts are large they are kept as they are, and joined for the first reader that needs them in one piece; so
an append without such a reader costs no copy. Small parts are joined at once, because each costs memory of
its own.

A kept part keeps its whole request. So the requests must be hardly larger than their batches, or a client
could fill the memory with other fields; and their bytes must not change, which only `bytes` promise.
"""

from __future__ import annotations

from collections.abc import Sequence

from stratalog.base.filesystem import Buffer

MIN_PART_BYTES = 16 << 10
"""The mean size from which parts are kept."""

MAX_SURPLUS_PART = 64
"""One in so many of the kept bytes may belong to no batch."""


class KeptBytes:
    """The bytes of some parts, in order. Thread-safe: they are joined once, or by two threads alike."""

    __slots__ = ("_parts", "size_bytes")

    def __init__(self, parts: Sequence[Buffer]) -> None:
        self.size_bytes = sum(map(len, parts))
        stays = self.size_bytes >= MIN_PART_BYTES * len(parts) and _may_stay(parts, self.size_bytes)
        self._parts: Sequence[Buffer] = parts if stays else (b"".join(parts),)

    @property
    def parts(self) -> Sequence[Buffer]:
        """The bytes, in one or many parts."""
        return self._parts

    def joined(self) -> bytes:
        """The bytes in one piece."""
        parts = self._parts
        if len(parts) == 1 and isinstance(parts[0], bytes):
            return parts[0]
        data = b"".join(parts)
        self._parts = (data,)
        return data


def _may_stay(parts: Sequence[Buffer], size_bytes: int) -> bool:
    """Whether these parts, which are large, may be kept as they are."""
    owners: dict[int, bytes] = {}
    for part in parts:
        owner = part.obj if isinstance(part, memoryview) else part
        if not isinstance(owner, bytes):
            return False
        owners[id(owner)] = owner
    return sum(map(len, owners.values())) <= size_bytes + size_bytes // MAX_SURPLUS_PART
