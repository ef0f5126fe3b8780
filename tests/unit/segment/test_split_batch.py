"""A batch in two pieces has the checksum and the header of the whole."""

from __future__ import annotations

import pytest

from stratalog.base.filesystem import Buffer
from stratalog.record.builder import encode_batch
from stratalog.record.header import HEADER_SIZE, MAGIC_POSITION, parse_header
from stratalog.record.native.kernels import crc32c
from stratalog.record.record import Record
from stratalog.segment.split_batch import SplitBatch

BATCH = encode_batch([Record(7, 5, b"k", bytes(range(256)))])


def test_its_facts_are_those_of_the_whole() -> None:
    split = SplitBatch.of((BATCH[:MAGIC_POSITION], memoryview(BATCH)[MAGIC_POSITION:]))
    assert split is not None
    assert (split.size_bytes, split.header) == (len(BATCH), parse_header(BATCH))
    assert split.crc_behind(crc32c(b"before"), split.header) == crc32c(b"before" + BATCH)


@pytest.mark.parametrize(
    "pieces",
    [
        (BATCH,),
        (BATCH[:HEADER_SIZE], BATCH[HEADER_SIZE:]),
        (BATCH[:MAGIC_POSITION], BATCH[MAGIC_POSITION:] + b"x"),
        (BATCH[:MAGIC_POSITION], BATCH[MAGIC_POSITION:] + BATCH),
        (BATCH[:MAGIC_POSITION], BATCH[MAGIC_POSITION:-1]),
        (BATCH[:MAGIC_POSITION], BATCH[MAGIC_POSITION:HEADER_SIZE]),
        (BATCH[:MAGIC_POSITION], BATCH[MAGIC_POSITION:], BATCH),
        (),
    ],
)
def test_other_pieces_are_none(pieces: tuple[Buffer, ...]) -> None:
    assert SplitBatch.of(pieces) is None
