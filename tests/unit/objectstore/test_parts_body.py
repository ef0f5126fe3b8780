"""A request body reads as the concatenation of its parts would, whatever the window and the reads."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.objectstore.parts_body import PartsBody, part_windows


def never() -> None:
    """No deadline."""


def views(parts: Sequence[bytes]) -> list[memoryview]:
    return [memoryview(part) for part in parts]


@given(parts=st.lists(st.binary(max_size=20), max_size=6), data=st.data())
def test_it_reads_like_the_bytes_themselves(parts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(parts)
    body, oracle = PartsBody(views(parts), never), io.BytesIO(whole)
    assert body.size_bytes == len(whole)
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
    assert body.read() == whole


@given(parts=st.lists(st.binary(max_size=20), max_size=6), window_bytes=st.integers(1, 30))
def test_windows_are_the_bytes_cut_evenly(parts: list[bytes], window_bytes: int) -> None:
    whole = b"".join(parts)
    cut = [(b"".join(window), is_last) for window, is_last in part_windows(parts, window_bytes)]
    starts = range(0, max(len(whole), 1), window_bytes)
    assert cut == [(whole[start : start + window_bytes], start == starts[-1]) for start in starts]


def test_no_part_is_asked_for_twice_and_none_before_there_is_room_for_it() -> None:
    asked: list[int] = []

    def parts() -> Iterator[bytes]:
        for number in range(6):
            asked.append(number)
            yield bytes([number]) * 10

    windows = part_windows(parts(), 20)
    first, _ = next(windows)
    # One more tells that the first window is not the last.
    assert asked == [0, 1, 2]
    assert b"".join(first) == bytes(10) + b"\1" * 10
    second, _ = next(windows)
    assert first == [], "one window at a time is held"
    assert b"".join(second) == b"\2" * 10 + b"\3" * 10
    assert [is_last for _, is_last in windows] == [True]
    assert asked == list(range(6))


def test_wide_elements_count_as_bytes() -> None:
    numbers = memoryview(bytes(range(16))).cast("I")
    [(window, is_last)] = part_windows([numbers, b"xy"], 18)
    assert is_last
    assert PartsBody(window, never).read() == bytes(range(16)) + b"xy"


def test_the_deadline_is_looked_at_with_every_read() -> None:
    class TooLateError(Exception):
        pass

    remaining = iter([None, None])

    def check() -> None:
        if next(remaining, TooLateError) is TooLateError:
            raise TooLateError

    body = PartsBody(views([b"abc"]), check)
    assert body.read(1) + body.read(1) == b"ab"
    with pytest.raises(TooLateError):
        body.read(1)
