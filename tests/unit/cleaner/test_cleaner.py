"""One clean after the other, each for one rule; histories of all kinds are in tests/property."""

from __future__ import annotations

import dataclasses
import random

import pytest

from stratalog.base.errors import CorruptRecordError
from stratalog.base.types import Durability
from stratalog.cleaner.clean_result import CleanLimits
from stratalog.cleaner.cleaner import Cleaner
from stratalog.cleaner.cleaning_state import CleaningAbortedError
from stratalog.cleaner.log_to_clean import LogToClean
from stratalog.log.isolation import Isolation
from stratalog.log.log_config import UNLIMITED, LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.record.batch import batches
from stratalog.record.batch_producer import BatchProducer
from stratalog.record.builder import encode_batch
from stratalog.record.compression import Codec
from stratalog.record.control_key import ControlKey
from stratalog.record.end_transaction_marker import ControlType, EndTransactionMarker
from stratalog.record.header import BatchHeader
from stratalog.record.offset_map import OffsetMap
from stratalog.record.record import Record
from stratalog.segment.file_names import CLEANED_SUFFIX, SWAP_SUFFIX
from stratalog.testing.cleaning_history import CleaningHistory, limits
from stratalog.testing.log_ledger import read_local
from stratalog.testing.log_machine import LogMachine
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds

CONFIG = LogConfig(
    retention_ms=UNLIMITED,
    segment_bytes=4096,
    index_interval_bytes=100,
    remote_storage_enable=False,
    delete_retention_ms=1000,
)
FAR = 2**31 - 1


class Cleaned:
    """A log, a cleaner and what is clean so far."""

    def __init__(self, config: LogConfig = CONFIG) -> None:
        self.machine = LogMachine(MemoryFileSystem(), config)
        self.log: UnifiedLog = self.machine.start()
        self.end_offset = 0

    def put(self, *pairs: tuple[bytes, bytes | None], codec: Codec = Codec.NONE) -> None:
        now_ms = self.machine.clock.now_ms()
        records = [Record(0, now_ms, key, value) for key, value in pairs]
        self.log.append_as_leader(encode_batch(records, codec=codec), 1)

    def put_as(self, producer_id: int, sequence: int, *pairs: tuple[bytes, bytes | None]) -> None:
        records = [Record(0, self.machine.clock.now_ms(), key, value) for key, value in pairs]
        producer = BatchProducer(producer_id, 0, sequence, is_transactional=True)
        self.log.append_as_leader(encode_batch(records, producer=producer), 1)

    def end(self, producer_id: int, *, committed: bool) -> None:
        self.log.append_end_transaction_marker(producer_id, 0, 1, committed=committed, leader_epoch=1)

    def clean(self, made: CleanLimits | None = None, *, all_dirty: bool = False) -> None:
        """Everything but what is written to."""
        log = self.log
        log.roll()
        stop_offset = min(log.active_base_offset, log.last_stable_offset)
        first_offset = log.log_start_offset if all_dirty else max(self.end_offset, log.log_start_offset)
        to_clean = LogToClean(log, first_offset, stop_offset, 0, 1, 0)
        cleaner = Cleaner(self.machine.clock, SequentialIds())
        self.result = cleaner.clean(to_clean, limits() if made is None else made)
        self.end_offset = self.result.end_offset
        log.check()

    def left(self) -> list[tuple[int, bytes | None, bytes | None]]:
        """What is read now, markers included."""
        return [(one.offset, one.key, one.value) for one in read_local(self.log)]

    def headers(self) -> list[BatchHeader]:
        return [located.header for segment in self.log.local_segments for located in segment.batches()]

    def unfinished(self) -> list[str]:
        names = self.machine.disk.list_directory(self.log.directory)
        return [name for name in names if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX))]


def test_the_last_record_of_each_key_stays_where_it_was() -> None:
    cleaned = Cleaned()
    cleaned.put((b"a", b"1"), (b"b", b"1"), (b"a", b"2"))
    cleaned.put((b"b", b"2"), (b"c", b"1"))
    cleaned.clean()
    assert cleaned.left() == [(2, b"a", b"2"), (3, b"b", b"2"), (4, b"c", b"1")]
    assert cleaned.log.read(0, 1000, Isolation.LOG_END).next_offset > 2
    assert [(header.base_offset, header.last_offset) for header in cleaned.headers()] == [(0, 2), (3, 4)]


def test_nothing_is_done_where_nothing_may_be_cleaned() -> None:
    cleaned = Cleaned()
    cleaned.put((b"a", b"1"), (b"a", b"2"))
    to_clean = LogToClean(cleaned.log, 0, 0, 0, 0, 0)
    result = Cleaner(cleaned.machine.clock, SequentialIds()).clean(to_clean, limits())
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


def test_a_tombstone_stays_for_its_time_after_the_first_clean() -> None:
    cleaned = Cleaned()
    cleaned.put((b"a", b"1"), (b"a", None))
    cleaned.machine.clock.advance(100_000)
    cleaned.clean()
    assert cleaned.left() == [(1, b"a", None)], "the time begins with the clean"
    cleaned.machine.clock.advance(999)
    cleaned.put((b"x", b"1"))
    cleaned.clean()
    assert (1, b"a", None) in cleaned.left()
    cleaned.machine.clock.advance(1)
    cleaned.put((b"x", b"2"))
    cleaned.clean()
    assert cleaned.left() == [(3, b"x", b"2")]


def test_a_tombstone_that_never_goes_has_the_furthest_horizon_there_is() -> None:
    cleaned = Cleaned(dataclasses.replace(CONFIG, delete_retention_ms=2**63 - 1))
    cleaned.put((b"a", b"1"), (b"a", None))
    cleaned.clean()
    assert [header.delete_horizon_ms for header in cleaned.headers()] == [2**62]
    assert [one.timestamp_ms for one in read_local(cleaned.log)] == [cleaned.machine.clock.now_ms()]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.ZSTD])
def test_the_time_of_a_tombstone_waits_for_all_of_its_batch(codec: Codec) -> None:
    cleaned = Cleaned()
    cleaned.put((b"a", None), (b"b", b"1"), (b"c", None), (b"d", b"1"), codec=codec)
    cleaned.clean(limits(2, load_factor=1.0))
    assert cleaned.end_offset == 2
    assert [header.delete_horizon_ms for header in cleaned.headers()] == [None]
    cleaned.machine.clock.advance(100)
    cleaned.clean(limits(100))
    assert cleaned.end_offset == 4
    horizons = [header.delete_horizon_ms for header in cleaned.headers()]
    assert horizons == [cleaned.machine.clock.now_ms() + 1000]
    assert [key for _, key, _ in cleaned.left()] == [b"a", b"b", b"c", b"d"]


def test_the_batch_before_the_high_watermark_stays() -> None:
    cleaned = Cleaned(dataclasses.replace(CONFIG, min_durability=Durability.DISK))
    cleaned.put((b"a", b"1"))
    now_ms = cleaned.machine.clock.now_ms()
    for _ in range(2):
        cleaned.log.append_as_leader(encode_batch([Record(0, now_ms, None, b"without a key")]), 1)
    cleaned.log.flush()
    cleaned.put((b"b", b"1"))
    assert cleaned.log.high_watermark == 3
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

    def noting_map(secret: bytes, slot_count: int, load_factor: float) -> OffsetMap:
        used.append(secret)
        return OffsetMap(secret, slot_count, load_factor)

    monkeypatch.setattr(noting_map, "slots_for", OffsetMap.slots_for, raising=False)
    monkeypatch.setattr("stratalog.cleaner.cleaner.OffsetMap", noting_map)
    cleaned = Cleaned()
    cleaner = Cleaner(cleaned.machine.clock, NotingIds())
    cleaned.put((b"a", b"1"))
    cleaned.log.roll()
    for _ in range(2):
        cleaner.clean(LogToClean(cleaned.log, 0, 1, 0, 1, 0), limits())
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
    least_bytes = stats.mapped_bytes + stats.bytes_in + 2 * stats.bytes_out
    assert least_bytes <= throttled < least_bytes + 100


def test_a_segment_of_which_nothing_stays_keeps_its_last_batch_empty() -> None:
    cleaned = Cleaned(dataclasses.replace(CONFIG, segment_bytes=1024))
    for number in range(40):
        cleaned.put((b"a", b"%d" % number), (b"b", b"x" * 50))
    before = cleaned.log.segments()
    assert len(before) > 4
    cleaned.clean()
    infos = cleaned.log.segments()
    assert [info.base_offset for info in infos[: len(before)]] == [info.base_offset for info in before]
    assert infos[0].size_bytes == 61
    assert [header.records_count for header in cleaned.headers()][:3] == [0, 0, 0]
    assert cleaned.log.log_start_offset == 0
    assert cleaned.log.read(0, 100, Isolation.LOG_END).next_offset > 0, "the log's start can still be read"
    cleaned.put((b"b", b"y"))
    cleaned.clean()
    # Together they fit into one segment, whose last batch says where it ends.
    assert len(cleaned.log.local_segments) == 2
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
    assert cleaned.result.stats.map_max_entries < 10
    assert not cleaned.result.stats.is_map_full


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
    cleaned.log.flush()
    cleaned.machine.kill()
    for name in cleaned.machine.disk.list_directory(cleaned.log.directory):
        if name.endswith(".snapshot"):
            cleaned.machine.disk.unlink(f"{cleaned.log.directory}/{name}")
    cleaned.log = cleaned.machine.start()
    assert cleaned.log.last_stable_offset == cleaned.log.log_end_offset
    assert cleaned.log.producers()[0].next_sequence == 2


def test_segments_behind_the_end_of_the_map_are_left_alone() -> None:
    cleaned = Cleaned()
    for number in range(4):
        cleaned.put((b"k%d" % number, b"1"))
        cleaned.log.roll()
    before = cleaned.log.local_segments
    cleaned.clean(limits(2, load_factor=1.0))
    assert cleaned.end_offset == 2
    assert cleaned.log.local_segments[-3:] == before[-3:]
    assert cleaned.result.stats.segments_in == 2


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
    assert len(cleaned.log.aborted_transactions(0, 5)) == 1
    cleaned.clean(all_dirty=True)
    assert markers() == [(2, True), (4, False)]
    cleaned.machine.clock.advance(999)
    cleaned.clean(all_dirty=True)
    assert markers() == [(2, True), (4, False)]
    cleaned.machine.clock.advance(1)
    cleaned.clean(all_dirty=True)
    assert markers() == [(4, False)], "data of the other is there"
    assert cleaned.log.aborted_transactions(0, 5) == ()
    assert not any(segment.has_aborted for segment in cleaned.log.local_segments)


def test_a_marker_in_another_group_than_its_data_stays_as_long_as_these() -> None:
    cleaned = Cleaned(dataclasses.replace(CONFIG, segment_bytes=1024))
    cleaned.put_as(1, 0, (b"a", b"1"))
    for number in range(20):
        cleaned.put((b"k%d" % number, b"x" * 60))
    cleaned.end(1, committed=True)
    assert len(cleaned.log.local_segments) > 2
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


def test_a_marker_whose_time_has_passed_leaves_nothing_behind() -> None:
    """Of its producer the log remembers no batch, only the epoch; an empty marker would not say that."""
    cleaned = Cleaned()
    cleaned.put_as(1, 0, (b"a", b"1"))
    cleaned.log.append_end_transaction_marker(1, 1, 1, committed=True, leader_epoch=1)
    cleaned.put((b"a", b"2"))
    assert [entry.batches for entry in cleaned.log.producers()] == [()]
    for _ in range(4):
        cleaned.clean(all_dirty=True)
        cleaned.machine.clock.advance(2000)
    assert [(header.base_offset, header.records_count) for header in cleaned.headers()] == [(2, 1)]


def test_control_records_of_other_types_are_nobodys_to_drop() -> None:
    cleaned = Cleaned()
    other = encode_batch(
        [Record(0, 1, ControlKey(0, 2).pack(), b"")],
        producer=BatchProducer(1, 0, is_transactional=True),
        is_control=True,
        leader_epoch=1,
    )
    cleaned.log.append_as_follower(other)
    marker = EndTransactionMarker(ControlType.COMMIT, 0)
    cleaned.log.append_as_follower(marker.to_batch(7, 0, 1, base_offset=1, leader_epoch=1))
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
        names = history.machine.disk.list_directory(history.log.directory)
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
            cleaned.log.increment_log_start_offset(cleaned.log.log_end_offset)
            cleaned.log.delete_old_segments()

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
    cleaned.log.flush()
    [segment, _] = cleaned.log.local_segments
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
    for number, segment in enumerate(cleaned.log.local_segments.sealed):
        disk.set_modified_ms(segment.path, [5000, 9000, 7000][number])
    cleaned.clean()
    [first, _] = cleaned.log.local_segments
    assert disk.modified_ms(first.path) == 9000


def test_the_old_files_are_unlinked_after_their_delay() -> None:
    cleaned = Cleaned()
    cleaned.put((b"a", b"1"), (b"a", b"2"))
    cleaned.clean()
    assert any(".deleted" in name for name in cleaned.machine.disk.list_directory(cleaned.log.directory))
    cleaned.machine.clock.advance(CONFIG.file_delete_delay_ms)
    assert not any(".deleted" in name for name in cleaned.machine.disk.list_directory(cleaned.log.directory))


def test_offsets_that_are_too_far_apart_are_not_cleaned_into_one_segment() -> None:
    cleaned = Cleaned()

    def put_at(offset: int, key: bytes) -> None:
        batch = encode_batch([Record(0, 1, key, b"1")], base_offset=offset, leader_epoch=1)
        cleaned.log.append_as_follower(batch)
        cleaned.log.roll()

    for offset, key in ((0, b"a"), (FAR, b"b"), (FAR + 1, b"a"), (2 * FAR + 5, b"c")):
        put_at(offset, key)
    assert len(cleaned.log.local_segments.sealed) == 4
    cleaned.clean()
    assert [key for _, key, _ in cleaned.left()] == [b"b", b"a", b"c"]
    # The first two are as far apart as an index can say; the others are too far from the first.
    assert [info.base_offset for info in cleaned.log.segments()][1:2] == [FAR + 1]
    records = read_local(cleaned.log)
    cleaned.log.flush()
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
    names = cleaned.machine.disk.list_directory(cleaned.log.directory)
    assert [int(name.removesuffix(".snapshot")) for name in names if name.endswith(".snapshot")] == [8]
