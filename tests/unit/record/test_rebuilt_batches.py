"""Batches as a compaction leaves them: holes, horizons, nothing at all."""

from __future__ import annotations

import pytest

from stratalog.base.errors import InvalidRequestError
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record

RECORDS = [
    Record(100, 1_000, b"a", b"1"),
    Record(101, 1_005, b"b", None),
    Record(102, 1_002, b"c", b"3", (("h", b"x"),)),
    Record(103, 1_001, None, b"4"),
]


def test_what_cannot_be_a_batch_is_refused() -> None:
    with pytest.raises(InvalidRequestError):
        encode_batch([])
    with pytest.raises(InvalidRequestError):
        encode_batch([Record(0, 2**63, None, None)])
    with pytest.raises(InvalidRequestError):
        encode_batch([Record(0, -(2**62) - 1, None, None), Record(0, 2**62, None, None)])
    with pytest.raises(InvalidRequestError):
        encode_batch([Record(0, 0, None, None, (("\ud800", None),))])
    with pytest.raises(InvalidRequestError):
        encode_batch(RECORDS, codec=Codec.SNAPPY, level=1)
