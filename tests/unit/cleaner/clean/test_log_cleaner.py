"""Rules of one clean that neither a scenario nor the oracle in tests/property/cleaner shows."""

from __future__ import annotations

import dataclasses
import random
import tracemalloc

import pytest

from stratalog.base.errors import CorruptRecordError
from stratalog.cleaner.clean.log_cleaner import LogCleaner
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.record.batch import batches
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.control_key import ControlKey
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.record import Record
from stratalog.segment.file_names import CLEANED_SUFFIX, SWAP_SUFFIX
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaned_log import CONFIG, Cleaned
from tests.support.cleaner.cleaning_history import CleaningHistory, limits
from tests.support.logs.overwriting import flip

FAR = 2**31 - 1


def test_nothing_is_done_where_nothing_may_be_cleaned() -> None:
    cleaned = Cleaned()
    cleaned.put((b"a", b"1"), (b"a", b"2"))
    to_clean = LogToClean(cleaned.log, 0, 0, 0, 0, 0)
    result = LogCleaner(cleaned.machine.clock, SequentialIds()).clean(to_clean, limits())
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
