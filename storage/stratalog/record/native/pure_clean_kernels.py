"""The record-level kernels of the log cleaner in plain Python: twins of the compiled ones.

``offset_map`` documents them. The kernels for rows of batches have no twins: without compiled kernels they
take no batch.
"""

from __future__ import annotations

import struct
from array import array
from typing import Protocol

from stratalog.base.errors import CorruptRecordError
from stratalog.base.filesystem import Buffer
from stratalog.record.header import MAX_OFFSET
from stratalog.record.keep_rules import BatchVersions, RecordFate, record_fate
from stratalog.record.native.aborted_spans import ordered
from stratalog.record.native.cleaned_batches import CleanedRecords
from stratalog.record.native.pure_kernels import append_shifted
from stratalog.record.record_frame import record_frames

# Version, producer, first and last offset, last stable offset.
_ABORTED = struct.Struct(">hqqqq")


class KnownOffsets(Protocol):
    """The part of an offset map that the second pass of a clean reads."""

    @property
    def latest_offset(self) -> int: ...

    def get(self, key: Buffer) -> int | None: ...
    def is_below(self, key: Buffer, version: int, offset: int) -> bool: ...


class OpenTransactions:
    """Open transactions with data. Not thread-safe: it belongs to one pass over a log, in the order of
    offsets."""

    __slots__ = ("_is_kept",)

    def __init__(self) -> None:
        self._is_kept: dict[int, bool] = {}

    def __len__(self) -> int:
        return len(self._is_kept)

    def on_data(self, producer_id: int, *, is_kept: bool) -> None:
        """Note a batch of the producer's transaction. `is_kept`: it stays, with records or without."""
        self._is_kept[producer_id] = is_kept or self._is_kept.get(producer_id, False)

    def on_marker(self, producer_id: int) -> bool | None:
        """End the producer's transaction. Returns whether data of it stays; None if it had none."""
        return self._is_kept.pop(producer_id, None)


def aborted_spans_in(entries: Buffer, start_offset: int, end_offset: int) -> array[int]:
    """The plain-Python form of ``offset_map.aborted_spans_in``."""
    return ordered(
        (producer_id, first_offset, last_offset)
        for _, producer_id, first_offset, last_offset, _ in _ABORTED.iter_unpack(entries)
        if first_offset < end_offset and last_offset >= start_offset
    )


def clean_records(
    payload: Buffer,
    records_count: int,
    base_offset: int,
    offset_map: KnownOffsets,
    *,
    last_offset_delta: int,
    drop_tombstones: bool,
    timestamp_shift: int,
    versions: BatchVersions | None = None,
) -> CleanedRecords:
    """The plain-Python form of ``offset_map.clean_records``."""
    assert base_offset >= 0, "offsets are not negative"
    data, kept = bytes(payload), bytearray()
    timestamp_deltas: list[int] = []
    tombstone_count = 0
    gone = dict.fromkeys(RecordFate, 0)
    for frame in record_frames(data, records_count):
        offset = base_offset + frame.offset_delta
        if frame.offset_delta > last_offset_delta or offset > MAX_OFFSET:
            raise CorruptRecordError(
                "a record lies behind the last offset of its batch", base_offset=base_offset
            )
        if offset <= offset_map.latest_offset:
            key = data[frame.key_position : frame.key_position + max(0, frame.key_size)]
            has_key = frame.key_size >= 0
            version = 0 if versions is None or not has_key else versions.of_record(data, frame)
            fate = record_fate(
                has_key=has_key,
                is_newest=has_key and not offset_map.is_below(key, version, offset),
                is_tombstone=frame.value_size < 0,
                # By versions, a tombstone whose key is known may still beat records that come after it.
                is_due=drop_tombstones and (versions is None or offset_map.get(key) is None),
            )
            if fate is not RecordFate.STAYS:
                gone[fate] += 1
                continue
        tombstone_count += frame.value_size < 0
        timestamp_deltas.append(frame.timestamp_delta + timestamp_shift)
        append_shifted(kept, data, frame, timestamp_shift)
    return CleanedRecords(
        payload=bytes(kept),
        records_kept=len(timestamp_deltas),
        max_timestamp_delta=max(timestamp_deltas, default=0),
        tombstone_count=tombstone_count,
        dropped_tombstone_count=gone[RecordFate.TOMBSTONE_DUE],
        null_key_count=gone[RecordFate.WITHOUT_KEY],
    )
