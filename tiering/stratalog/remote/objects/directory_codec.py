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
from collections.abc import Iterable, Sequence
from uuid import UUID

from stratalog.base.errors import StoreCorruptError, StoreNotUsableError
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


def directory_size_bytes(entries: Iterable[SliceEntry]) -> int:
    """Size of the directory of these entries; their positions do not matter."""
    size_bytes = DIRECTORY_HEADER.size_bytes
    texts: set[str] = set()
    for entry in entries:
        texts.add(entry.topic)
        size_bytes += (
            ENTRY.size_bytes
            + len(entry.leader_epochs) * LEADER_EPOCH.size_bytes
            + len(entry.open_transactions) * OPEN_TRANSACTION.size_bytes
        )
    size_bytes += sum(len(text.encode()) for text in texts)
    return size_bytes + padding_bytes(size_bytes)


def encode_directory(entries: Sequence[SliceEntry]) -> bytes:
    """The bytes of a directory, a multiple of 8. Entries are sorted and have their positions."""
    heap = _Heap(DIRECTORY_HEADER.size_bytes + len(entries) * ENTRY.size_bytes)
    # Sorted, at most one of each partition: bisection and forward-only reading depend on it.
    assert _ascend(entries)
    fixed = bytearray()
    for entry in entries:
        entry.check()
        fixed += _encode_entry(entry, heap)
    size_bytes = DIRECTORY_HEADER.size_bytes + len(fixed) + len(heap.data)
    padding = padding_bytes(size_bytes)
    header = DIRECTORY_HEADER.pack(len(entries), ENTRY.size_bytes, 0, 0, size_bytes + padding)
    return header + bytes(fixed) + bytes(heap.data) + bytes(padding)


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
    begin, texts = DIRECTORY_HEADER.size_bytes, dict[tuple[int, int], str]()
    places = range(begin, begin + slice_count * entry_bytes, entry_bytes)
    entries = tuple([_decode_entry(data, place, texts) for place in places])
    if not _ascend(entries):
        raise _corrupt("is not sorted by partition")
    return entries


def _ascend(entries: Sequence[SliceEntry]) -> bool:
    tips = [(entry.topic_id, entry.partition) for entry in entries]
    return all(map(operator.lt, tips, itertools.islice(tips, 1, None)))


def _encode_entry(entry: SliceEntry, heap: _Heap) -> bytes:
    stream, index, last_batch = entry.key_stream, entry.index, entry.last_batch
    horizon_ms = entry.earliest_delete_horizon_ms
    flags = (
        HAS_ABORTED_FLAG * entry.has_aborted
        | HAS_LAST_BATCH_FLAG * (last_batch is not None)
        | HAS_KEY_STREAM_FLAG * (stream is not None)
        | HAS_DELETE_HORIZON_FLAG * (horizon_ms is not None)
    )
    last_batch = last_batch or _NO_BATCH
    stream = stream or _NO_KEY_STREAM
    topic_position, topic_bytes = heap.put_text(entry.topic)
    epochs_position = heap.put(b"".join([LEADER_EPOCH.pack(*epoch) for epoch in entry.leader_epochs]))
    transactions_position = heap.put(
        b"".join([OPEN_TRANSACTION.pack(*one) for one in entry.open_transactions])
    )
    return ENTRY.pack(
        entry.topic_id.bytes,
        entry.partition,
        flags,
        entry.base_offset,
        entry.end_offset,
        entry.stable_end_offset,
        entry.data_position,
        entry.data_bytes,
        entry.min_timestamp,
        entry.max_timestamp,
        entry.max_timestamp_offset,
        horizon_ms or 0,
        last_batch.base_offset,
        stream.position,
        stream.size_bytes,
        stream.hash_key_id,
        index.position,
        index.size_bytes,
        entry.data_crc,
        entry.record_count,
        entry.codec_mask,
        entry.tombstone_count,
        entry.marker_count,
        last_batch.epoch,
        last_batch.crc,
        stream.crc,
        stream.entry_count,
        index.crc,
        topic_position,
        topic_bytes,
        epochs_position,
        len(entry.leader_epochs),
        transactions_position,
        len(entry.open_transactions),
    )


def _decode_entry(data: Buffer, position: int, texts: dict[tuple[int, int], str]) -> SliceEntry:
    """`texts`: those that were read, by position and size."""
    field = dict(zip(ENTRY.positions, ENTRY.unpack(data, position), strict=True))
    flags: int = field["flags"]
    if flags & ~KNOWN_FLAGS:
        raise _newer(flags)
    entry = SliceEntry(
        topic_id=_topic_id(field["topic_id"]),
        topic=_text(data, (field["topic_position"], field["topic_bytes"]), texts),
        partition=field["partition"],
        base_offset=field["base_offset"],
        end_offset=field["end_offset"],
        data_position=field["data_position"],
        data_bytes=field["data_bytes"],
        data_crc=field["data_crc"],
        record_count=field["record_count"],
        min_timestamp=field["min_timestamp"],
        max_timestamp=field["max_timestamp"],
        max_timestamp_offset=field["max_timestamp_offset"],
        codec_mask=field["codec_mask"],
        stable_end_offset=field["stable_end_offset"],
        has_aborted=flags & HAS_ABORTED_FLAG != 0,
        open_transactions=tuple(
            map(
                OpenTransaction._make,
                _pairs(
                    data,
                    OPEN_TRANSACTION,
                    field["open_transactions_position"],
                    field["open_transaction_count"],
                ),
            )
        ),
        tombstone_count=field["tombstone_count"],
        marker_count=field["marker_count"],
        earliest_delete_horizon_ms=(
            field["earliest_delete_horizon_ms"] if flags & HAS_DELETE_HORIZON_FLAG else None
        ),
        leader_epochs=tuple(
            map(
                LeaderEpoch._make,
                _pairs(data, LEADER_EPOCH, field["leader_epochs_position"], field["leader_epoch_count"]),
            )
        ),
        last_batch=(
            LastBatch(field["last_batch_base_offset"], field["last_batch_epoch"], field["last_batch_crc"])
            if flags & HAS_LAST_BATCH_FLAG
            else None
        ),
        key_stream=_key_stream(field) if flags & HAS_KEY_STREAM_FLAG else None,
        index=PartRef(field["index_position"], field["index_bytes"], field["index_crc"]),
    )
    fault = entry.fault()
    if fault is not None:
        raise _corrupt(f"contradicts itself about {entry.topic}-{entry.partition}: {fault}")
    return entry


@functools.lru_cache(maxsize=1024)
def _topic_id(data: bytes) -> UUID:
    """Cached: equal ids are one object, which makes comparing and sorting entries fast."""
    return UUID(bytes=data)


def _key_stream(field: dict[str, int]) -> KeyStreamRef:
    return KeyStreamRef(
        position=field["key_stream_position"],
        size_bytes=field["key_stream_bytes"],
        entry_count=field["key_stream_entry_count"],
        crc=field["key_stream_crc"],
        hash_key_id=field["hash_key_id"],
    )


def _text(data: Buffer, place: tuple[int, int], texts: dict[tuple[int, int], str]) -> str:
    known = texts.get(place)
    if known is not None:
        return known
    position, size_bytes = place
    if position + size_bytes > len(data):
        raise _corrupt("refers to a text behind its end")
    try:
        text = texts[place] = bytes(data[position : position + size_bytes]).decode()
    except UnicodeDecodeError as error:
        raise _corrupt("holds a text that is not UTF-8") from error
    return text


def _pairs(data: Buffer, layout: FixedLayout, position: int, count: int) -> list[tuple[int, int]]:
    end = position + count * layout.size_bytes
    if end > len(data):
        raise _corrupt("refers to a list behind its end")
    return [layout.unpack(data, place) for place in range(position, end, layout.size_bytes)]


class _Heap:
    """The parts of variable length behind the fixed entries. Equal texts are stored once. Not thread-safe:
    one encoding uses it.
    """

    def __init__(self, position: int) -> None:
        self.data = bytearray()
        self._position = position
        self._texts: dict[str, int] = {}

    def put(self, data: bytes) -> int:
        """Append `data`; returns its position from the start of the directory."""
        position = self._position + len(self.data)
        self.data += data
        return position

    def put_text(self, text: str) -> tuple[int, int]:
        encoded = text.encode()
        if text not in self._texts:
            self._texts[text] = self.put(encoded)
        return self._texts[text], len(encoded)


def _corrupt(problem: str) -> StoreCorruptError:
    return StoreCorruptError(
        f"the directory of an object {problem}; keep the object and find out what changed it"
    )


def _newer(flags: int) -> StoreNotUsableError:
    return StoreNotUsableError(
        "the directory of an object has a newer format; use a newer version of the software", flags=flags
    )
