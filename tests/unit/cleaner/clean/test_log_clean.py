"""Rules of one clean that neither a scenario nor the oracle in tests/property/cleaner shows."""

from __future__ import annotations

import dataclasses
import random
import tracemalloc

import pytest

from stratalog.base.errors import CorruptRecordError
from stratalog.base.types import Durability
from stratalog.cleaner.clean.log_clean import LogClean
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.record.batch import batches
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.control_key import ControlKey
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.native.cleaned_batches import NO_HORIZON
from stratalog.record.native.offset_map import OffsetMap
from stratalog.record.record import Record
from stratalog.segment.file_names import CLEANED_SUFFIX, SWAP_SUFFIX
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaned_log import CONFIG, Cleaned
from tests.support.cleaner.cleaning_history import CleaningHistory, limits
from tests.support.logs.overwriting import flip

FAR = 2**31 - 1
LARGE = dataclasses.replace(CONFIG, segment_bytes=100_000)


def test_nothing_is_done_where_nothing_may_be_cleaned() -> None:
    cleaned = Cleaned()
    cleaned.put((b"a", b"1"), (b"a", b"2"))
    to_clean = LogToClean(
        log=cleaned.log,
        first_dirty_offset=0,
        first_uncleanable_offset=0,
        clean_bytes=0,
        cleanable_bytes=0,
        compaction_delay_ms=0,
    )
    result = LogClean(cleaned.machine.clock, SequentialIds()).run(to_clean, limits())
    assert result.end_offset == 0
    assert len(cleaned.left()) == 2


def test_small_logs_take_small_maps() -> None:
    cleaned = Cleaned()
    cleaned.put((b"a", b"1"), (b"b", b"1"))
    cleaned.clean(limits()._replace(map_bytes=1 << 40))
    assert cleaned.result.stats.max_map_entry_count < 10
    assert not cleaned.result.stats.is_map_full


def test_small_logs_take_small_windows() -> None:
    cleaned = Cleaned()
    for number in range(200):
        cleaned.put((b"k%d" % (number % 2), b"%d" % number))
    made = limits(io_buffer_bytes=64 << 20)
    tracemalloc.start()
    try:
        cleaned.clean(made)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < 4 << 20
    assert cleaned.left() == [(198, b"k0", b"198"), (199, b"k1", b"199")]


def test_control_records_of_other_types_are_kept() -> None:
    cleaned = Cleaned()
    other = encode_batch(
        [Record(0, 1, ControlKey(0, 2).pack(), b"")],
        producer=BatchProducer(1, 0, is_transactional=True),
        is_control=True,
        leader_epoch=1,
    )
    cleaned.log.appender.append_as_follower(other)
    marker = EndTransactionMarker(ControlType.COMMIT, 0)
    cleaned.log.appender.append_as_follower(marker.to_batch(7, 0, 1, base_offset=1, leader_epoch=1))
    cleaned.put((b"c", b"1"))
    for _ in range(3):
        cleaned.clean(all_dirty=True)
        cleaned.machine.clock.advance(2000)
    assert [header.is_control for header in cleaned.headers()][:1] == [True]
    assert cleaned.headers()[0].records_count == 1


def test_a_broken_off_clean_leaves_nothing_behind() -> None:
    history = CleaningHistory(random.Random(5))
    for _ in range(40):
        history.write()
    history.log.roll()
    history.write()
    for step_count in range(30):
        history.clean(break_off_after=step_count)
        names = history.machine.disk.list_directory(history.log.local_log.directory)
        assert not [name for name in names if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))]


def test_damage_is_named_and_changes_nothing() -> None:
    cleaned = Cleaned()
    cleaned.put((b"a", b"1"))
    cleaned.put((b"a", b"2"), (b"b", b"1"))
    cleaned.put((b"a", b"3"))
    cleaned.log.roll()
    cleaned.log.flusher.flush()
    [segment, _] = cleaned.log.local_log.segments
    data = cleaned.machine.disk.read_file(segment.path)
    second = next(position for position, header in batches(data) if header.base_offset == 1)
    for position in (second + 7, second + 11, second + 30, second + 70):
        flip(cleaned.machine.disk, segment.path, position)
        damaged = cleaned.machine.disk.read_file(segment.path)
        with pytest.raises(CorruptRecordError) as caught:
            cleaned.clean()
        assert caught.value.fields["path"] == segment.path
        assert cleaned.unfinished() == []
        assert cleaned.machine.disk.read_file(segment.path) == damaged
        flip(cleaned.machine.disk, segment.path, position)
    cleaned.clean()
    assert cleaned.left() == [(2, b"b", b"1"), (3, b"a", b"3")]


def test_the_files_of_a_clean_are_as_old_as_the_newest_of_those_before() -> None:
    cleaned = Cleaned(dataclasses.replace(CONFIG, segment_bytes=1 << 20))
    disk = cleaned.machine.disk
    for number in range(3):
        cleaned.put((b"k%d" % number, b"1"))
        cleaned.log.roll()
    for number, segment in enumerate(cleaned.log.local_log.segments.sealed):
        disk.set_modified_ms(segment.path, [5000, 9000, 7000][number])
    cleaned.clean()
    [first, _] = cleaned.log.local_log.segments
    assert disk.modified_ms(first.path) == 9000


def test_offsets_that_are_too_far_apart_are_not_cleaned_into_one_segment() -> None:
    cleaned = Cleaned()
    for offset, key in ((0, b"a"), (FAR, b"b"), (FAR + 1, b"a"), (2 * FAR + 5, b"c")):
        batch = encode_batch([Record(0, 1, key, b"1")], base_offset=offset, leader_epoch=1)
        cleaned.log.appender.append_as_follower(batch)
        cleaned.log.roll()
    cleaned.clean()
    assert [key for _, key, _ in cleaned.left()] == [b"b", b"a", b"c"]
    # The first two are as far apart as an index can say; the others are too far from the first.
    assert [info.base_offset for info in cleaned.log.reader.segments()][1:2] == [FAR + 1]


def test_producer_snapshots_of_segments_that_are_one_now_go_with_them() -> None:
    cleaned = Cleaned(dataclasses.replace(CONFIG, segment_bytes=1 << 20))
    for number in range(4):
        cleaned.put_as(1, number, (b"k", b"1"))
        cleaned.end(1, committed=True)
        cleaned.log.roll()
    cleaned.clean()
    names = cleaned.machine.disk.list_directory(cleaned.log.local_log.directory)
    assert [int(name.removesuffix(".snapshot")) for name in names if name.endswith(".snapshot")] == [8]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_a_tombstone_that_never_goes_stays_under_a_shorter_time_until_it_is_written_again(
    codec: Codec,
) -> None:
    """The horizon that is written into a batch holds, as docs/cleaning.md says."""
    cleaned = Cleaned(dataclasses.replace(CONFIG, delete_retention_ms=2**63 - 1))
    cleaned.put((b"a", b"1"), (b"a", None), codec=codec)
    cleaned.clean()
    cleaned.log.reconfigure(CONFIG)
    for text in (b"1", b"2"):
        cleaned.machine.clock.advance(100_000)
        cleaned.put((b"x", text))
        cleaned.clean(all_dirty=True)
        assert (1, b"a", None) in cleaned.left()
        assert cleaned.result.next_clean_ms == NO_HORIZON
    cleaned.put((b"a", None), codec=codec)
    cleaned.clean()
    assert cleaned.left() == [(3, b"x", b"2"), (4, b"a", None)]
    assert cleaned.result.next_clean_ms == cleaned.machine.clock.now_ms() + CONFIG.delete_retention_ms
    cleaned.machine.clock.advance(CONFIG.delete_retention_ms)
    cleaned.put((b"x", b"3"))
    cleaned.clean()
    assert cleaned.left() == [(5, b"x", b"3")]


def test_the_batch_before_the_high_watermark_stays() -> None:
    cleaned = Cleaned(dataclasses.replace(CONFIG, min_durability=Durability.DISK))
    cleaned.put((b"a", b"1"))
    now_ms = cleaned.machine.clock.now_ms()
    for _ in range(2):
        cleaned.log.appender.append_as_leader(encode_batch([Record(0, now_ms, None, b"without a key")]), 1)
    cleaned.log.flusher.flush()
    cleaned.put((b"b", b"1"))
    assert cleaned.log.offsets.high_watermark == 3
    cleaned.clean()
    assert cleaned.end_offset == 3
    assert [(header.base_offset, header.records_count) for header in cleaned.headers()] == [
        (0, 1),
        (2, 0),
        (3, 1),
    ]


def test_the_hash_of_each_clean_has_its_own_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []
    used: list[bytes] = []

    class NotingIds(SequentialIds):
        def secret(self, size_bytes: int) -> bytes:
            asked.append(super().secret(size_bytes))
            return asked[-1]

    def noting_map(secret: bytes, slot_count: int, load_factor: float, rule: None) -> OffsetMap:
        used.append(secret)
        return OffsetMap(secret, slot_count, load_factor, rule)

    monkeypatch.setattr(noting_map, "slots_for", OffsetMap.slots_for, raising=False)
    monkeypatch.setattr("stratalog.cleaner.clean.log_clean.OffsetMap", noting_map)
    cleaned = Cleaned()
    log_clean = LogClean(cleaned.machine.clock, NotingIds())
    cleaned.put((b"a", b"1"))
    cleaned.log.roll()
    for _ in range(2):
        log_clean.run(
            LogToClean(
                log=cleaned.log,
                first_dirty_offset=0,
                first_uncleanable_offset=1,
                clean_bytes=0,
                cleanable_bytes=1,
                compaction_delay_ms=0,
            ),
            limits(),
        )
    assert used == asked
    assert len(set(used)) == 2
    assert all(len(secret) == 16 for secret in used)


def test_all_that_is_read_and_written_is_throttled() -> None:
    cleaned = Cleaned()
    for number in range(60):
        cleaned.put((b"k%d" % (number % 40), b"x" * 50))
    throttled = 0

    def throttle(size_bytes: int) -> None:
        nonlocal throttled
        throttled += size_bytes

    cleaned.clean(limits()._replace(throttle=throttle))
    stats = cleaned.result.stats
    # Once for each pass, for what is written, and for what is read back.
    least_bytes = stats.mapped_bytes + stats.cleaned_bytes + 2 * stats.written_bytes
    assert least_bytes <= throttled < least_bytes + 100


def test_a_marker_that_alone_tells_the_epoch_of_its_producer_stays_whole_until_that_is_forgotten() -> None:
    cleaned = Cleaned()
    cleaned.put_as(1, 0, (b"a", b"1"))
    cleaned.log.appender.append_end_transaction_marker(1, 1, 1, committed=True, leader_epoch=1)
    cleaned.put((b"a", b"2"))
    assert [entry.batches for entry in cleaned.log.producers()] == [()]
    for _ in range(4):
        cleaned.clean(all_dirty=True)
        cleaned.machine.clock.advance(2000)
        # It has no time to go, and is waited for by no clean.
        assert cleaned.result.next_clean_ms == NO_HORIZON
    found = [
        (header.base_offset, header.records_count, header.delete_horizon_ms) for header in cleaned.headers()
    ]
    assert found == [(1, 1, None), (2, 1, None)]
    cleaned.log.set_producer_id_expiration_ms(1000)
    cleaned.log.remove_expired_producers()
    for _ in range(2):
        cleaned.clean(all_dirty=True)
        cleaned.machine.clock.advance(2000)
    assert [(header.base_offset, header.records_count) for header in cleaned.headers()] == [(2, 1)]


def test_the_time_of_a_tombstone_begins_when_older_segments_without_the_value_are_there() -> None:
    cleaned = Cleaned()
    clock = cleaned.machine.clock
    cleaned.put((b"a", b"1"), (b"x", b"x" * 3000))
    cleaned.log.roll()
    cleaned.put((b"y", b"y" * 3000), (b"a", None))
    last_seen_ms = 0

    def take_time(_: int) -> None:
        nonlocal last_seen_ms
        clock.advance(100)
        if (0, b"a", b"1") in cleaned.left():
            last_seen_ms = clock.now_ms()

    cleaned.clean(limits()._replace(throttle=take_time))
    [horizon_ms] = [header.delete_horizon_ms for header in cleaned.headers() if header.delete_horizon_ms]
    assert horizon_ms >= last_seen_ms + CONFIG.delete_retention_ms


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
    assert cleaned.result.next_clean_ms == NO_HORIZON
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
