"""Where slices of an upload end: against the definition, batch by batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stratalog.record.native.batch_row import BatchRow
from stratalog.remote.objects.slice_clock import SliceClock

MAX_MS = 10


def batches_of(times_ms: list[int]) -> list[BatchRow]:
    """Batches of one byte each."""
    return [
        BatchRow(
            position=position,
            size_bytes=1,
            base_offset=position,
            last_offset=position,
            max_timestamp_ms=time_ms,
            leader_epoch=0,
            is_noted=False,
        )
        for position, time_ms in enumerate(times_ms)
    ]


def slices_of(reads: list[list[int]]) -> list[list[int]]:
    """The slices that a clock makes of batches with these times, which come in these reads."""
    clock = SliceClock(MAX_MS)
    slices: list[list[int]] = [[]]
    for read in reads:
        left = read
        while left:
            count = clock.take(batches_of(left), len(left))
            slices[-1] += left[:count]
            left = left[count:]
            if left:
                clock.begin_slice()
                slices.append([])
    return slices


def expected_slices(times_ms: list[int]) -> list[list[int]]:
    """The fewest slices from the front that are within the bound by effective times: a batch is as new as
    the newest one up to it."""
    slices: list[list[int]] = [[]]
    newest_ms = -1
    start_ms = -1
    for time_ms in times_ms:
        newest_ms = max(newest_ms, time_ms)
        if slices[-1] and 0 <= start_ms < newest_ms - MAX_MS:
            slices.append([])
        if not slices[-1] or start_ms < 0:
            start_ms = newest_ms
        slices[-1].append(time_ms)
    return slices


@given(st.lists(st.lists(st.integers(-1, 60), max_size=8), max_size=6))
def test_a_slice_ends_before_the_batch_that_makes_it_too_wide(reads: list[list[int]]) -> None:
    times_ms = [time_ms for read in reads for time_ms in read]
    assert slices_of(reads) == expected_slices(times_ms)


def test_late_records_cut_nothing() -> None:
    assert len(slices_of([[100, 3, 101, 2, 105, 1, 110, -1, 100]])) == 1
    assert slices_of([[100, 3, 111, 2, 112]]) == [[100, 3], [111, 2, 112]]


def test_the_first_batch_is_taken_whatever_its_time() -> None:
    assert slices_of([[0], [1_000], [2_000, 2_001]]) == [[0], [1_000], [2_000, 2_001]]
