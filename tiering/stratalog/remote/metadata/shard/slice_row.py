"""A live slice as a row of a checkpoint page.

The columns are those of the slice's directory entry, its valid base offset and its object. Parts of an entry
are short arrays, or `null` where the entry has none. `gap` is `null` but for a gap: its reason, its time
and the transactions that it abandons. The row of a gap has no object, and an empty entry.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from stratalog.base.errors import StoreCorruptError
from stratalog.base.types import TopicIdPartition
from stratalog.remote.json_document import JsonFields, to_integer, to_items, to_row, to_text
from stratalog.remote.metadata.head.checkpoint_page import Page
from stratalog.remote.metadata.head.page_columns import Column, Encoding
from stratalog.remote.metadata.shard.live_slice import Gap, LiveSlice
from stratalog.remote.metadata.shard.shard_actions import MAX_PARTITION
from stratalog.remote.metadata.shard.slice_briefs import ENTRY_COLUMNS, SliceBriefs
from stratalog.remote.metadata.shard.slice_columns import SliceColumns, SliceRanges
from stratalog.remote.objects.object_ref import birth_of
from stratalog.remote.objects.slice_entry import (
    KeyStreamRef,
    LastBatch,
    LeaderEpoch,
    OpenTransaction,
    PartRef,
    SliceEntry,
)

SLICES = "slices"
SLICE_COLUMNS = (
    "topic_id",
    "partition",
    "base_offset",
    "end_offset",
    "object",
    "topic",
    "entry_base_offset",
    "data_position",
    "data_bytes",
    "data_crc",
    "record_count",
    "min_timestamp",
    "max_timestamp",
    "max_timestamp_offset",
    "codec_mask",
    "stable_end_offset",
    "has_aborted",
    "open_transactions",
    "tombstone_count",
    "marker_count",
    "earliest_delete_horizon_ms",
    "leader_epochs",
    "last_batch",
    "key_stream",
    "index",
    "gap",
)
SLICE_ENCODINGS = {
    "topic_id": Encoding("choice"),
    "partition": Encoding("steps"),
    "base_offset": Encoding("steps"),
    "end_offset": Encoding("until", ("base_offset",)),
    "object": Encoding("choice"),
    "topic": Encoding("choice"),
    "entry_base_offset": Encoding("from", ("base_offset",)),
    "data_position": Encoding("behind", ("object", "data_bytes")),
    "record_count": Encoding("between", ("entry_base_offset", "end_offset")),
    "min_timestamp": Encoding("steps"),
    "max_timestamp": Encoding("until", ("min_timestamp",)),
    "max_timestamp_offset": Encoding("from", ("end_offset",)),
    "stable_end_offset": Encoding("from", ("end_offset",)),
    "leader_epochs": Encoding("pair", ("leader_epochs.epoch", "leader_epochs.start_offset")),
    "leader_epochs.start_offset": Encoding("from", ("entry_base_offset",)),
    "last_batch": Encoding("parts", ("last_batch.base_offset", "last_batch.epoch", "last_batch.crc")),
    "last_batch.base_offset": Encoding("from", ("end_offset",)),
    "key_stream": Encoding(
        "parts",
        (
            "key_stream.position",
            "key_stream.size_bytes",
            "key_stream.entry_count",
            "key_stream.crc",
            "key_stream.hash_key_id",
        ),
    ),
    "key_stream.position": Encoding("behind", ("object", "key_stream.size_bytes")),
    "key_stream.entry_count": Encoding("from", ("record_count",)),
    "index": Encoding("parts", ("index.position", "index.size_bytes", "index.crc")),
    "index.position": Encoding("behind", ("object", "index.size_bytes")),
}
"""How a page holds the columns: most numbers follow from those of a neighbour."""
SLICE_KEY_SIZE = 3
"""The key is the partition and the base offset."""
NO_MINIMUM = -(1 << 63)
_BRIEF_COLUMNS = ("object", "end_offset", *ENTRY_COLUMNS, "gap")
_COMPARED_COLUMNS = ("object", "base_offset", "end_offset", "data_bytes")
_BRIEF_TYPES: dict[str, set[type]] = {
    "object": {str},
    "earliest_delete_horizon_ms": {int, type(None)},
}
"""The types of the values of a column; `int` where it is not here."""


def format_slice(live: LiveSlice) -> tuple[object, ...]:
    """The row, in the order of `SLICE_COLUMNS`."""
    entry = live.entry
    return (
        str(entry.topic_id),
        entry.partition,
        live.base_offset,
        live.end_offset,
        live.object_name,
        entry.topic,
        entry.base_offset,
        entry.data_position,
        entry.data_bytes,
        entry.data_crc,
        entry.record_count,
        entry.min_timestamp,
        entry.max_timestamp,
        entry.max_timestamp_offset,
        entry.codec_mask,
        entry.stable_end_offset,
        entry.has_aborted,
        entry.open_transactions,
        entry.tombstone_count,
        entry.marker_count,
        entry.earliest_delete_horizon_ms,
        entry.leader_epochs,
        entry.last_batch,
        entry.key_stream,
        entry.index,
        live.gap,
    )


def briefs_of(page: Page, start: int, end: int) -> SliceBriefs:
    """Parse the columns that a survey reads, of rows [start, end). Raises StoreCorruptError."""
    return SliceBriefs._make(_sound_columns(page, start, end, _BRIEF_COLUMNS))


def columns_of(page: Page, start: int, end: int) -> SliceColumns:
    """Parse the columns that a commit compares, of rows [start, end). Raises StoreCorruptError."""
    *ranges, data_bytes = map(tuple, _sound_columns(page, start, end, _COMPARED_COLUMNS))
    return SliceColumns(SliceRanges(*ranges), data_bytes)


def _sound_columns(page: Page, start: int, end: int, names: Sequence[str]) -> list[Any]:
    known = dict(zip(page.columns, page.values, strict=True))
    nothing: Column = [None] * (end - start)
    columns: list[Any] = []
    for name in names:
        column: Column = known[name][start:end] if name in known else nothing
        # Columns of numbers are arrays, and sound as they are.
        kinds = set[type]() if isinstance(column, array) or name == "gap" else set(map(type, column))
        if not kinds <= _BRIEF_TYPES.get(name, {int}):
            raise StoreCorruptError(
                "a column of a page has values of another kind; keep the page and investigate",
                what=page.what,
                column=name,
            )
        columns.append(column)
    return columns


def parse_slice(row: JsonFields) -> tuple[TopicIdPartition, LiveSlice]:
    """Parse the row of a slice. Raises StoreCorruptError."""
    if row.values.get("gap") is not None:
        return _parse_gap(row)
    entry = SliceEntry(
        topic_id=row.uuid("topic_id"),
        topic=row.text("topic"),
        partition=row.integer("partition", maximum=MAX_PARTITION),
        base_offset=row.integer("entry_base_offset"),
        end_offset=row.integer("end_offset"),
        data_position=row.integer("data_position"),
        data_bytes=row.integer("data_bytes"),
        data_crc=row.integer("data_crc"),
        record_count=row.integer("record_count"),
        min_timestamp=row.integer("min_timestamp", minimum=NO_MINIMUM),
        max_timestamp=row.integer("max_timestamp", minimum=NO_MINIMUM),
        max_timestamp_offset=row.integer("max_timestamp_offset", minimum=NO_MINIMUM),
        codec_mask=row.integer("codec_mask"),
        stable_end_offset=row.integer("stable_end_offset"),
        has_aborted=row.flag("has_aborted"),
        open_transactions=parse_transactions(row, "open_transactions"),
        tombstone_count=row.integer("tombstone_count"),
        marker_count=row.integer("marker_count"),
        earliest_delete_horizon_ms=row.optional_integer("earliest_delete_horizon_ms", minimum=NO_MINIMUM),
        leader_epochs=row.each("leader_epochs", _parse_leader_epoch),
        last_batch=parse_last_batch(row, "last_batch"),
        key_stream=_parse_key_stream(row),
        index=_parse_index(row),
    )
    fault = entry.fault()
    base_offset = row.integer("base_offset")
    if fault is not None or not entry.base_offset <= base_offset < entry.end_offset:
        raise row.fault("base_offset", fault or "an offset of the slice")
    name = row.text("object")
    birth_of(name)
    return entry.topic_id_partition, LiveSlice(name, base_offset, entry.end_offset, entry)


def parse_transactions(row: JsonFields, column: str) -> tuple[OpenTransaction, ...]:
    """Parse a list of transactions. Raises StoreCorruptError."""
    return row.each(column, _parse_transaction)


def _parse_gap(row: JsonFields) -> tuple[TopicIdPartition, LiveSlice]:
    tip = TopicIdPartition(row.uuid("topic_id"), row.integer("partition", maximum=MAX_PARTITION))
    what = f"{row.what}: gap"
    reason, time_ms, abandoned = to_row(row.values["gap"], what, 3)
    transactions = tuple(_parse_transaction(item, what) for item in to_items(abandoned, what))
    gap = Gap(to_text(reason, what), to_integer(time_ms, what), transactions)
    return tip, LiveSlice.of_gap(tip, row.integer("base_offset"), row.integer("end_offset"), gap)


def parse_last_batch(row: JsonFields, column: str) -> LastBatch | None:
    """Parse the last batch of a slice. Raises StoreCorruptError."""
    if row.values.get(column) is None:
        return None
    base_offset, epoch, crc = to_row(row.values[column], f"{row.what}: {column}", 3)
    return LastBatch(
        to_integer(base_offset, row.what), to_integer(epoch, row.what, -1), to_integer(crc, row.what)
    )


def _parse_transaction(item: object, what: str) -> OpenTransaction:
    producer_id, first_offset = to_row(item, what, 2)
    return OpenTransaction(to_integer(producer_id, what), to_integer(first_offset, what))


def _parse_leader_epoch(item: object, what: str) -> LeaderEpoch:
    epoch, start_offset = to_row(item, what, 2)
    return LeaderEpoch(to_integer(epoch, what, -1), to_integer(start_offset, what))


def _parse_index(row: JsonFields) -> PartRef:
    what = f"{row.what}: index"
    position, size_bytes, crc = to_row(row.values.get("index"), what, 3)
    return PartRef(to_integer(position, what), to_integer(size_bytes, what), to_integer(crc, what))


def _parse_key_stream(row: JsonFields) -> KeyStreamRef | None:
    if row.values.get("key_stream") is None:
        return None
    what = f"{row.what}: key_stream"
    position, size_bytes, entry_count, crc, hash_key_id = to_row(row.values["key_stream"], what, 5)
    return KeyStreamRef(
        position=to_integer(position, what),
        size_bytes=to_integer(size_bytes, what),
        entry_count=to_integer(entry_count, what),
        crc=to_integer(crc, what),
        hash_key_id=to_integer(hash_key_id, what, 0, (1 << 64) - 1),
    )
