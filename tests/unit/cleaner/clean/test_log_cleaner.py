"""One clean after the other, each for one rule; histories of all kinds are in tests/property."""

from __future__ import annotations

import dataclasses
import random
import tracemalloc

import pytest

from stratalog.base.errors import CorruptRecordError
from stratalog.cleaner.clean.log_cleaner import LogCleaner
from stratalog.cleaner.cleaning_state import CleaningAbortedError
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.read.isolation import Isolation
from stratalog.record.batch import batches
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.control_key import ControlKey
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.record import Record
from stratalog.segment.file_names import CLEANED_SUFFIX, SWAP_SUFFIX
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.cleaner.cleaned_log import CONFIG, Cleaned
from tests.support.cleaner.cleaning_history import CleaningHistory, limits
from tests.support.logs.log_ledger import read_local

FAR = 2**31 - 1


def test_the_last_record_of_each_key_stays_where_it_was() -> None:
    cleaned = Cleaned()
    cleaned.put((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    cleaned.put((b"b", b"2"), (b"c", b"1"))
    cleaned.clean()
    assert cleaned.left() == [(2, b"a", b"2"), (3, b"b", b"2"), (4, b"c", b"1")]
    assert cleaned.log.reader.read(0, 1000, Isolation.LOG_END).next_offset > 2
    assert [(header.base_offset, header.last_offset) for header in cleaned.headers()] == [(0, 2), (3, 4)]


def test_nothing_is_done_where_nothing_may_be_cleaned() -> None:
    cleaned = Cleaned()
    cleaned.put((b"a", b"1"), (b"a", b"2"))
    to_clean = LogToClean(cleaned.log, 0, 0, 0, 0, 0)
    result = LogCleaner(cleaned.machine.clock, SequentialIds()).clean(to_clean, limits())
    assert result.end_offset == 0
    assert len(cleaned.left()) == 2


@pytest.mark.parametrize("codec", list(Codec))
def test_batches_keep_their_codec(codec: Codec) -> None:
    cleaned = Cleaned(dataclasses.replace(CONFIG, segment_bytes=1 << 20))
    value = b"x" * 200
    cleaned.put((b"a", value), (b"b", value), (b"c", None), codec=codec)
    cleaned.put((b"a", b"2"))
    cleaned.clean()
    assert cleaned.left() == [(1, b"b", value), (2, b"c", None), (3, b"a", b"2")]
    assert [header.codec for header in cleaned.headers()] == [codec, Codec.NONE]
    assert cleaned.headers()[0].delete_horizon_ms == cleaned.machine.clock.now_ms() + 1000
    times = [one.timestamp_ms for one in read_local(cleaned.log)]
    assert times == [cleaned.machine.clock.now_ms()] * 3, "a horizon does not alter a record's time"
    cleaned.machine.clock.advance(1000)
    cleaned.put((b"b", b"2"))
    cleaned.clean()
    assert [key for _, key, _ in cleaned.left()] == [b"a", b"b"]


def test_a_segment_of_which_nothing_stays_keeps_its_last_batch_empty() -> None:
    cleaned = Cleaned(dataclasses.replace(CONFIG, segment_bytes=1024))
    for number in range(40):
        cleaned.put((b"a", b"%d" % number), (b"b", b"x" * 50))
    before = cleaned.log.reader.segments()
    assert len(before) > 4
    cleaned.clean()
    infos = cleaned.log.reader.segments()
    assert [info.base_offset for info in infos[: len(before)]] == [info.base_offset for info in before]
    assert infos[0].size_bytes == 61
    assert [header.records_count for header in cleaned.headers()][:3] == [0, 0, 0]
    assert cleaned.log.offsets.log_start_offset == 0
    assert cleaned.log.reader.read(0, 100, Isolation.LOG_END).next_offset > 0, (
        "the log's start can still be read"
    )
    cleaned.put((b"b", b"y"))
    cleaned.clean()
    # Together they fit into one segment, whose last batch says where it ends.
    assert len(cleaned.log.local_log.segments) == 2
    assert cleaned.left() == [(78, b"a", b"39"), (80, b"b", b"y")]
    assert len(cleaned.headers()) == 2


def test_a_full_map_ends_the_clean_and_the_next_one_goes_on_there() -> None:
    cleaned = Cleaned()
    cleaned.put(*((b"k%d" % number, b"1") for number in range(10)))
    cleaned.put(*((b"k%d" % number, b"2") for number in range(10)))
    ends: list[int] = []
    while cleaned.end_offset < 20:
        cleaned.clean(limits(4, load_factor=1.0))
        ends.append(cleaned.end_offset)
        assert cleaned.result.stats.is_map_full == (cleaned.end_offset < 20)
    assert ends == sorted(set(ends))
    assert len(ends) == 5
    assert cleaned.left() == [(10 + number, b"k%d" % number, b"2") for number in range(10)]


def test_a_map_with_room_for_one_key_still_makes_progress() -> None:
    cleaned = Cleaned()
    for number in range(6):
        cleaned.put((b"k%d" % (number % 2), b"%d" % number))
    for _ in range(6):
        cleaned.clean(limits()._replace(map_bytes=1, map_load_factor=0.01))
    assert cleaned.end_offset == 6
    assert cleaned.left() == [(4, b"k0", b"4"), (5, b"k1", b"5")]


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


def test_a_batch_that_is_larger_than_the_window_is_cleaned_as_any_other() -> None:
    cleaned = Cleaned(dataclasses.replace(CONFIG, segment_bytes=1 << 20))
    value = random.Random(1).randbytes(300_000)
    cleaned.put((b"a", b"1"))
    cleaned.put((b"b", value), (b"a", b"2"))
    cleaned.put((b"b", value[1:]), codec=Codec.GZIP)
    cleaned.put((b"c", b"1"))
    cleaned.clean(limits(io_buffer_bytes=1))
    assert cleaned.left() == [(2, b"a", b"2"), (3, b"b", value[1:]), (4, b"c", b"1")]


def test_records_below_the_log_start_go_and_do_not_count() -> None:
    cleaned = Cleaned()
    cleaned.put((b"a", b"1"), (b"b", b"1"), (b"c", b"1"))
    cleaned.put((b"d", b"1"))
    cleaned.log.increment_log_start_offset(2)
    cleaned.clean()
    assert [(header.base_offset, header.records_count) for header in cleaned.headers()] == [(0, 1), (3, 1)]
    assert cleaned.left() == [(2, b"c", b"1"), (3, b"d", b"1")]
    # All of a segment below it but the last batch, and then all of it.
    cleaned.log.increment_log_start_offset(4)
    cleaned.put((b"e", b"1"))
    cleaned.clean()
    assert cleaned.left() == [(4, b"e", b"1")]


def test_a_producer_is_remembered_by_its_last_batch_also_below_the_log_start() -> None:
    cleaned = Cleaned()
    cleaned.put((b"c", b"1"))
    cleaned.put_as(1, 0, (b"a", b"1"), (b"b", b"1"))
    cleaned.end(1, committed=False)
    cleaned.put((b"b", b"1"))
    cleaned.log.increment_log_start_offset(4)
    for _ in range(3):
        cleaned.clean(all_dirty=True)
        cleaned.machine.clock.advance(2000)
    headers = [(header.base_offset, header.records_count) for header in cleaned.headers()]
    assert headers == [(1, 0), (3, 1), (4, 1)], "the transaction is ended as long as there is a batch of it"
    cleaned.log.flusher.flush()
    cleaned.machine.kill()
    for name in cleaned.machine.disk.list_directory(cleaned.log.local_log.directory):
        if name.endswith(".snapshot"):
            cleaned.machine.disk.unlink(f"{cleaned.log.local_log.directory}/{name}")
    cleaned.log = cleaned.machine.start()
    assert cleaned.log.offsets.last_stable_offset == cleaned.log.offsets.log_end_offset
    assert cleaned.log.producers()[0].next_sequence == 2


def test_segments_behind_the_end_of_the_map_are_left_alone() -> None:
    cleaned = Cleaned()
    for number in range(4):
        cleaned.put((b"k%d" % number, b"1"))
        cleaned.log.roll()
    before = cleaned.log.local_log.segments
    cleaned.clean(limits(2, load_factor=1.0))
    assert cleaned.end_offset == 2
    assert cleaned.log.local_log.segments[-3:] == before[-3:]
    assert cleaned.result.stats.cleaned_segment_count == 2


def test_aborted_data_goes_and_its_marker_follows_two_cleans_later() -> None:
    cleaned = Cleaned()
    cleaned.put((b"a", b"0"))
    cleaned.put_as(1, 0, (b"a", b"1"))
    cleaned.end(1, committed=False)
    cleaned.put_as(1, 1, (b"b", b"1"))
    cleaned.end(1, committed=True)

    def markers() -> list[tuple[int, bool]]:
        return [
            (header.base_offset, header.delete_horizon_ms is not None)
            for header in cleaned.headers()
            if header.is_control
        ]

    cleaned.clean()
    assert [(offset, key) for offset, key, _ in cleaned.left() if key in (b"a", b"b")] == [
        (0, b"a"),
        (3, b"b"),
    ]
    assert markers() == [(2, False), (4, False)], "both had data when this clean came by"
    assert len(cleaned.log.reader.aborted_transactions(0, 5)) == 1
    cleaned.clean(all_dirty=True)
    assert markers() == [(2, True), (4, False)]
    cleaned.machine.clock.advance(999)
    cleaned.clean(all_dirty=True)
    assert markers() == [(2, True), (4, False)]
    cleaned.machine.clock.advance(1)
    cleaned.clean(all_dirty=True)
    assert markers() == [(4, False)], "data of the other is there"
    assert cleaned.log.reader.aborted_transactions(0, 5) == ()
    assert not any(segment.has_aborted for segment in cleaned.log.local_log.segments)


def test_a_marker_in_another_group_than_its_data_stays_as_long_as_these() -> None:
    cleaned = Cleaned(dataclasses.replace(CONFIG, segment_bytes=1024))
    cleaned.put_as(1, 0, (b"a", b"1"))
    for number in range(20):
        cleaned.put((b"k%d" % number, b"x" * 60))
    cleaned.end(1, committed=True)
    assert len(cleaned.log.local_log.segments) > 2
    for _ in range(3):
        cleaned.clean(all_dirty=True)
        cleaned.machine.clock.advance(2000)
    assert cleaned.left()[0] == (0, b"a", b"1")
    assert any(header.is_control for header in cleaned.headers())


def test_the_last_batch_of_a_producer_stays_empty_and_its_marker_with_it() -> None:
    cleaned = Cleaned()
    cleaned.put_as(1, 0, (b"a", b"1"), (b"b", b"1"))
    cleaned.end(1, committed=False)
    cleaned.put((b"c", b"1"))
    for _ in range(4):
        cleaned.clean(all_dirty=True)
        cleaned.machine.clock.advance(2000)
    assert [header.records_count for header in cleaned.headers()] == [0, 1, 1]
    [entry] = cleaned.log.producers()
    assert entry.next_sequence == 2
    cleaned.machine.stop()
    cleaned.log = cleaned.machine.start()
    assert cleaned.log.producers()[0].next_sequence == 2
    cleaned.put_as(1, 2, (b"a", b"2"))


def test_control_records_of_other_types_are_nobodys_to_drop() -> None:
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


@pytest.mark.parametrize("step", [1, 3, 6, 7, 9])
def test_segments_that_go_during_a_clean_end_it(step: int) -> None:
    cleaned = Cleaned(dataclasses.replace(CONFIG, segment_bytes=1024))
    for number in range(40):
        cleaned.put((b"k%d" % (number % 30), b"x" * 50))
    count = 0

    def drop() -> None:
        nonlocal count
        count += 1
        if count == step:
            cleaned.log.increment_log_start_offset(cleaned.log.offsets.log_end_offset)
            cleaned.log.retention.delete_old_segments()

    with pytest.raises(CleaningAbortedError):
        cleaned.clean(limits(on_step=drop))
    assert cleaned.unfinished() == []
    cleaned.log.check()
    assert cleaned.left() == []


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
        damaged = bytearray(data)
        damaged[position] ^= 1
        write_file(cleaned.machine.disk, segment.path, bytes(damaged))
        with pytest.raises(CorruptRecordError) as caught:
            cleaned.clean()
        assert caught.value.fields["path"] == segment.path
        assert cleaned.unfinished() == []
        assert cleaned.machine.disk.read_file(segment.path) == bytes(damaged)
    write_file(cleaned.machine.disk, segment.path, data)
    cleaned.clean()
    assert cleaned.left() == [(2, b"b", b"1"), (3, b"a", b"3")]


def write_file(disk: object, path: str, data: bytes) -> None:
    assert isinstance(disk, MemoryFileSystem)
    file = disk.open_append(path)
    file.truncate(0)
    file.append([data])
    file.close()


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


def test_the_old_files_are_unlinked_after_their_delay() -> None:
    cleaned = Cleaned()
    cleaned.put((b"a", b"1"), (b"a", b"2"))
    cleaned.clean()
    assert any(
        ".deleted" in name for name in cleaned.machine.disk.list_directory(cleaned.log.local_log.directory)
    )
    cleaned.machine.clock.advance(CONFIG.file_delete_delay_ms)
    assert not any(
        ".deleted" in name for name in cleaned.machine.disk.list_directory(cleaned.log.local_log.directory)
    )


def test_offsets_that_are_too_far_apart_are_not_cleaned_into_one_segment() -> None:
    cleaned = Cleaned()

    def put_at(offset: int, key: bytes) -> None:
        batch = encode_batch([Record(0, 1, key, b"1")], base_offset=offset, leader_epoch=1)
        cleaned.log.appender.append_as_follower(batch)
        cleaned.log.roll()

    for offset, key in ((0, b"a"), (FAR, b"b"), (FAR + 1, b"a"), (2 * FAR + 5, b"c")):
        put_at(offset, key)
    assert len(cleaned.log.local_log.segments.sealed) == 4
    cleaned.clean()
    assert [key for _, key, _ in cleaned.left()] == [b"b", b"a", b"c"]
    # The first two are as far apart as an index can say; the others are too far from the first.
    assert [info.base_offset for info in cleaned.log.reader.segments()][1:2] == [FAR + 1]
    records = read_local(cleaned.log)
    cleaned.log.flusher.flush()
    cleaned.machine.kill()
    cleaned.log = cleaned.machine.start()
    assert read_local(cleaned.log) == records


def test_producer_snapshots_of_segments_that_are_one_now_go_with_them() -> None:
    cleaned = Cleaned(dataclasses.replace(CONFIG, segment_bytes=1 << 20))
    for number in range(4):
        cleaned.put_as(1, number, (b"k", b"1"))
        cleaned.end(1, committed=True)
        cleaned.log.roll()
    cleaned.clean()
    names = cleaned.machine.disk.list_directory(cleaned.log.local_log.directory)
    assert [int(name.removesuffix(".snapshot")) for name in names if name.endswith(".snapshot")] == [8]
