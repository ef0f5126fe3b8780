"""A page of slices says the same in both formats, and takes few bytes by columns."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.remote.json_document import encode_text
from stratalog.remote.metadata.head.checkpoint_page import (
    COLUMNS_FORMAT,
    ROWS_FORMAT,
    Page,
    check_page,
    decode_page,
)
from stratalog.remote.metadata.head.page_columns import joined
from stratalog.remote.metadata.shard.live_slice import Gap, LiveSlice
from stratalog.remote.metadata.shard.slice_row import (
    SLICE_COLUMNS,
    SLICE_ENCODINGS,
    SLICE_KEY_SIZE,
    SLICES,
    format_slice,
    parse_slice,
)
from stratalog.remote.objects.slice_entry import (
    KeyStreamRef,
    LastBatch,
    LeaderEpoch,
    OpenTransaction,
    PartRef,
    SliceEntry,
)
from tests.support.tiered.checkpoint_pages import reference, rows_of
from tests.support.tiered.metadata_harness import A0, A1, B0

PARTITIONS = (A0, A1, B0)
NAMES = tuple(f"{number:020d}-00000000-0000-4000-8000-{number:012d}" for number in range(4))


def random_slices(random: Random) -> list[LiveSlice]:
    """The slices of some partitions, in order, with everything that a slice may have."""
    slices: list[LiveSlice] = []
    for tip in PARTITIONS:
        offset = random.choice((0, 5, 1 << 40))
        for _ in range(random.randrange(6)):
            end_offset = offset + random.randrange(1, 100)
            if random.random() < 0.2:
                gap = Gap("expired", random.randrange(1 << 41), (OpenTransaction(7, offset),))
                slices.append(LiveSlice.of_gap(tip, offset, end_offset, gap))
            else:
                slices.append(_random_slice(random, tip, offset, end_offset))
            offset = end_offset
    return slices or [_random_slice(random, A0, 0, 1)]


def _random_slice(random: Random, tip: object, offset: int, end_offset: int) -> LiveSlice:
    assert isinstance(tip, type(A0))
    base_offset = max(offset - random.choice((0, 0, 3)), 0)
    newest_ms = random.choice((-1, 1_700_000_000_000, random.randrange(1 << 50)))
    count = random.randrange(2, 9)
    stream = KeyStreamRef(
        random.randrange(1 << 40), 8 * count, count, random.getrandbits(32), random.getrandbits(64)
    )
    stable_offset = random.choice((end_offset, base_offset))
    open_ones = tuple(OpenTransaction(n, base_offset) for n in range(2)) if stable_offset < end_offset else ()
    is_empty = random.random() < 0.2
    entry = SliceEntry(
        topic_id=tip.topic_id,
        topic="events",
        partition=tip.partition,
        base_offset=base_offset,
        end_offset=end_offset,
        data_position=random.randrange(4096, 1 << 40),
        data_bytes=0 if is_empty else random.randrange(1, 1 << 30),
        data_crc=random.getrandbits(32),
        record_count=0 if is_empty else count,
        min_timestamp=random.choice((-1, newest_ms)),
        max_timestamp=newest_ms,
        max_timestamp_offset=random.choice((-1, end_offset - 1)),
        codec_mask=1 << random.randrange(5),
        stable_end_offset=stable_offset,
        has_aborted=random.random() < 0.3,
        open_transactions=open_ones,
        tombstone_count=0 if is_empty else random.randrange(2),
        marker_count=0 if is_empty else random.randrange(2),
        earliest_delete_horizon_ms=random.choice((None, newest_ms)),
        leader_epochs=tuple(LeaderEpoch(n, base_offset + n) for n in range(random.choice((1, 1, 1, 0, 2)))),
        last_batch=None if is_empty else LastBatch(end_offset - 1, 1, random.getrandbits(32)),
        key_stream=None if is_empty or open_ones else random.choice((None, stream)),
        index=PartRef(random.randrange(1 << 40), random.randrange(4096), random.getrandbits(32)),
    )
    return LiveSlice(random.choice(NAMES), offset, end_offset, entry)


def page_of(slices: list[LiveSlice]) -> Page:
    values = list(zip(*map(format_slice, slices), strict=True))
    return Page(SLICE_COLUMNS, values, len(slices), SLICE_KEY_SIZE, "page")


def stored(page: Page, page_format: int) -> bytes:
    return encode_text(page.text(SLICES, page_format, SLICE_ENCODINGS))


@given(st.integers(min_value=0, max_value=1 << 32))
def test_both_formats_say_the_same(seed: int) -> None:
    slices = random_slices(Random(seed))
    page = page_of(slices)
    ref = reference(SLICES, "page", page)
    for page_format in (ROWS_FORMAT, COLUMNS_FORMAT):
        data = stored(page, page_format)
        found = decode_page(data, "page", ref)
        assert [parse_slice(row)[1] for row in found.rows()] == slices
        assert [parse_slice(found.row(index))[1] for index in range(len(slices))] == slices
        for other in (ROWS_FORMAT, COLUMNS_FORMAT):
            assert stored(found, other) == stored(page, other), "the text depends on the rows alone"


@given(st.integers(min_value=0, max_value=1 << 32), st.integers(min_value=0), st.booleans())
def test_pages_of_either_format_are_cut_and_joined(seed: int, place: int, is_mixed: bool) -> None:
    slices = random_slices(Random(seed))
    cut = place % (len(slices) + 1)
    formats = (ROWS_FORMAT if is_mixed else COLUMNS_FORMAT, COLUMNS_FORMAT)
    left, right = (check_page(stored(page_of(slices), one), "page") for one in formats)
    columns = [
        joined([one, other])
        for one, other in zip(left.part(0, cut).values, right.part(cut, len(slices)).values, strict=True)
    ]
    both = Page(SLICE_COLUMNS, columns, len(slices), SLICE_KEY_SIZE, "page")
    assert [parse_slice(row)[1] for row in both.rows()] == slices
    assert stored(both, COLUMNS_FORMAT) == stored(page_of(slices), COLUMNS_FORMAT)


@given(st.integers(min_value=0, max_value=1 << 32), st.integers(0, 120))
def test_rows_are_found_by_their_keys(seed: int, offset: int) -> None:
    slices = random_slices(Random(seed))
    page = check_page(stored(page_of(slices), COLUMNS_FORMAT), "page")
    keys = [(str(one.entry.topic_id), one.entry.partition, one.base_offset) for one in slices]
    for tip in PARTITIONS:
        for base_offset in (0, offset, (1 << 40) + offset, (1 << 63) - 1):
            key = (str(tip.topic_id), tip.partition, base_offset)
            assert page.index_of(key) == sum(one < key for one in keys)
            assert page.index_behind(key) == sum(one <= key for one in keys)


@pytest.mark.parametrize("seed", range(3))
def test_a_slice_takes_few_bytes(seed: int) -> None:
    """Eight partitions with 250 slices each, which lie side by side in 250 objects; all sizes, times and
    checksums are random."""
    random = Random(seed)
    names = [f"{n:020d}-{UUID(int=random.getrandbits(128))}" for n in range(250)]
    positions = dict.fromkeys(names, 4096)
    slices: list[LiveSlice] = []
    for number in range(8):
        offset, time_ms = 0, 1_700_000_000_000
        for name in names:
            count, size_bytes = random.randrange(500, 1_500), random.randrange(100_000, 200_000)
            one = _random_slice(random, A0, offset, offset + count)
            entry = one.entry._replace(
                partition=number,
                base_offset=offset,
                data_position=positions[name],
                data_bytes=size_bytes,
                record_count=count,
                min_timestamp=time_ms + random.randrange(2_000),
                max_timestamp=time_ms + 55_000 + random.randrange(5_000),
                max_timestamp_offset=offset + count - 1,
                codec_mask=16,
                stable_end_offset=offset + count,
                has_aborted=False,
                open_transactions=(),
                tombstone_count=0,
                marker_count=0,
                earliest_delete_horizon_ms=None,
                leader_epochs=(LeaderEpoch(3, offset),),
                last_batch=LastBatch(offset + count - random.randrange(1, 30), 3, random.getrandbits(32)),
                key_stream=None,
                index=PartRef(positions[name] + (1 << 26), 400, random.getrandbits(32)),
            )
            slices.append(LiveSlice(name, offset, offset + count, entry))
            positions[name] += size_bytes
            offset, time_ms = offset + count, time_ms + 60_000
    page = page_of(slices)
    assert len(stored(page, COLUMNS_FORMAT)) / len(slices) < 48
    assert len(stored(page, ROWS_FORMAT)) / len(slices) > 70
    assert rows_of(check_page(stored(page, COLUMNS_FORMAT), "page")) == rows_of(
        check_page(stored(page, ROWS_FORMAT), "page")
    )
