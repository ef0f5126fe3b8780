"""A request body reads as the concatenation of its parts would, whatever the window and the reads."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.objectstore.parts_body import PartsBody


def never() -> None:
    """No deadline."""


@given(parts=st.lists(st.binary(max_size=20), max_size=6), data=st.data())
def test_it_reads_like_the_bytes_themselves(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    body, oracle = PartsBody(parts, start, end, never), io.BytesIO(whole[start:end])
    for _ in range(data.draw(st.integers(0, 8))):
        if data.draw(st.booleans()):
            size = data.draw(st.integers(-1, 30))
            assert body.read(size) == oracle.read(size)
        else:
            offset, whence = (
                data.draw(st.integers(0, 30)),
                data.draw(st.sampled_from([io.SEEK_SET, io.SEEK_END])),
            )
            assert body.seek(offset, whence) == oracle.seek(offset, whence)
        assert body.tell() == oracle.tell()
    body.seek(0)
    assert body.read() == whole[start:end]


def test_wide_elements_count_as_bytes() -> None:
    numbers = memoryview(bytes(range(16))).cast("I")
    assert PartsBody([numbers, b"xy"], 3, 17, never).read() == bytes(range(3, 16)) + b"x"


def test_the_deadline_is_looked_at_with_every_read() -> None:
    class TooLateError(Exception):
        pass

    remaining = iter([None, None])

    def check() -> None:
        if next(remaining, TooLateError) is TooLateError:
            raise TooLateError

    body = PartsBody([b"abc"], 0, 3, check)
    assert body.read(1) + body.read(1) == b"ab"
    with pytest.raises(TooLateError):
        body.read(1)
