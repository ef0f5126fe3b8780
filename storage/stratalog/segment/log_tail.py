"""The newest batches of a log in memory, as they lie in its files.

What was just appended is read at once, by readers that wait for it and by an upload. It was proved before it
was written, and these bytes have not left the process since. So they need no read of the file, and no second
proof. A reader that wants a part of them copies all of them once, see `KeptBytes`.

A tail is one piece of the log: each block continues the one before it, from the oldest block to the log's
last append. An append that is not kept, or any other change of the files, empties it. So the first batch of
the tail that ends at or above an offset is the log's first such batch, if the tail begins at or below the
offset. A tail knows nothing of watermarks: its user passes the end of what a reader may see.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import attrgetter
from typing import NamedTuple

from stratalog.base.filesystem import Buffer
from stratalog.record.native.batch_row import AppendedBatch
from stratalog.segment.kept_bytes import KeptBytes
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.split_batch import SplitBatch
from stratalog.segment.tail_memory import TailMemory

MAX_BLOCKS_PER_READ = 32
"""Where a read meets more blocks, they are small, and one read of the file takes less time."""

_BLOCK_BYTES, _BATCH_BYTES = 512, 16
"""The memory of a block and of each of its batches, beside the bytes of the batches."""


class TailBlock(NamedTuple):
    """The batches of one append. Immutable, but that its bytes are joined when they are first read."""

    segment: LogSegment
    position: int
    """Where they lie in the segment's file."""
    kept: KeptBytes
    base_offset: int
    last_offset: int
    ends: array[int]
    """The end of each batch in the bytes."""
    last_offsets: array[int]
    """The last offset of each batch."""

    @property
    def memory_bytes(self) -> int:
        return self.kept.size_bytes + _BLOCK_BYTES + _BATCH_BYTES * len(self.ends)

    def pieces(self, begin: int, end: int) -> Sequence[Buffer]:
        """Those of the bytes. A view holds the whole block as long as a reader holds it, so a small part is a
        copy: readers hold at most twice the bytes that they have read."""
        if len(self.ends) == 1:
            parts = self.kept.parts
            if SplitBatch.of(parts) is not None:
                return parts
        view = memoryview(self.kept.joined())[begin:end]
        return (view if 2 * len(view) >= self.kept.size_bytes else bytes(view),)


class TailRead(NamedTuple):
    """Whole batches, and the offset after the last one; without batches the offset of the call."""

    chunks: tuple[Buffer, ...]
    """Whole batches; each is in one chunk or in two, see `FetchData`."""
    next_offset: int
    lacks_room: bool = False
    """The reader wants the batch behind the last one, too, and that was too large for the rest of the room.
    False if that is not known."""


_last_offset = attrgetter("last_offset")


class LogTail:
    """The newest batches of one log. Thread-safe: the lock of its `TailMemory` guards the blocks. Changes
    come from the holder of UnifiedLog.lock, and from the memory, which takes the oldest blocks."""

    def __init__(self, memory: TailMemory) -> None:
        self._memory = memory
        self._blocks: list[TailBlock | None] = []
        """From `_first` on; None before it."""
        self._first = 0

    def admits(self, size_bytes: int, batch_count: int) -> bool:
        """Whether so many batches of that size together are kept."""
        return self._memory.admits(size_bytes + _BLOCK_BYTES + _BATCH_BYTES * batch_count)

    def add(
        self, segment: LogSegment, position: int, kept: KeptBytes, batches: Sequence[AppendedBatch]
    ) -> None:
        """Keep batches that it admits. They were written to that position of the segment, behind all others
        of the log."""
        sizes_bytes, base_offsets, last_offsets, *_ = zip(*batches, strict=True)
        block = TailBlock(
            segment=segment,
            position=position,
            kept=kept,
            base_offset=base_offsets[0],
            last_offset=last_offsets[-1],
            ends=array("q", accumulate(sizes_bytes)),
            last_offsets=array("q", last_offsets),
        )
        assert block.ends[-1] == kept.size_bytes, "the bytes are those of the batches"
        with self._memory.lock:
            assert not self._is_behind(block), "a tail is one piece"
            self._blocks.append(block)
            self._memory.take(self, block.memory_bytes)

    def clear(self) -> None:
        """Keep nothing of what is here by now."""
        if not self._blocks:
            # Only the caller adds some.
            return
        with self._memory.lock:
            if self._first < len(self._blocks):
                self._memory.forget(self)
            self._blocks, self._first = [], 0

    def clear_below(self, offset: int) -> None:
        """Keep nothing if the tail begins below `offset`, where the log begins now."""
        with self._memory.lock:
            first = self._blocks[self._first] if self._first < len(self._blocks) else None
        if first is not None and first.base_offset < offset:
            self.clear()

    def drop_oldest(self) -> int:
        """Drop the oldest block, and return its memory. The memory's lock is held."""
        block = self._blocks[self._first]
        assert block is not None
        self._blocks[self._first] = None
        self._first += 1
        if self._first * 2 > len(self._blocks):
            del self._blocks[: self._first]
            self._first = 0
        return block.memory_bytes

    def read(self, offset: int, max_bytes: int, end_offset: int, *, min_one: bool) -> TailRead | None:
        """Read whole batches from the first one that ends at or above `offset`, as long as they end below
        `end_offset`: at most `max_bytes`, but with `min_one` a larger first batch.

        None if the tail does not have them, or has them in many small blocks.
        """
        with self._memory.lock:
            blocks = self._since(offset)
        chunks: list[Buffer] = []
        next_offset = offset
        lacks_room = False
        for block in blocks[:MAX_BLOCKS_PER_READ]:
            first = bisect_left(block.last_offsets, next_offset)
            begin = block.ends[first - 1] if first else 0
            visible = bisect_left(block.last_offsets, end_offset)
            stop = min(visible, bisect_right(block.ends, begin + max_bytes))
            if stop <= first:
                if chunks:
                    lacks_room = first < visible
                    break
                if first >= visible:
                    return None
                if not min_one:
                    return TailRead((), offset, lacks_room=True)
                stop = first + 1
            end = block.ends[stop - 1]
            chunks += block.pieces(begin, end)
            max_bytes -= end - begin
            next_offset = block.last_offsets[stop - 1] + 1
            if stop < len(block.ends):
                lacks_room = stop < visible
                break
        else:
            if len(blocks) > MAX_BLOCKS_PER_READ or not chunks:
                return None
        return TailRead(tuple(chunks), next_offset, lacks_room)

    def batches_at(
        self, segment: LogSegment, offset: int, position: int, size: int
    ) -> memoryview | SplitBatch | None:
        """Whole batches, at least one and at most `size` bytes, from that position of the segment on, where
        the batch begins that is the first to end at or above `offset`. None if the tail does not have
        them."""
        with self._memory.lock:
            blocks = self._since(offset)
        if not blocks or blocks[0].segment is not segment:
            return None
        block = blocks[0]
        begin = position - block.position
        first = bisect_left(block.last_offsets, offset)
        stop = bisect_right(block.ends, begin + size)
        if begin != (block.ends[first - 1] if first else 0) or stop <= first:
            return None
        split = SplitBatch.of(block.kept.parts)
        return split or memoryview(block.kept.joined())[begin : block.ends[stop - 1]]

    def check(self) -> None:
        """Assert that the blocks are one piece, up to the end of the last segment among them."""
        with self._memory.lock:
            blocks = [block for block in self._blocks if block is not None]
            assert len(blocks) == len(self._blocks) - self._first
        for number, block in enumerate(blocks[1:]):
            assert blocks[number].last_offset < block.base_offset
            if blocks[number].segment is block.segment:
                assert blocks[number].position + blocks[number].kept.size_bytes == block.position
        if blocks:
            assert blocks[-1].last_offset + 1 == blocks[-1].segment.end_offset

    def _since(self, offset: int) -> list[TailBlock]:
        """The blocks from the first one that ends at or above `offset`, one more than a read takes; none if
        the tail begins above it. The memory's lock is held."""
        blocks = self._blocks
        if self._first == len(blocks):
            return []
        first = bisect_left(blocks, offset, self._first, key=_last_offset)
        found = [block for block in blocks[first : first + MAX_BLOCKS_PER_READ + 1] if block is not None]
        if not found or (first == self._first and found[0].base_offset > offset):
            return []
        return found

    def _is_behind(self, block: TailBlock) -> bool:
        """Whether the tail has batches at or above the block. The memory's lock is held."""
        last = self._blocks[-1] if self._blocks else None
        return last is not None and last.last_offset >= block.base_offset
