"""A batch in two pieces: a new beginning, and the rest as it lies in the request that brought it.

    beginning: base offset, length and leader epoch | rest: everything behind these

So large batches lie in memory while they are the newest ones (`KeptBytes`). To join the pieces would be a
copy of the batch, made with the interpreter lock held.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Self

from stratalog.base.filesystem import Buffer
from stratalog.record.header import (
    ATTRIBUTES_POSITION,
    HEADER_SIZE,
    MAGIC_POSITION,
    BatchHeader,
    parse_header,
)
from stratalog.record.native.kernels import crc32c, joined_crc


class SplitBatch(NamedTuple):
    """A whole batch, which is no control batch. Immutable, as long as its pieces are."""

    beginning: Buffer
    rest: Buffer

    @classmethod
    def of(cls, pieces: Sequence[Buffer]) -> Self | None:
        """The batch that these pieces are; None if they are anything else."""
        if len(pieces) != 2 or len(pieces[0]) != MAGIC_POSITION or len(pieces[1]) < HEADER_SIZE:
            return None
        batch = cls(*pieces)
        header = batch.header
        return batch if header.size_in_bytes == batch.size_bytes and not header.is_control else None

    @property
    def size_bytes(self) -> int:
        return len(self.beginning) + len(self.rest)

    @property
    def header(self) -> BatchHeader:
        """Its header. Raises CorruptRecordError if that is no header of a batch."""
        return parse_header(b"".join((self.beginning, memoryview(self.rest)[:HEADER_SIZE])))

    def crc_behind(self, crc: int, header: BatchHeader) -> int:
        """The checksum of bytes with the checksum `crc`, followed by the batch, whose own is proved."""
        unproved_bytes = ATTRIBUTES_POSITION - len(self.beginning)
        begun_crc = crc32c(memoryview(self.rest)[:unproved_bytes], crc32c(self.beginning, crc))
        return joined_crc(begun_crc, header.crc, len(self.rest) - unproved_bytes)
