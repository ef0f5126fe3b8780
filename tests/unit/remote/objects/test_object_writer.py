"""An object says of its slices what an independent look at their records says, however its pieces arrived."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import CorruptRecordError, UnsupportedOperationError
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.batch import batches, decode
from stratalog.record.builder import encode_batch, rebuild_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import (
    CONTROL_BIT,
    MAGIC_POSITION,
    TRANSACTIONAL_BIT,
    parse_header,
)
from stratalog.record.native.kernels import encode_records, siphash128
from stratalog.record.record import Record
from stratalog.remote.objects.key_stream import KeyHashing, key_blocks
from stratalog.remote.objects.object_directory import read_slice_index
from stratalog.remote.objects.object_format import ObjectHeader, ObjectKind, crc_of
from stratalog.remote.objects.object_ref import format_object_name
from stratalog.remote.objects.object_writer import FinishedObject, ObjectWriter, ObjectWriterSettings
from stratalog.remote.objects.slice_builder import SliceEnd
from stratalog.remote.objects.slice_entry import LeaderEpoch, OpenTransaction, SliceEntry
from stratalog.remote.objects.spool import Spool
from stratalog.remote.store_layout import StoreLayout
from stratalog.segment.split_batch import SplitBatch
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.decoded_records import decode_all
from tests.support.logs.damaged_batches import with_attributes
from tests.support.tiered.object_audit import audit_object, describe_object

LAYOUT = StoreLayout(0)
NAME = format_object_name(7, UUID(int=99))
TOPIC_ID = UUID(int=5)
HASHING = KeyHashing(b"sixteen secret b")

Slices = dict[int, list[bytes]]
CODECS = tuple(Codec)


def record_of(seed: int) -> Record:
    """One of few keys, timestamps around zero, and a value of some size or none."""
    value = None if seed % 5 == 0 else b"v" * (seed % 23)
    return Record(0, seed % 56 - 5, b"abcd"[seed % 4 :][:1], value)


@st.composite
def batch_runs(draw: st.DrawFn) -> list[bytes]:
    """Batches of a partition with holes between them, codecs and epochs of all sorts, timestamps out of
    order.

    Everything about a batch comes from a few bytes, because drawing each record by itself takes most of the
    time.
    """
    offset, epoch = draw(st.integers(0, 100)), 0
    row: list[bytes] = []
    for seeds in draw(st.lists(st.binary(min_size=2, max_size=7), min_size=1, max_size=5)):
        offset += seeds[0] % 4
        epoch += seeds[0] // 4 % 2
        codec = CODECS[seeds[0] // 8 % 3]
        found = [record_of(seed) for seed in seeds[1:]]
        row.append(encode_batch(found, codec=codec, base_offset=offset, leader_epoch=epoch))
        offset += len(found)
    return row


def header() -> ObjectHeader:
    return ObjectHeader(store_id=UUID(int=1), shard=0, epoch=3, kind=ObjectKind.UPLOAD, name=NAME)


def filesystem() -> MemoryFileSystem:
    made = MemoryFileSystem()
    made.make_directories("/spool")
    return made


def settings(memory_bytes: int = 1 << 20, index_interval_bytes: int = 100) -> ObjectWriterSettings:
    return ObjectWriterSettings(
        spool_directory="/spool", memory_bytes=memory_bytes, index_interval_bytes=index_interval_bytes
    )


def next_offset(row: Sequence[bytes]) -> int:
    return parse_header(row[-1]).next_offset


def write(
    writer: ObjectWriter, slices: Slices, *, hashing: KeyHashing | None = HASHING, batches_a_piece: int = 100
) -> FinishedObject:
    for partition, row in sorted(slices.items()):
        base_offset = parse_header(row[0]).base_offset
        writer.begin_slice(TOPIC_ID, "t", partition, base_offset=base_offset, key_hashing=hashing)
        for start in range(0, len(row), batches_a_piece):
            writer.append(b"".join(row[start : start + batches_a_piece]))
        writer.end_slice(SliceEnd(next_offset(row)))
    return writer.finish()


def content(finished: FinishedObject) -> bytes:
    return b"".join(bytes(part) for part in finished.parts)


def expected_keys(row: Sequence[bytes]) -> list[tuple[int, int, int, bool]]:
    """(hash, ordinal, tombstone) of the last record of each key, by hash: straight from the definition."""
    last: dict[bytes, tuple[int, bool]] = {}
    for ordinal, record in enumerate(decode_all(b"".join(row))):
        if record.key is not None:
            last[record.key] = (ordinal, record.value is None)
    found = [(*siphash128(HASHING.hash_key, key), *value) for key, value in last.items()]
    return sorted(found)


def found_keys(store: MemoryObjectStore, entry: SliceEntry) -> list[tuple[int, int, int, bool]]:
    stream = entry.key_stream
    assert stream is not None
    data = (
        store.get_range(LAYOUT.data_key(NAME), stream.position, stream.size_bytes)
        if stream.size_bytes
        else b""
    )
    found: list[tuple[int, int, int, bool]] = []
    for block in key_blocks(data, stream, entry.record_count):
        columns = (
            block.hash_high.cast("Q").tolist(),
            block.hash_low.cast("Q").tolist(),
            block.ordinal.cast("I").tolist(),
            map(bool, block.tombstone.tolist()),
        )
        found += zip(*columns, strict=True)
    return found


def check_entry(store: MemoryObjectStore, entry: SliceEntry, row: Sequence[bytes]) -> None:
    """Compare an entry with the records that it is about."""
    data = b"".join(row)
    found = decode_all(data)
    timestamps = [record.timestamp_ms for record in found]
    headers = [batch for _, batch in batches(data)]
    assert store.get_range(LAYOUT.data_key(NAME), entry.data_position, entry.data_bytes) == data
    assert entry.data_crc == crc_of(data)
    assert entry.record_count == len(found)
    assert (entry.base_offset, entry.end_offset) == (headers[0].base_offset, headers[-1].next_offset)
    assert (entry.min_timestamp, entry.max_timestamp) == (min(timestamps), max(timestamps))
    first_latest = next(record for record in found if record.timestamp_ms == max(timestamps))
    assert entry.max_timestamp_offset == first_latest.offset
    assert entry.codec_mask == sum({1 << batch.codec for batch in headers})
    assert entry.tombstone_count == sum(record.value is None for record in found)
    last = headers[-1]
    assert entry.last_batch == (last.base_offset, last.leader_epoch, last.crc)
    assert found_keys(store, entry) == expected_keys(row)


def check_index(
    store: MemoryObjectStore, entry: SliceEntry, row: Sequence[bytes], interval_bytes: int
) -> None:
    index = read_slice_index(store, LAYOUT, NAME, entry)
    data = b"".join(row)
    for number in range(index.interval_count):
        interval = index.interval(number)
        piece = data[interval.position : interval.end_position]
        assert parse_header(piece).base_offset == interval.base_offset
        assert index.max_timestamps[number] == max(record.timestamp_ms for record in decode_all(piece))
        last_bytes = [batch.size_in_bytes for _, batch in batches(piece)][-1]
        assert len(piece) - last_bytes < interval_bytes, "an interval ends with the batch that fills it"
        assert number + 1 == index.interval_count or len(piece) >= interval_bytes


@given(st.dictionaries(st.integers(0, 5), batch_runs(), min_size=1, max_size=4), st.integers(1, 400))
def test_an_object_describes_what_it_holds(slices: Slices, interval_bytes: int) -> None:
    store = MemoryObjectStore(ManualClock())
    with ObjectWriter(filesystem(), header(), settings(index_interval_bytes=interval_bytes)) as writer:
        finished = write(writer, slices)
        finished.store(store, LAYOUT)
    described = describe_object(store, LAYOUT, NAME)
    assert described == (header(), finished.ref, finished.entries)
    audit_object(store, LAYOUT, finished.ref)
    assert [entry.partition for entry in finished.entries] == sorted(slices)
    for entry in finished.entries:
        check_entry(store, entry, slices[entry.partition])
        check_index(store, entry, slices[entry.partition], interval_bytes)


@given(st.dictionaries(st.integers(0, 5), batch_runs(), min_size=1, max_size=3), st.integers(1, 3))
def test_pieces_and_spools_make_no_difference(slices: Slices, batches_a_piece: int) -> None:
    with ObjectWriter(filesystem(), header(), settings()) as writer:
        expected = content(write(writer, slices))
    disk = filesystem()
    with ObjectWriter(disk, header(), settings(memory_bytes=0)) as writer:
        finished = write(writer, slices, batches_a_piece=batches_a_piece)
        assert content(finished) == expected
        assert content(finished) == expected, "parts can be read again"
    assert disk.list_directory("/spool") == []


def test_a_slice_whose_records_are_all_gone_still_covers_its_range() -> None:
    store = MemoryObjectStore(ManualClock())
    with ObjectWriter(filesystem(), header(), settings()) as writer:
        writer.begin_slice(TOPIC_ID, "t", 0, base_offset=10, key_hashing=HASHING)
        writer.end_slice(SliceEnd(20, leader_epochs=(LeaderEpoch(1, 12),)))
        finished = writer.finish()
        finished.store(store, LAYOUT)
    (entry,) = finished.entries
    assert (entry.base_offset, entry.end_offset, entry.data_bytes, entry.record_count) == (10, 20, 0, 0)
    assert (entry.min_timestamp, entry.max_timestamp, entry.max_timestamp_offset) == (-1, -1, -1)
    assert entry.leader_epochs == (LeaderEpoch(1, 12),)
    assert entry.key_stream is not None, "an empty stream is as usable as any"
    audit_object(store, LAYOUT, finished.ref)


def test_each_damaged_byte_of_a_batch_in_two_pieces_is_found() -> None:
    batch = encode_batch([Record(0, 1, b"k", b"value")])
    with ObjectWriter(filesystem(), header(), settings()) as writer:
        writer.begin_slice(TOPIC_ID, "t", 0, base_offset=0, key_hashing=HASHING)
        for position in range(MAGIC_POSITION, len(batch)):
            damaged = bytearray(batch)
            damaged[position] ^= 1
            split = SplitBatch(batch[:MAGIC_POSITION], bytes(damaged[MAGIC_POSITION:]))
            with pytest.raises((CorruptRecordError, UnsupportedOperationError)):
                writer.append_split(split)
            assert (writer.next_offset, writer.data_bytes) == (0, 0)


def test_a_damaged_batch_is_not_taken_and_those_before_it_are() -> None:
    good = encode_batch([Record(0, 1, b"k", b"first")], base_offset=0)
    bad = bytearray(encode_batch([Record(0, 2, b"k", b"second")], base_offset=1))
    bad[-3] ^= 1
    with ObjectWriter(filesystem(), header(), settings()) as writer:
        writer.begin_slice(TOPIC_ID, "t", 0, base_offset=0, key_hashing=HASHING)
        with pytest.raises(CorruptRecordError):
            writer.append(good + bytes(bad))
        assert (writer.next_offset, writer.data_bytes) == (1, len(good))
        writer.end_slice(SliceEnd(writer.next_offset))
        writer.begin_slice(TOPIC_ID, "t", 1, base_offset=1)
        with pytest.raises(CorruptRecordError):
            writer.append(bytes(bad))
        writer.cancel_slice()
        finished = writer.finish()
    (entry,) = finished.entries
    assert (entry.end_offset, entry.record_count, entry.data_crc) == (1, 1, crc_of(good))


def test_more_records_than_ordinals_are_refused_before_they_count() -> None:
    small = ObjectWriterSettings(spool_directory="/spool", max_slice_record_count=3)
    two = [Record(0, 1, b"k", b"v")] * 2
    with ObjectWriter(filesystem(), header(), small) as writer:
        writer.begin_slice(TOPIC_ID, "t", 0, base_offset=0, key_hashing=HASHING)
        writer.append(encode_batch(two, base_offset=0))
        with pytest.raises(UnsupportedOperationError):
            writer.append(encode_batch(two, base_offset=2))
        writer.end_slice(SliceEnd(writer.next_offset))
        assert writer.finish().entries[0].record_count == 2


def test_a_stream_is_known_by_what_it_was_made_with() -> None:
    with ObjectWriter(filesystem(), header(), settings()) as writer:
        finished = write(writer, {0: [encode_batch([Record(0, 1, b"k", b"v")])]})
    stream = finished.entries[0].key_stream
    assert stream is not None
    assert HASHING.made(stream)
    assert not KeyHashing(b"another secret b").made(stream)
    assert HASHING.hash_key not in content(finished), "the key itself never leaves the catalog"


def test_the_callers_buffer_may_change_afterwards() -> None:
    batch = bytearray(encode_batch([Record(0, 7, b"k", b"v")], base_offset=0))
    expected = bytes(batch)
    store = MemoryObjectStore(ManualClock())
    with ObjectWriter(filesystem(), header(), settings()) as writer:
        writer.begin_slice(TOPIC_ID, "t", 0, base_offset=0, key_hashing=HASHING)
        writer.append(batch)
        batch[:] = bytes(len(batch))
        writer.end_slice(SliceEnd(1))
        finished = writer.finish()
        finished.store(store, LAYOUT)
    entry = finished.entries[0]
    data = store.get_range(LAYOUT.data_key(NAME), entry.data_position, entry.data_bytes)
    assert data == expected
    assert decode(data)[0].timestamp_ms == entry.max_timestamp == 7


@pytest.mark.parametrize(("behind", "is_kept"), [(10, True), (1_000, False)])
def test_a_small_part_does_not_keep_the_large_buffer_that_it_lies_in(behind: int, *, is_kept: bool) -> None:
    batch = encode_batch([Record(0, 7, b"k", b"v" * 100)], base_offset=0)
    buffer = batch + bytes(behind)
    spool = Spool(filesystem(), "/spool/1.scratch", 1 << 20)
    with ObjectWriter(filesystem(), header(), settings(), spool) as writer:
        writer.begin_slice(TOPIC_ID, "t", 0, base_offset=0)
        position = spool.size_bytes
        writer.append(memoryview(buffer)[: len(batch)])
        held = memoryview(spool.read_some_at(position, len(batch)))
        assert held == batch
        assert (held.obj is buffer) == is_kept
        writer.end_slice(SliceEnd(1))


TWO = [Record(0, 1, b"k", b"v")] * 2


@pytest.mark.parametrize(
    ("base_offset", "offsets", "is_taken"),
    [(0, (0, 0), False), (0, (0, 1), False), (0, (0, 2), True), (5, (4,), True), (6, (4,), False)],
)
def test_batches_ascend_from_the_start_of_their_slice(
    base_offset: int, offsets: Sequence[int], is_taken: bool
) -> None:
    """The first batch may begin below the slice, but not end there."""
    with ObjectWriter(filesystem(), header(), settings()) as writer:
        writer.begin_slice(TOPIC_ID, "t", 0, base_offset=base_offset)
        for offset in offsets[:-1]:
            writer.append(encode_batch(TWO, base_offset=offset))
        if is_taken:
            writer.append(encode_batch(TWO, base_offset=offsets[-1]))
            return
        with pytest.raises(CorruptRecordError) as caught:
            writer.append(encode_batch(TWO, base_offset=offsets[-1]))
        assert caught.value.fields["base_offset"] == offsets[-1]


def slice_of(
    row: Sequence[bytes], *, hashing: KeyHashing | None = HASHING, open_offsets: Sequence[int] = ()
) -> SliceEntry:
    with ObjectWriter(filesystem(), header(), settings()) as writer:
        writer.begin_slice(TOPIC_ID, "t", 0, base_offset=0, key_hashing=hashing)
        writer.append(b"".join(row))
        transactions = tuple(OpenTransaction(offset, offset) for offset in open_offsets)
        writer.end_slice(SliceEnd(writer.next_offset, open_transactions=transactions))
        finished = writer.finish()
    ref, (entry,) = finished.ref, finished.entries
    streams_bytes = ref.key_streams_end - ref.directory_position - ref.directory_bytes
    assert streams_bytes == (0 if entry.key_stream is None else entry.key_stream.size_bytes)
    return entry


def marked(bits: int) -> list[bytes]:
    """A record, a batch with these attribute bits and another record."""
    row = [encode_batch([Record(0, 9, b"k%d" % offset, b"v")], base_offset=offset) for offset in range(3)]
    row[1] = with_attributes(encode_batch([Record(0, 99, b"\0\0\0\1", None)], base_offset=1), bits)
    return row


def keyed(*keys: bytes | None) -> list[bytes]:
    """Batches of one record each."""
    return [encode_batch([Record(0, 1, key, b"v")], base_offset=offset) for offset, key in enumerate(keys)]


@pytest.mark.parametrize(
    ("row", "hashing", "open_offsets", "entry_count"),
    [
        (keyed(b"a", b"b", b"a"), HASHING, (), 2),
        (keyed(b"a"), None, (), None),
        (keyed(b"a", b"a"), HASHING, (1, 0), None),
        (keyed(None, b"a"), HASHING, (), None),
        (keyed(b"a", None, b"b"), HASHING, (), None),
        (marked(TRANSACTIONAL_BIT), HASHING, (), None),
        (marked(CONTROL_BIT), HASHING, (), 2),
    ],
    ids=["keys", "plain topic", "open", "first without key", "later without key", "transaction", "marker"],
)
def test_which_slices_have_a_key_stream(
    row: Sequence[bytes], hashing: KeyHashing | None, open_offsets: Sequence[int], entry_count: int | None
) -> None:
    """A stream covers all records: without keys or decided transactions there is none."""
    entry = slice_of(row, hashing=hashing, open_offsets=open_offsets)
    stream = entry.key_stream
    assert (None if stream is None else stream.entry_count) == entry_count
    assert entry.stable_end_offset == min(open_offsets, default=entry.end_offset)


def test_markers_count_as_records_without_keys_and_ordinals_go_on_behind_them() -> None:
    row = marked(CONTROL_BIT)
    store = MemoryObjectStore(ManualClock())
    with ObjectWriter(filesystem(), header(), settings()) as writer:
        finished = write(writer, {0: row})
        finished.store(store, LAYOUT)
    (entry,) = finished.entries
    assert (entry.record_count, entry.marker_count, entry.tombstone_count) == (3, 1, 0)
    assert (entry.max_timestamp, entry.max_timestamp_offset) == (99, 1)
    assert sorted(ordinal for _, _, ordinal, _ in found_keys(store, entry)) == [0, 2]
    entry = slice_of(marked(TRANSACTIONAL_BIT))
    assert (entry.tombstone_count, entry.max_timestamp) == (1, 99)


def test_the_earliest_delete_horizon_is_kept() -> None:
    row: list[bytes] = []
    for offset, horizon_ms in ((0, None), (1, 700), (2, 500)):
        batch = encode_batch([Record(0, 9, b"k", None)], base_offset=offset)
        head = parse_header(batch)
        # Timestamp deltas are relative to the horizon once there is one.
        payload = encode_records(
            [Record(0, 9, b"k", None)], head.base_timestamp if horizon_ms is None else horizon_ms
        )
        row.append(
            rebuild_batch(head, payload, records_count=1, max_timestamp=9, delete_horizon_ms=horizon_ms)
        )
    with ObjectWriter(filesystem(), header(), settings()) as writer:
        (entry,) = write(writer, {0: row}).entries
    assert entry.earliest_delete_horizon_ms == 500
    assert (entry.min_timestamp, entry.max_timestamp, entry.max_timestamp_offset) == (9, 9, 0)
