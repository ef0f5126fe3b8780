"""Builds one slice from its batches: statistics, index and key stream.

Every batch is proved before it counts (checksum, framing of all records): a tiered batch outlives its disk,
so damage must not become the truth. Kernels take plain batches, many with one call where they belong to one
interval of the index. Other batches, and batches out of order, are taken one by one here.

Control batches count as ordinals, records, times and markers, but have no key entries. A key stream covers
every record of its slice. Two kinds of slices get none and are hashed from their data when that is needed:

- Slices with transactional batches, unless their key stream is merged: only a compaction has left no aborted
  records in them. A slice with undecided records has none in any case.
- Slices with a record that has no key (from a time when the topic was plain): the record would be taken for
  an older one.

Where the highest version of a key stays, neither has a slice whose first batch begins below it: a record
there is deleted, and must not win.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import CorruptRecordError, UnsupportedOperationError
from stratalog.base.filesystem import Buffer
from stratalog.record.batch import crc_matches, records_payload
from stratalog.record.codecs.compression import Codec
from stratalog.record.header import CODEC_MASK, DELETE_HORIZON_BIT, BatchHeader, parse_header
from stratalog.record.native.batch_filter import INDEX_ROW_BYTES, CompactedSlices
from stratalog.record.native.batch_kernels import batches_crc, hash_batches, scan_batches
from stratalog.record.native.kernels import KeyEntries, hash_keys, joined_crc, scan_records, sort_key_entries
from stratalog.record.native.scanned_batches import ScannedBatches
from stratalog.remote.objects.key_stream import EncodedKeyStream, KeyHashing, encode_key_stream
from stratalog.remote.objects.object_format import crc_of
from stratalog.remote.objects.slice_entry import (
    NO_TIMESTAMP,
    KeyStreamRef,
    LastBatch,
    LeaderEpoch,
    OpenTransaction,
    PartRef,
    SliceEntry,
)
from stratalog.remote.objects.slice_index import (
    NO_PRODUCERS,
    SliceIndex,
    encode_index_columns,
    encode_slice_index,
)
from stratalog.segment.indexes.transaction_index import AbortedTransaction
from stratalog.segment.split_batch import SplitBatch

_NO_RECORDS = -(2**63)
"""Highest timestamp of an interval without records: below every real timestamp."""


class SliceStart(NamedTuple):
    """The partition and base offset of a slice, and how its keys are hashed if its topic is compacted."""

    topic_id: UUID
    topic: str
    partition: int
    base_offset: int
    key_hashing: KeyHashing | None

    @staticmethod
    def columns_of(starts: Sequence[SliceStart]) -> dict[str, Sequence[object]]:
        """The values of all of them by field."""
        return dict(zip(SliceStart._fields, zip(*starts, strict=True), strict=True))


class SliceEnd(NamedTuple):
    """The facts about a slice that its batches do not tell."""

    end_offset: int
    open_transactions: tuple[OpenTransaction, ...] = ()
    aborted: tuple[AbortedTransaction, ...] = ()
    producer_snapshot: bytes = NO_PRODUCERS
    producers_since: int | None = None
    """The offset since which the producers in the snapshot have changed, as in `SliceIndex`."""
    leader_epochs: tuple[LeaderEpoch, ...] = ()
    """Epochs of the slice's offsets; those whose batches are gone included."""


class MergedKeyStream(NamedTuple):
    """A key stream, mostly one that was made from those of other slices, and how its keys were hashed."""

    stream: EncodedKeyStream
    hashing: KeyHashing


class BuiltSlice(NamedTuple):
    """A slice whose key stream and index have sizes and checksums but no positions yet (0)."""

    entry: SliceEntry
    key_stream: EncodedKeyStream | None
    encoded_index: bytes


class SliceBuilder:
    """Builds one slice from its batches. Not thread-safe: guarded by the user of its `ObjectWriter`."""

    def __init__(
        self,
        start: SliceStart,
        *,
        data_position: int,
        index_interval_bytes: int,
        max_record_count: int,
    ) -> None:
        self.data_bytes = 0
        self.record_count = 0
        self.next_offset = start.base_offset
        """Exclusive end of the offsets that the batches so far cover."""
        self._start = start
        self._key_hashing = start.key_hashing
        self._data_position = data_position
        self._data_crc = 0
        self._summed_bytes = 0
        self._max_record_count = max_record_count
        self._timestamps: tuple[int, int] | None = None
        self._max_timestamp_offset = -1
        self._codec_mask = 0
        self._tombstone_count = 0
        self._marker_count = 0
        self._horizon_ms: int | None = None
        self._last_batch: LastBatch | None = None
        self._is_transactional = False
        self._has_keyless = False
        self._entries = self._new_entries()
        self._index_interval_bytes = index_interval_bytes
        self._positions: array[int] = array("q")
        self._base_offsets: array[int] = array("q")
        self._max_timestamps: array[int] = array("q")

    def add(self, data: Buffer, position: int, payload: Buffer | None = None) -> int:
        """Add batches that begin at `position` of `data`: as many as one kernel call takes, at least one.
        Returns the position behind them. `payload`: the decompressed records, if `data` is one batch and they
        are at hand.

        Raises CorruptRecordError for a batch that is damaged or out of order, UnsupportedOperationError for
        more records than a slice can hold or a codec that cannot be read; nothing has changed then.
        `sum_up` adds the bytes to the checksum, many batches at a time.
        """
        if payload is None:
            scanned = scan_batches(data, position, self._begin_limit(data, position), 0)
            if self._takes(scanned, position):
                self._add_scanned(data, position, scanned)
                return scanned.end_position
        header = parse_header(data, position)
        self._add_batch(data, position, header, payload)
        return position + header.size_in_bytes

    def add_split(self, batch: SplitBatch) -> None:
        """Add one batch, also to the checksum. Raises as `add`."""
        header = batch.header
        # Seen from its second piece, it begins before it.
        self._add_batch(batch.rest, -len(batch.beginning), header, None)
        self._data_crc = batch.crc_behind(self._data_crc, header)
        self._summed_bytes += batch.size_bytes

    def _begin_limit(self, data: Buffer, position: int) -> int:
        """The end of the index interval of the batch at `position`: batches that begin before it are in
        it.
        """
        begun_bytes = self.data_bytes - self._positions[-1] if self._positions else 0
        left_bytes = self._index_interval_bytes - begun_bytes
        return min(len(data), position + (left_bytes if left_bytes > 0 else self._index_interval_bytes))

    def _takes(self, scanned: ScannedBatches, position: int) -> bool:
        """Whether the batches follow the earlier ones. If not, `_add_batch` takes the first of them."""
        return (
            scanned.end_position > position
            and scanned.first_base_offset >= self.next_offset
            and self.record_count + scanned.records_count <= self._max_record_count
        )

    def _add_scanned(self, data: Buffer, position: int, scanned: ScannedBatches) -> None:
        self._is_transactional |= scanned.is_transactional
        if scanned.null_key_count > 0:
            self._forget_keys()
        if self._key_hashing is not None and not (self._has_keyless or self._is_transactional):
            batches = memoryview(data)[position : scanned.end_position]
            hashing = self._key_hashing
            hash_batches(batches, hashing.hash_key, self.record_count, self._entries, hashing.version_rule)
        self._tombstone_count += scanned.tombstone_count
        self._marker_count += scanned.marker_count
        self._begin_interval(scanned.first_base_offset)
        self._add_timestamps(scanned.min_timestamp, scanned.max_timestamp, scanned.max_timestamp_offset)
        self._codec_mask |= 1 << Codec.NONE
        if scanned.delete_horizon_ms is not None:
            self._add_horizon(scanned.delete_horizon_ms)
        self._last_batch = LastBatch(scanned.last_base_offset, scanned.leader_epoch, scanned.last_crc)
        self.data_bytes += scanned.end_position - position
        self.record_count += scanned.records_count
        self.next_offset = scanned.next_offset

    def _add_batch(self, data: Buffer, position: int, header: BatchHeader, payload: Buffer | None) -> None:
        if not crc_matches(data, position, header):
            raise CorruptRecordError(
                "a batch fails its checksum and is not tiered; restore its segment or trim the log",
                topic=self._start.topic,
                partition=self._start.partition,
                base_offset=header.base_offset,
            )
        self._require_order(header)
        if payload is None:
            payload = records_payload(data, position, header)
        summary = scan_records(payload, header.records_count, header.last_offset_delta)
        if header.is_control:
            self._marker_count += header.records_count
        else:
            self._add_keys(payload, header, has_keyless=summary.null_key_count > 0)
            self._tombstone_count += summary.tombstone_count
        append_time_ms = header.append_time_ms
        if append_time_ms is not None:
            earliest = latest = append_time_ms
            latest_delta = summary.first_offset_delta
        else:
            earliest = header.base_timestamp + summary.min_timestamp_delta
            latest = header.base_timestamp + summary.max_timestamp_delta
            latest_delta = summary.max_timestamp_offset_delta
        self._begin_interval(header.base_offset)
        if header.records_count > 0:
            self._add_timestamps(earliest, latest, header.base_offset + latest_delta)
        self._add_header(header)
        self.data_bytes += header.size_in_bytes
        self.record_count += header.records_count
        self.next_offset = max(header.next_offset, self._start.base_offset)

    def carry(self, entry: SliceEntry, index: SliceIndex) -> None:
        """Take over the facts about a whole slice, whose bytes follow unchanged (`take_carried`). No record
        is looked at: the caller proves the bytes by the slice's checksum.

        Raises CorruptRecordError for a slice that is out of order, UnsupportedOperationError for more records
        than a slice can hold; nothing has changed then.
        """
        assert self._key_hashing is None, "its keys are merged, not collected"
        self._require_carriable(entry, index)
        for number in range(index.interval_count):
            interval = index.interval(number)
            self._begin_interval(interval.base_offset)
            self._max_timestamps[-1] = max(self._max_timestamps[-1], index.max_timestamps[number])
            self.data_bytes += interval.end_position - interval.position
        if entry.record_count > 0:
            self._widen_timestamps(entry.min_timestamp, entry.max_timestamp, entry.max_timestamp_offset)
        self._data_crc = joined_crc(self._data_crc, entry.data_crc, entry.data_bytes)
        self._codec_mask |= entry.codec_mask
        self._tombstone_count += entry.tombstone_count
        self._marker_count += entry.marker_count
        if entry.earliest_delete_horizon_ms is not None:
            self._add_horizon(entry.earliest_delete_horizon_ms)
        self._last_batch = entry.last_batch or self._last_batch
        self.record_count += entry.record_count
        self.next_offset = entry.end_offset

    @property
    def may_have_keys(self) -> bool:
        """Whether a key stream could cover every record so far: each has a key, but for markers."""
        return not self._has_keyless

    def build(self, end: SliceEnd, merged: MergedKeyStream | None = None) -> BuiltSlice:
        """The slice up to `end`. Call it once, last: it sorts the key entries. `merged`: the key stream
        where it was made from those of others."""
        # A slice may end behind its last batch (offsets without records), but not before it.
        assert self.next_offset <= end.end_offset
        assert self._summed_bytes == self.data_bytes
        keys = self._collected_keys(end) if merged is None else merged
        assert merged is None or self._key_hashing is None, "keys are collected or merged"
        assert merged is None or self.may_have_keys
        earliest, latest = self._timestamps or (NO_TIMESTAMP, NO_TIMESTAMP)
        contents = _Contents(
            data_bytes=self.data_bytes,
            data_crc=self._data_crc,
            record_count=self.record_count,
            min_timestamp=earliest,
            max_timestamp=latest,
            max_timestamp_offset=self._max_timestamp_offset,
            codec_mask=self._codec_mask,
            tombstone_count=self._tombstone_count,
            marker_count=self._marker_count,
            horizon_ms=self._horizon_ms,
            last_batch=self._last_batch,
        )
        index = SliceIndex(
            data_bytes=self.data_bytes,
            positions=self._positions,
            base_offsets=self._base_offsets,
            max_timestamps=self._max_timestamps,
            aborted=end.aborted,
            producer_snapshot=end.producer_snapshot,
            producers_since=end.producers_since,
        )
        return _built(self._start, self._data_position, contents, end, keys, encode_slice_index(index))

    def sum_up(self, data: Buffer) -> None:
        """Add the bytes of the batches since the last call to the slice's checksum, by those of the batches,
        which were proved."""
        self._data_crc = batches_crc(data, self._data_crc)
        self._summed_bytes += len(data)

    def take_carried(self, size_bytes: int) -> None:
        """So many bytes of the slice of the last `carry` follow."""
        self._summed_bytes += size_bytes

    def _require_order(self, header: BatchHeader) -> None:
        is_first = self._last_batch is None
        if (
            header.last_offset < self._start.base_offset
            if is_first
            else header.base_offset < self.next_offset
        ):
            raise self._out_of_order(header.base_offset)
        self._require_room(header.records_count)

    def _require_carriable(self, entry: SliceEntry, index: SliceIndex) -> None:
        is_first = self._last_batch is None
        if not is_first and index.interval_count and index.base_offsets[0] < self.next_offset:
            raise self._out_of_order(index.base_offsets[0])
        self._require_room(entry.record_count)

    def _out_of_order(self, base_offset: int) -> CorruptRecordError:
        return CorruptRecordError(
            "the batches of a slice do not ascend; the log is damaged and is not tiered",
            topic=self._start.topic,
            partition=self._start.partition,
            base_offset=base_offset,
            expected_offset=self.next_offset,
        )

    def _require_room(self, records_count: int) -> None:
        if self.record_count + records_count > self._max_record_count:
            raise UnsupportedOperationError(
                "a slice cannot hold so many records; end it and begin another object",
                max_record_count=self._max_record_count,
            )

    def _add_keys(self, payload: Buffer, header: BatchHeader, *, has_keyless: bool) -> None:
        hashing = self._key_hashing
        is_partly_below = header.base_offset < self._start.base_offset
        if has_keyless or (hashing is not None and hashing.has_versions and is_partly_below):
            self._forget_keys()
        if hashing is not None and not (self._has_keyless or header.is_transactional):
            hash_keys(
                payload,
                header.records_count,
                hashing.hash_key,
                self.record_count,
                self._entries,
                hashing.versions_of(header),
            )

    def _forget_keys(self) -> None:
        self._has_keyless = True
        self._entries = self._new_entries()

    def _new_entries(self) -> KeyEntries:
        return KeyEntries() if self._key_hashing is None else self._key_hashing.new_entries()

    def _begin_interval(self, base_offset: int) -> None:
        if not self._positions or self.data_bytes - self._positions[-1] >= self._index_interval_bytes:
            self._positions.append(self.data_bytes)
            self._base_offsets.append(base_offset)
            self._max_timestamps.append(_NO_RECORDS)

    def _add_timestamps(self, earliest: int, latest: int, latest_offset: int) -> None:
        self._max_timestamps[-1] = max(self._max_timestamps[-1], latest)
        self._widen_timestamps(earliest, latest, latest_offset)

    def _widen_timestamps(self, earliest: int, latest: int, latest_offset: int) -> None:
        if self._timestamps is None:
            self._timestamps = earliest, latest
            self._max_timestamp_offset = latest_offset
            return
        least, most = self._timestamps
        if latest > most:
            self._max_timestamp_offset = latest_offset
        self._timestamps = min(least, earliest), max(most, latest)

    def _add_header(self, header: BatchHeader) -> None:
        attributes = header.attributes
        self._codec_mask |= 1 << (attributes & CODEC_MASK)
        self._is_transactional |= header.is_transactional
        if attributes & DELETE_HORIZON_BIT:
            self._add_horizon(header.base_timestamp)
        self._last_batch = LastBatch(header.base_offset, header.leader_epoch, header.crc)

    def _add_horizon(self, horizon_ms: int) -> None:
        self._horizon_ms = horizon_ms if self._horizon_ms is None else min(self._horizon_ms, horizon_ms)

    def _collected_keys(self, end: SliceEnd) -> MergedKeyStream | None:
        hashing = self._key_hashing
        if hashing is None or self._has_keyless or self._is_transactional or end.open_transactions:
            return None
        return MergedKeyStream(encode_key_stream(sort_key_entries(self._entries)), hashing)


def compacted_slices(
    starts: Sequence[SliceStart], data_position: int, compacted: CompactedSlices, ends: Sequence[SliceEnd]
) -> tuple[tuple[SliceEntry, ...], list[bytes]]:
    """The entries and the encoded indexes of slices of which a kernel has made everything, with the keys
    hashed as `starts` say; the data of the first one lie at `data_position`, and those of the others behind
    it. Nothing is made again, the checksums included."""
    column = compacted.column
    assert not any(end.open_transactions for end in ends), "undecided records have no key stream"
    sizes, end_offsets = column("data_bytes"), [end.end_offset for end in ends]
    last_batches = zip(column("last_base_offset"), column("leader_epoch"), column("last_crc"), strict=True)
    horizons = zip(column("has_delete_horizon"), column("delete_horizon_ms"), strict=True)
    none, hash_key_ids = [0] * len(starts), map(_hash_key_id, starts)
    key_streams = zip(
        none, column("key_bytes"), column("key_count"), column("keys_crc"), hash_key_ids, strict=True
    )
    indexes = list(_encoded_indexes(compacted, ends))
    columns: dict[str, Sequence[object]] = SliceStart.columns_of(starts) | {
        "end_offset": end_offsets,
        "data_position": list(itertools.accumulate(sizes[:-1], initial=data_position)),
        "data_bytes": sizes,
        "codec_mask": [1 << Codec.NONE if size_bytes else 0 for size_bytes in sizes],
        "stable_end_offset": end_offsets,
        "index": [PartRef(0, len(index), crc_of(index)) for index in indexes],
        "has_aborted": [bool(end.aborted) for end in ends],
        "open_transactions": [()] * len(starts),
        "marker_count": none,
        "earliest_delete_horizon_ms": [horizon_ms if has_one else None for has_one, horizon_ms in horizons],
        "leader_epochs": [end.leader_epochs for end in ends],
        "last_batch": [
            last if size_bytes else None
            for last, size_bytes in zip(map(LastBatch._make, last_batches), sizes, strict=True)
        ],
        "key_stream": list(map(KeyStreamRef._make, key_streams)),
    }
    columns |= {name: column(name) for name in SliceEntry._fields if name not in columns}
    return SliceEntry.of_columns(columns), indexes


def _hash_key_id(start: SliceStart) -> int:
    assert start.key_hashing is not None, "it has a key stream"
    return start.key_hashing.hash_key_id


def _encoded_indexes(compacted: CompactedSlices, ends: Sequence[SliceEnd]) -> Iterator[bytes]:
    stop, columns = 0, compacted.index_columns
    for interval_count, end in zip(compacted.column("interval_count"), ends, strict=True):
        begin, stop = stop, stop + INDEX_ROW_BYTES * interval_count
        yield encode_index_columns(
            columns[begin:stop], end.aborted, end.producer_snapshot, end.producers_since
        )


class _Contents(NamedTuple):
    """The facts that the batches of a slice tell. Immutable."""

    data_bytes: int
    data_crc: int
    record_count: int
    min_timestamp: int
    max_timestamp: int
    max_timestamp_offset: int
    codec_mask: int
    tombstone_count: int
    marker_count: int
    horizon_ms: int | None
    last_batch: LastBatch | None


def _built(
    start: SliceStart,
    data_position: int,
    contents: _Contents,
    end: SliceEnd,
    keys: MergedKeyStream | None,
    encoded_index: bytes,
) -> BuiltSlice:
    assert keys is None or not end.open_transactions, "undecided records have no key stream"
    stable_end_offset = end.end_offset
    if end.open_transactions:
        stable_end_offset = min(one.first_offset for one in end.open_transactions)
    entry = SliceEntry(
        topic_id=start.topic_id,
        topic=start.topic,
        partition=start.partition,
        base_offset=start.base_offset,
        end_offset=end.end_offset,
        data_position=data_position,
        data_bytes=contents.data_bytes,
        data_crc=contents.data_crc,
        record_count=contents.record_count,
        min_timestamp=contents.min_timestamp,
        max_timestamp=contents.max_timestamp,
        max_timestamp_offset=contents.max_timestamp_offset,
        codec_mask=contents.codec_mask,
        stable_end_offset=stable_end_offset,
        index=PartRef(0, len(encoded_index), crc_of(encoded_index)),
        has_aborted=bool(end.aborted),
        open_transactions=end.open_transactions,
        tombstone_count=contents.tombstone_count,
        marker_count=contents.marker_count,
        earliest_delete_horizon_ms=contents.horizon_ms,
        leader_epochs=end.leader_epochs,
        last_batch=contents.last_batch,
        key_stream=None if keys is None else _unplaced_ref(keys),
    )
    return BuiltSlice(entry, None if keys is None else keys.stream, encoded_index)


def _unplaced_ref(keys: MergedKeyStream) -> KeyStreamRef:
    stream = keys.stream
    return KeyStreamRef(0, stream.size_bytes, stream.entry_count, stream.crc, keys.hashing.hash_key_id)
