"""The directory of an object file: an entry of fixed size for each slice, then a heap of parts that vary in
length. docs/formats/object_file.md has the layout.

Entries are sorted by (topic id, partition), at most one of each, so that bisection finds one without reading
the others. Positions of data, key streams and indexes count from the start of the object, positions in the
heap from the start of the directory.

Pure functions, thread-safe.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from stratalog.base.errors import StoreCorruptError, StoreNotUsableError
from stratalog.record.number_columns import PackedField, unpack_tuples
from stratalog.remote.objects.fixed_layout import Buffer, FixedLayout, padding_bytes
from stratalog.remote.objects.slice_entry import (
    KeyStreamRef,
    LastBatch,
    LeaderEpoch,
    OpenTransaction,
    PartRef,
    SliceEntry,
)

DIRECTORY_HEADER = FixedLayout(
    ("slice_count", "I"),
    ("entry_bytes", "I"),
    ("flags", "I"),
    ("reserved", "I"),
    ("directory_bytes", "Q"),
)
ENTRY = FixedLayout(
    ("topic_id", "16s"),
    ("partition", "I"),
    ("flags", "I"),
    ("base_offset", "q"),
    ("end_offset", "q"),
    ("stable_end_offset", "q"),
    ("data_position", "Q"),
    ("data_bytes", "Q"),
    ("min_timestamp", "q"),
    ("max_timestamp", "q"),
    ("max_timestamp_offset", "q"),
    ("earliest_delete_horizon_ms", "q"),
    ("last_batch_base_offset", "q"),
    ("key_stream_position", "Q"),
    ("key_stream_bytes", "Q"),
    ("hash_key_id", "Q"),
    ("index_position", "Q"),
    ("index_bytes", "Q"),
    ("data_crc", "I"),
    ("record_count", "I"),
    ("codec_mask", "I"),
    ("tombstone_count", "I"),
    ("marker_count", "I"),
    ("last_batch_epoch", "i"),
    ("last_batch_crc", "I"),
    ("key_stream_crc", "I"),
    ("key_stream_entry_count", "I"),
    ("index_crc", "I"),
    ("topic_position", "I"),
    ("topic_bytes", "I"),
    ("leader_epochs_position", "I"),
    ("leader_epoch_count", "I"),
    ("open_transactions_position", "I"),
    ("open_transaction_count", "I"),
)
LEADER_EPOCH = FixedLayout(("epoch", "q"), ("start_offset", "q"))
OPEN_TRANSACTION = FixedLayout(("producer_id", "q"), ("first_offset", "q"))

HAS_ABORTED_FLAG = 1 << 0
HAS_LAST_BATCH_FLAG = 1 << 1
HAS_KEY_STREAM_FLAG = 1 << 2
HAS_DELETE_HORIZON_FLAG = 1 << 3
KNOWN_FLAGS = (1 << 4) - 1

_NO_BATCH = LastBatch(0, 0, 0)
_NO_KEY_STREAM = KeyStreamRef(
    position=0,
    size_bytes=0,
    entry_count=0,
    crc=0,
    hash_key_id=0,
)


def directory_size_bytes(entries: Sequence[SliceEntry]) -> int:
    """Size of the directory of these entries; their positions do not matter."""
    size_bytes = DIRECTORY_HEADER.size_bytes + len(entries) * ENTRY.size_bytes
    size_bytes += sum([len(entry.leader_epochs) for entry in entries]) * LEADER_EPOCH.size_bytes
    size_bytes += sum([len(entry.open_transactions) for entry in entries]) * OPEN_TRANSACTION.size_bytes
    size_bytes += sum(len(text.encode()) for text in {entry.topic for entry in entries})
    return size_bytes + padding_bytes(size_bytes)


def encode_directory(entries: Sequence[SliceEntry]) -> bytes:
    """The bytes of a directory, a multiple of 8. Entries are sorted and have their positions."""
    # Sorted, at most one of each partition: bisection and forward-only reading depend on it.
    assert _ascend(entries)
    for entry in entries:
        entry.check()
    heap, references = _heap_of(entries, DIRECTORY_HEADER.size_bytes + len(entries) * ENTRY.size_bytes)
    fixed = ENTRY.pack_rows(_columns_of(entries) | references)
    size_bytes = DIRECTORY_HEADER.size_bytes + len(fixed) + len(heap)
    padding = padding_bytes(size_bytes)
    header = DIRECTORY_HEADER.pack(len(entries), ENTRY.size_bytes, 0, 0, size_bytes + padding)
    return header + fixed + heap + bytes(padding)


def decode_directory(data: Buffer) -> tuple[SliceEntry, ...]:
    """The entries, sorted by (topic id, partition). The caller has checked the CRC.

    Raises StoreCorruptError if the bytes contradict themselves, StoreNotUsableError if they need
    newer software.
    """
    if len(data) < DIRECTORY_HEADER.size_bytes:
        raise _corrupt("is cut off")
    slice_count, entry_bytes, flags, _, directory_bytes = DIRECTORY_HEADER.unpack(data)
    if flags != 0:
        raise _newer(flags)
    if entry_bytes < ENTRY.size_bytes or directory_bytes != len(data):
        raise _corrupt("does not have the size that it states")
    if DIRECTORY_HEADER.size_bytes + slice_count * entry_bytes > len(data):
        raise _corrupt("has fewer entries than it states")
    entries = _entries_of(data, slice_count, entry_bytes)
    for entry in entries:
        fault = entry.fault()
        if fault is not None:
            raise _corrupt(f"contradicts itself about {entry.topic}-{entry.partition}: {fault}")
    if not _ascend(entries):
        raise _corrupt("is not sorted by partition")
    return entries


def _ascend(entries: Sequence[SliceEntry]) -> bool:
    tips = [(entry.topic_id, entry.partition) for entry in entries]
    return all(map(operator.lt, tips, itertools.islice(tips, 1, None)))


def _columns_of(entries: Sequence[SliceEntry]) -> dict[str, Sequence[Any]]:
    """The columns of a directory's rows that do not refer to the heap, and others."""
    batches = [entry.last_batch or _NO_BATCH for entry in entries]
    streams = [entry.key_stream or _NO_KEY_STREAM for entry in entries]
    indexes = [entry.index for entry in entries]
    flags = [
        HAS_ABORTED_FLAG * entry.has_aborted
        | HAS_LAST_BATCH_FLAG * (entry.last_batch is not None)
        | HAS_KEY_STREAM_FLAG * (entry.key_stream is not None)
        | HAS_DELETE_HORIZON_FLAG * (entry.earliest_delete_horizon_ms is not None)
        for entry in entries
    ]
    return SliceEntry.columns_of(entries) | {
        "topic_id": [entry.topic_id.bytes for entry in entries],
        "flags": flags,
        "earliest_delete_horizon_ms": [entry.earliest_delete_horizon_ms or 0 for entry in entries],
        "last_batch_base_offset": [batch.base_offset for batch in batches],
        "last_batch_epoch": [batch.epoch for batch in batches],
        "last_batch_crc": [batch.crc for batch in batches],
        "key_stream_position": [stream.position for stream in streams],
        "key_stream_bytes": [stream.size_bytes for stream in streams],
        "key_stream_entry_count": [stream.entry_count for stream in streams],
        "key_stream_crc": [stream.crc for stream in streams],
        "hash_key_id": [stream.hash_key_id for stream in streams],
        "index_position": [index.position for index in indexes],
        "index_bytes": [index.size_bytes for index in indexes],
        "index_crc": [index.crc for index in indexes],
    }


def _entries_of(data: Buffer, slice_count: int, entry_bytes: int) -> tuple[SliceEntry, ...]:
    """The entries of a directory with so many rows."""
    position = DIRECTORY_HEADER.size_bytes
    rows = ENTRY.unpack_rows(data, position, slice_count, entry_bytes, _REFERENCES)
    flags = rows["flags"]
    if max(flags, default=0) > KNOWN_FLAGS:
        raise _newer(max(flags))
    columns: Mapping[str, list[Any]] = {
        "topic_id": list(map(_topic_id, rows["topic_id"])),
        "topic": _texts(data, rows["topic_position"], rows["topic_bytes"]),
        "has_aborted": [bits & HAS_ABORTED_FLAG != 0 for bits in flags],
        "open_transactions": _lists(
            data,
            OPEN_TRANSACTION,
            OpenTransaction,
            rows["open_transactions_position"],
            rows["open_transaction_count"],
        ),
        "leader_epochs": _lists(
            data, LEADER_EPOCH, LeaderEpoch, rows["leader_epochs_position"], rows["leader_epoch_count"]
        ),
    }
    fields = [columns[field] if field in columns else _packed_field(field) for field in SliceEntry._fields]
    return tuple(unpack_tuples(SliceEntry, data, position, entry_bytes, slice_count, fields))


_REFERENCES = frozenset(
    {
        "topic_id",
        "flags",
        "topic_position",
        "topic_bytes",
        "leader_epochs_position",
        "leader_epoch_count",
        "open_transactions_position",
        "open_transaction_count",
    }
)
"""The fields of a row that refer to something else, or are no numbers."""
_PARTS: Mapping[str, tuple[type[tuple[Any, ...]], Sequence[str]]] = {
    "index": (PartRef, ("index_position", "index_bytes", "index_crc")),
    "last_batch": (LastBatch, ("last_batch_base_offset", "last_batch_epoch", "last_batch_crc")),
    "key_stream": (
        KeyStreamRef,
        (
            "key_stream_position",
            "key_stream_bytes",
            "key_stream_entry_count",
            "key_stream_crc",
            "hash_key_id",
        ),
    ),
}
"""The fields of an entry with several numbers, and those of the row."""
_FLAGS = {
    "last_batch": HAS_LAST_BATCH_FLAG,
    "key_stream": HAS_KEY_STREAM_FLAG,
    "earliest_delete_horizon_ms": HAS_DELETE_HORIZON_FLAG,
}
"""The flags of the fields that an entry may be without."""


@functools.cache
def _packed_field(field: str) -> PackedField:
    kind, names = _PARTS.get(field, (None, (field,)))
    places = tuple(map(ENTRY.packed, names))
    return PackedField(kind, places, ENTRY.positions["flags"], _FLAGS.get(field, 0))


@functools.lru_cache(maxsize=1024)
def _topic_id(data: bytes) -> UUID:
    """Cached: equal ids are one object, which makes comparing and sorting entries fast."""
    return UUID(bytes=data)


def _texts(data: Buffer, positions: Sequence[int], sizes: Sequence[int]) -> list[str]:
    places = list(zip(positions, sizes, strict=True))
    texts = {place: _text(data, *place) for place in set(places)}
    return [texts[place] for place in places]


def _text(data: Buffer, position: int, size_bytes: int) -> str:
    if position + size_bytes > len(data):
        raise _corrupt("refers to a text behind its end")
    try:
        return bytes(data[position : position + size_bytes]).decode()
    except UnicodeDecodeError as error:
        raise _corrupt("holds a text that is not UTF-8") from error


def _lists(
    data: Buffer,
    layout: FixedLayout,
    make: type[LeaderEpoch | OpenTransaction],
    positions: Sequence[int],
    counts: Sequence[int],
) -> list[tuple[object, ...]]:
    size_bytes, found = layout.size_bytes, list[tuple[object, ...]]()
    if not any(counts):
        return [()] * len(counts)
    # In most directories each slice has one, and they lie side by side.
    begin, row_count = positions[0], len(positions)
    side_by_side = range(begin, begin + row_count * size_bytes, size_bytes)
    if (
        side_by_side.stop <= len(data)
        and max(counts) == min(counts) == 1
        and positions == tuple(side_by_side)
    ):
        fields = [PackedField(None, (layout.packed(name),)) for name in layout.positions]
        return [(one,) for one in unpack_tuples(make, data, begin, size_bytes, row_count, fields)]
    for position, count in zip(positions, counts, strict=True):
        end = position + count * size_bytes
        if end > len(data):
            raise _corrupt("refers to a list behind its end")
        places = range(position, end, size_bytes)
        found.append(tuple([make(*layout.unpack(data, place)) for place in places]))
    return found


def _heap_of(entries: Sequence[SliceEntry], position: int) -> tuple[bytes, dict[str, Sequence[int]]]:
    """The parts of variable length, which begin at that position of the directory, and the columns that refer
    to them. Equal texts are stored once. The lists of one kind lie side by side."""
    texts = {topic: topic.encode() for topic in dict.fromkeys([entry.topic for entry in entries])}
    ends = itertools.accumulate(map(len, texts.values()), initial=position)
    places = {topic: (begin, len(text)) for (topic, text), begin in zip(texts.items(), ends, strict=False)}
    data = b"".join(texts.values())
    found = [places[entry.topic] for entry in entries]
    columns: dict[str, Sequence[int]] = {
        "topic_position": [begin for begin, _ in found],
        "topic_bytes": [size_bytes for _, size_bytes in found],
    }
    for name, layout, lists in (
        ("leader_epoch", LEADER_EPOCH, [entry.leader_epochs for entry in entries]),
        ("open_transaction", OPEN_TRANSACTION, [entry.open_transactions for entry in entries]),
    ):
        counts = list(map(len, lists))
        sizes = [layout.size_bytes * count for count in counts]
        columns[f"{name}_count"] = counts
        columns[f"{name}s_position"] = list(itertools.accumulate(sizes, initial=position + len(data)))[:-1]
        data += b"".join(itertools.starmap(layout.pack, itertools.chain.from_iterable(lists)))
    return data, columns


def _corrupt(problem: str) -> StoreCorruptError:
    return StoreCorruptError(
        f"the directory of an object {problem}; keep the object and find out what changed it"
    )


def _newer(flags: int) -> StoreNotUsableError:
    return StoreNotUsableError(
        "the directory of an object has a newer format; use a newer version of the software", flags=flags
    )
