"""Which bytes of an append are kept without a copy, and what a reader gets of them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from stratalog.base.filesystem import Buffer
from stratalog.segment.kept_bytes import MAX_SURPLUS_PART, MIN_PART_BYTES, KeptBytes

SIZE = 4 * MIN_PART_BYTES
REQUEST = bytes(range(256)) * (SIZE // 256)
PREFIX = b"a new prefix"


def batch_of(request: Buffer, end: int = SIZE) -> list[Buffer]:
    """A batch with a new prefix, and the rest as it lies in the request."""
    return [PREFIX, memoryview(request)[len(PREFIX) : end]]


def with_surplus(count: int) -> bytes:
    """A request with so many bytes behind its batch."""
    return REQUEST + bytes(count)


@pytest.mark.parametrize(
    ("parts", "stay"),
    [
        (batch_of(REQUEST), True),
        (batch_of(REQUEST) + batch_of(bytes(REQUEST)), True),
        ([REQUEST], True),
        (batch_of(with_surplus(SIZE // MAX_SURPLUS_PART - 2 * len(PREFIX))), True),
        # Its other fields would fill the memory.
        (batch_of(with_surplus(SIZE // MAX_SURPLUS_PART)), False),
        (batch_of(with_surplus(100 * SIZE)), False),
        # Their owner may change these.
        (batch_of(bytearray(REQUEST)), False),
        ([bytearray(REQUEST)], False),
        # Small ones cost more than a copy.
        (batch_of(REQUEST[:MIN_PART_BYTES]), False),
        (batch_of(REQUEST) * 3 + [b"x"] * 20, False),
    ],
)
def test_large_parts_of_bytes_stay_where_they_are(parts: Sequence[Buffer], stay: bool) -> None:
    kept = KeptBytes(parts)
    data = b"".join(parts)
    assert (kept.parts is parts) == stay
    assert len(kept.parts) == (len(parts) if stay else 1)
    assert b"".join(kept.parts) == data
    assert kept.size_bytes == len(data)
    joined = kept.joined()
    assert joined == data
    assert kept.joined() is joined, "one copy for all readers"
    assert list(kept.parts) == [joined], "the request is let go"


def test_what_stays_cannot_be_changed() -> None:
    sent = bytearray(REQUEST)
    kept = KeptBytes(batch_of(sent))
    sent[100] ^= 1
    assert kept.joined()[100] == REQUEST[100]
