"""Records that are deleted while a log is cleaned, or before retention has dropped their segments."""

from __future__ import annotations

import dataclasses

import pytest

from stratalog.record.codecs.compression import Codec
from stratalog.record.native.cleaned_batches import NO_HORIZON
from tests.support.cleaner.cleaned_log import CONFIG, Cleaned
from tests.support.cleaner.cleaning_history import limits
from tests.support.cleaner.compacted_log import CONFIG as COMPACTED

LARGE = dataclasses.replace(CONFIG, segment_bytes=100_000)
SMALL = dataclasses.replace(COMPACTED, segment_bytes=300)


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


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_stays_while_data_of_its_transaction_waits_for_retention(*, committed: bool) -> None:
    cleaned = Cleaned()
    cleaned.put_as(1, 0, (b"a", b"1"), (b"b", b"1"))
    cleaned.log.roll()
    cleaned.put((b"x", b"1"))
    cleaned.end(1, committed=committed)
    cleaned.put_as(1, 2, (b"a", b"2"))
    cleaned.end(1, committed=True)
    cleaned.log.roll()
    cleaned.log.increment_log_start_offset(2)
    now_ms = cleaned.machine.clock.now_ms()
    for _ in range(4):
        cleaned.clean(all_dirty=True)
        cleaned.machine.clock.advance(2000)
    markers = [
        (header.base_offset, header.delete_horizon_ms) for header in cleaned.headers() if header.is_control
    ]
    assert markers == [(3, None), (5, None)]
    # It waits for a clean that finds no data any more, and that is made anyway.
    assert cleaned.result.horizon_ms == NO_HORIZON
    assert cleaned.machine.clock.now_ms() > now_ms
    cleaned.log.flusher.flush()
    cleaned.machine.kill()
    disk = cleaned.machine.disk
    for name in disk.list_directory(cleaned.log.local_log.directory):
        if name.endswith(".snapshot"):
            disk.unlink(f"{cleaned.log.local_log.directory}/{name}")
    cleaned.log = cleaned.machine.start()
    cleaned.log.check()
    assert cleaned.log.offsets.last_stable_offset == cleaned.log.offsets.log_end_offset
    cleaned.log.retention.delete_old_segments()
    for _ in range(3):
        cleaned.clean(all_dirty=True)
        cleaned.machine.clock.advance(2000)
    assert [header.base_offset for header in cleaned.headers() if header.is_control] == [5]
    cleaned.log.check()


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


def test_a_transaction_that_ends_below_the_log_start_says_nothing_of_the_next_one() -> None:
    cleaned = Cleaned()
    cleaned.put_as(1, 0, (b"a", b"1"))
    cleaned.end(1, committed=True)
    cleaned.log.roll()
    cleaned.end(1, committed=False)
    cleaned.put_as(1, 1, (b"a", b"2"))
    cleaned.end(1, committed=True)
    cleaned.log.roll()
    cleaned.log.increment_log_start_offset(2)
    for _ in range(3):
        cleaned.clean(all_dirty=True)
        cleaned.machine.clock.advance(2000)
    assert [header.base_offset for header in cleaned.headers() if header.is_control] == [1, 4]
