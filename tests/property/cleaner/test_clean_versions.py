"""Cleans by versions: a log is cleaned part by part with a small map, and what is left is that of an oracle.

The cases are those that a clean by offsets does not have: a clean record beats a dirty one, and a record is
older than the one that it replaces.
"""

from __future__ import annotations

import dataclasses
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.cleaner.clean.clean_result import CleanLimits
from stratalog.log.log_config import CompactionStrategy
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from tests.support.cleaner.cleaned_log import CONFIG, Cleaned
from tests.support.cleaner.cleaning_history import limits
from tests.support.compaction.versions import HEADER, random_versions, winners
from tests.support.logs.log_ledger import read_local
from tests.support.logs.sampling import examples_of

SLOT_BYTES = 32


def versioned(strategy: str) -> Cleaned:
    """A log that is compacted by that strategy."""
    config = dataclasses.replace(
        CONFIG, compaction_strategy=CompactionStrategy(strategy), compaction_strategy_header=HEADER
    )
    return Cleaned(config)


def small_map(key_count: int) -> CleanLimits:
    """Limits under which a map has room for so many keys."""
    return limits()._replace(map_bytes=(key_count + 1) * SLOT_BYTES, map_load_factor=1.0)


def append(cleaned: Cleaned, records: list[Record], codec: Codec = Codec.NONE) -> list[Record]:
    """Append a batch; returns the records with their offsets."""
    base_offset = cleaned.log.offsets.log_end_offset
    cleaned.log.appender.append_as_leader(encode_batch(records, codec=codec), 1)
    return [record._replace(offset=base_offset + index) for index, record in enumerate(records)]


def version(number: int) -> tuple[tuple[str, bytes | None], ...]:
    return ((HEADER, number.to_bytes(8, "big", signed=True)),)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_clean_record_beats_a_dirty_one(codec: Codec) -> None:
    cleaned = versioned("header")
    append(cleaned, [Record(0, 0, b"a", b"old", version(5)), Record(0, 0, b"b", b"old", version(1))], codec)
    cleaned.clean()
    append(cleaned, [Record(0, 0, b"a", b"late", version(4)), Record(0, 0, b"b", b"new", version(1))], codec)
    cleaned.clean()
    assert cleaned.left() == [(0, b"a", b"old"), (3, b"b", b"new")]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_clean_may_end_and_begin_inside_of_a_batch(codec: Codec) -> None:
    cleaned = versioned("timestamp")
    keys = (b"a", b"b", b"a", b"c", b"b")
    times = (5, 5, 4, 5, 6)
    append(cleaned, [Record(0, at, key, b"v") for key, at in zip(keys, times, strict=True)], codec)
    for end_offset, left in ((1, 5), (2, 5), (3, 4), (4, 4), (5, 3)):
        cleaned.clean(small_map(1))
        assert (cleaned.end_offset, len(cleaned.left())) == (end_offset, left)
    assert [offset for offset, _, _ in cleaned.left()] == [0, 3, 4]


def test_a_tombstone_hides_what_comes_later_until_it_goes() -> None:
    cleaned = versioned("header")
    append(cleaned, [Record(0, 0, b"a", None, version(5))])
    cleaned.clean()
    append(cleaned, [Record(0, 0, b"a", b"late", version(4))])
    cleaned.clean()
    assert cleaned.left() == [(0, b"a", None)]
    cleaned.machine.clock.advance(CONFIG.delete_retention_ms)
    append(cleaned, [Record(0, 0, b"b", b"other", version(0))])
    cleaned.clean()
    append(cleaned, [Record(0, 0, b"a", b"returns", version(4))])
    cleaned.clean()
    assert [key for _, key, _ in cleaned.left()] == [b"b", b"a"]


def test_a_deleted_record_beats_nothing() -> None:
    cleaned = versioned("header")
    append(cleaned, [Record(0, 0, b"a", b"1", version(9)), Record(0, 0, b"a", b"2", version(3))])
    cleaned.log.increment_log_start_offset(1)
    cleaned.clean()
    append(cleaned, [Record(0, 0, b"a", b"3", version(2))])
    cleaned.clean()
    assert cleaned.left()[-1:] == [(1, b"a", b"2")]


@settings(max_examples=examples_of(2))
@given(st.integers(0, 2**32), st.sampled_from(("timestamp", "header")))
def test_each_clean_leaves_the_highest_versions(seed: int, strategy: str) -> None:
    random, cleaned = Random(seed), versioned(strategy)
    now_ms = cleaned.machine.clock.now_ms()
    # No tombstones: none may go.
    written: list[Record] = []
    for _ in range(5):
        for _ in range(random.randrange(1, 5)):
            records = [
                Record(
                    0,
                    now_ms - random.choice((0, 1, 5_000)),
                    b"%d" % random.randrange(9),
                    b"v",
                    random_versions(random),
                )
                for _ in range(random.choice((1, 2, 6)))
            ]
            written += append(cleaned, records, random.choice((Codec.NONE, Codec.ZSTD)))
        for _ in range(random.randrange(1, 4)):
            before = cleaned.end_offset
            cleaned.clean(small_map(random.randrange(1, 12)))
            end_offset = cleaned.end_offset
            assert end_offset > before or end_offset == cleaned.log.offsets.log_end_offset
            dirty = [one for one in written if one.offset >= end_offset]
            clean = winners((one for one in written if one.offset < end_offset), strategy)
            assert read_local(cleaned.log) == clean + dirty
