"""Cleans by versions: a log is cleaned part by part with a small map, and what is left is that of an oracle.

The cases are those that a clean by offsets does not have: a clean record beats a dirty one, and a record is
older than the one that it replaces. So it matters that a tombstone, or a deleted record, may beat what comes
later, also if the clean ends early.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.cleaner.clean.clean_result import CleanLimits
from stratalog.cleaner.cleaning_state import CleaningAbortedError
from stratalog.log.log_config import CompactionStrategy
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from tests.support.cleaner.cleaned_log import CONFIG, Cleaned
from tests.support.cleaner.cleaning_history import limits
from tests.support.compaction.versions import HEADER, STRATEGIES, random_versions, winners
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


def at_look(number: int, act: Callable[[], None]) -> CleanLimits:
    """Limits of a clean that does this when it asks for the time of that number whether to go on."""
    looks = 0

    def look() -> None:
        nonlocal looks
        looks += 1
        if looks == number:
            act()

    return limits(on_step=look)


def stop() -> None:
    raise CleaningAbortedError("the server stops")


def was_cut_off(cleaned: Cleaned, made: CleanLimits) -> bool:
    try:
        cleaned.clean(made)
    except CleaningAbortedError:
        return True
    return False


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_clean_that_is_cut_off_brings_no_deleted_key_back(codec: Codec) -> None:
    """A stop of the server, a crash, a pause or a full disk between two groups of a clean is enough."""
    for number in range(1, 99):
        cleaned = versioned("header")
        append(cleaned, [Record(0, 0, b"a", None, version(5))], codec)
        append(cleaned, [Record(0, 0, b"first", bytes(3000), version(0))])
        cleaned.clean()
        cleaned.machine.clock.advance(CONFIG.delete_retention_ms)
        append(cleaned, [Record(0, 0, b"second", bytes(3000), version(0))])
        append(cleaned, [Record(0, 0, b"a", b"late", version(4))], codec)
        append(cleaned, [Record(0, 0, b"third", bytes(3000), version(0))])
        is_cut_off = was_cut_off(cleaned, at_look(number, stop))
        if is_cut_off:
            cleaned.clean()
        assert b"late" not in [value for _, _, value in cleaned.left()], f"cut off at look {number}"
        if not is_cut_off:
            assert number > 10
            return
    raise AssertionError("a clean looks again and again")


def test_a_due_tombstone_that_has_beaten_a_record_goes_with_the_next_clean() -> None:
    cleaned = versioned("header")
    append(cleaned, [Record(0, 0, b"a", None, version(5))])
    cleaned.clean()
    cleaned.machine.clock.advance(CONFIG.delete_retention_ms)
    append(cleaned, [Record(0, 0, b"a", b"late", version(4))])
    cleaned.clean()
    assert cleaned.left() == [(0, b"a", None)]
    assert cleaned.result.next_clean_ms == cleaned.machine.clock.now_ms() + 1
    append(cleaned, [Record(0, 0, b"b", b"other", version(0))])
    cleaned.clean()
    assert cleaned.left() == [(2, b"b", b"other")]


def test_a_record_that_is_deleted_during_a_clean_beats_nothing() -> None:
    low = (1, b"a", b"low")
    outcomes: set[bool] = set()
    for number in range(1, 99):
        cleaned = versioned("header")
        append(cleaned, [Record(0, 0, b"a", b"high", version(9)), Record(0, 0, b"a", b"low", version(3))])
        append(cleaned, [Record(0, 0, b"b", b"other", version(1))])
        was_seen: list[bool] = []

        def delete(cleaned: Cleaned = cleaned, was_seen: list[bool] = was_seen) -> None:
            cleaned.log.increment_log_start_offset(1)
            was_seen.append(low in cleaned.left())

        if was_cut_off(cleaned, at_look(number, delete)):
            cleaned.clean()
        if not was_seen:
            assert outcomes == {True}, "it was deleted before the exchange"
            return
        outcomes.add(was_seen[0])
        assert (low in cleaned.left()) == was_seen[0], f"deleted at look {number}"
    raise AssertionError("a clean looks again and again")


@pytest.mark.parametrize("start_offset", [1, 2, 3])
def test_the_dirt_of_a_clean_begins_at_the_start_of_the_log(start_offset: int) -> None:
    """Records are deleted after the log was chosen: some of the dirt, or all of it."""
    cleaned = versioned("header")
    records = [Record(0, 0, b"a", b"%d" % number, version(9 - number)) for number in range(3)]
    append(cleaned, records)
    cleaned.clean(on_chosen=lambda: cleaned.log.increment_log_start_offset(start_offset))
    assert cleaned.end_offset == 3
    assert [offset for offset, _, _ in cleaned.left()] == [start_offset][: 3 - start_offset]


@settings(max_examples=examples_of(2))
@given(st.integers(0, 2**32), st.sampled_from(("timestamp", "header")))
def test_no_clean_changes_what_a_reader_makes_of_the_log(seed: int, strategy: str) -> None:
    """Cleans are cut off, records are deleted meanwhile, tombstones go: the value of each key stays."""
    random, cleaned = Random(seed), versioned(strategy)
    log = cleaned.log

    def table() -> dict[bytes | None, bytes]:
        found = winners(read_local(log), strategy)
        return {one.key: one.value for one in found if one.value is not None}

    expected = table()

    def delete() -> None:
        nonlocal expected
        offsets = log.offsets
        log.increment_log_start_offset(random.randint(offsets.log_start_offset, offsets.high_watermark))
        expected = table()

    for _ in range(8):
        for _ in range(random.randrange(1, 6)):
            value = random.choice((None, None, b"v%d" % random.getrandbits(30), bytes(3000)))
            timestamp = random.choice((0, 1, 5_000))
            record = Record(0, timestamp, b"%d" % random.randrange(4), value, random_versions(random))
            append(cleaned, [record], random.choice((Codec.NONE, Codec.ZSTD)))
        cleaned.machine.clock.advance(random.choice((0, CONFIG.delete_retention_ms)))
        expected = table()
        if was_cut_off(cleaned, at_look(random.randrange(1, 40), random.choice((stop, delete)))):
            assert table() == expected
            cleaned.clean()
        assert table() == expected


@settings(max_examples=examples_of(4))
@given(st.integers(0, 2**32))
def test_a_clean_goes_by_the_strategy_of_now_over_what_former_ones_have_left(seed: int) -> None:
    """The topic is altered between any two cleans."""
    random, cleaned = Random(seed), versioned("offset")
    log, now_ms = cleaned.log, cleaned.machine.clock.now_ms()
    for _ in range(6):
        strategy = random.choice(STRATEGIES)
        log.reconfigure(
            dataclasses.replace(log.local_log.config, compaction_strategy=CompactionStrategy(strategy))
        )
        # No tombstones: none may go.
        for _ in range(random.randrange(1, 4)):
            timestamp_ms = now_ms - random.choice((0, 1, 5_000))
            key = b"%d" % random.randrange(5)
            append(cleaned, [Record(0, timestamp_ms, key, b"v", random_versions(random))])
        before = read_local(log)
        cleaned.clean(small_map(random.randrange(2, 9)))
        end_offset = cleaned.end_offset
        dirty = [one for one in before if one.offset >= end_offset]
        clean = winners((one for one in before if one.offset < end_offset), strategy)
        assert read_local(log) == clean + dirty
        log.check()
