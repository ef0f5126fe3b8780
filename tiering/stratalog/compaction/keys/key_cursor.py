"""A cursor over one sorted key stream of a slice: a window that moves from block to block."""

from __future__ import annotations

from collections.abc import Iterator

from stratalog.record.native.key_entries import HashPair, KeyWindow
from stratalog.remote.objects.key_stream import KeyBlock


class KeyCursor:
    """A cursor over one sorted key stream of a slice. Not thread-safe: guarded by the job.

    `survivors` is the bitmap of the slice; the parts of a slice that was hashed in parts share it.
    """

    def __init__(self, blocks: Iterator[KeyBlock], survivors: bytearray) -> None:
        self.survivors = survivors
        self.consumed_count = 0
        """Entries so far."""
        self._blocks = blocks
        self._block = next(blocks, None)
        # One block ahead, to know whether this window is the last; its end also proves the stream's checksum.
        self._next_block = None if self._block is None else next(blocks, None)
        self._start = 0

    @property
    def is_at_end(self) -> bool:
        return self._block is None

    @property
    def window(self) -> KeyWindow:
        """The rest of the current block. Not at the end."""
        block = self._block
        assert block is not None
        assert self._start < block.entry_count
        return KeyWindow(
            hash_high=block.hash_high,
            hash_low=block.hash_low,
            ordinal=block.ordinal,
            tombstone=block.tombstone,
            start=self._start,
            count=block.entry_count - self._start,
            version=block.version,
        )

    @property
    def bound(self) -> HashPair | None:
        """The window has all entries up to this hash; None if it has all that are left."""
        if self._next_block is None:
            return None
        assert self._block is not None
        return self._block.last_hash

    def consume(self, count: int) -> None:
        block = self._block
        assert block is not None
        assert 0 <= count <= block.entry_count - self._start
        self._start += count
        self.consumed_count += count
        if self._start == block.entry_count:
            self._block = self._next_block
            self._next_block = None if self._block is None else next(self._blocks, None)
            self._start = 0
