"""Records that are deleted while a log is cleaned, or before retention has dropped their segments."""

from __future__ import annotations

import dataclasses

import pytest

from stratalog.record.codecs.compression import Codec
from tests.support.cleaner.cleaned_log import CONFIG, Cleaned
from tests.support.cleaner.cleaning_history import limits

LARGE = dataclasses.replace(CONFIG, segment_bytes=100_000)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("start_offset", [1, 5, 6, 11, 14, 23])
def test_the_log_start_moves_into_what_a_full_map_has_not_reached(start_offset: int, codec: Codec) -> None:
    cleaned = Cleaned(LARGE)
    for number in range(6):
        cleaned.put(*((b"k%d" % (number * 4 + delta), b"v") for delta in range(4)), codec=codec)

    def move_start() -> None:
        cleaned.log.increment_log_start_offset(start_offset)

    cleaned.clean(limits(6, move_start, load_factor=1.0))
    end_offset = cleaned.end_offset
    assert 0 < end_offset < 12
    wanted = [(offset, b"k%d" % offset, b"v") for offset in range(start_offset, 24)]
    assert cleaned.left() == wanted
    # What the map does not know is left as it is.
    untouched = [header.records_count for header in cleaned.headers() if header.base_offset >= end_offset]
    assert set(untouched) == {4}
    while cleaned.end_offset < 24:
        cleaned.clean(limits(6, load_factor=1.0))
    assert cleaned.left() == wanted


def test_deleted_segments_that_go_during_a_clean_do_not_end_it() -> None:
    cleaned = Cleaned()
    for number in range(3):
        cleaned.put_as(1, number, (b"a%d" % number, b"1"))
        cleaned.log.roll()
    cleaned.end(1, committed=True)
    cleaned.put((b"a2", b"2"))

    def drop() -> None:
        cleaned.log.increment_log_start_offset(2)
        cleaned.log.retention.delete_old_segments()

    # What is dropped is dropped before the second pass asks for it.
    cleaned.log.roll()
    cleaned.end_offset = 2
    cleaned.clean(limits(on_step=drop))
    assert [offset for offset, key, _ in cleaned.left() if key == b"a2"] == [4]
