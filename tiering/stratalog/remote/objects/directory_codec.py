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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
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
    heap = _Heap(DIRECTORY_HEADER.size_bytes + len(entries) * ENTRY.size_bytes)
    fixed = ENTRY.pack_rows(_columns_of(entries) | heap.put_entries(entries))
    size_bytes = DIRECTORY_HEADER.size_bytes + len(fixed) + len(heap.data)
    padding = padding_bytes(size_bytes)
    header = DIRECTORY_HEADER.pack(len(entries), ENTRY.size_bytes, 0, 0, size_bytes + padding)
    return header + fixed + bytes(heap.data) + bytes(padding)


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
    entries = _entries_of(
        data, ENTRY.unpack_rows(data, DIRECTORY_HEADER.size_bytes, slice_count, entry_bytes)
    )
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


def _entries_of(data: Buffer, rows: dict[str, tuple[Any, ...]]) -> tuple[SliceEntry, ...]:
    """The entries of a directory's rows, given as columns."""
    flags = rows["flags"]
    if max(flags, default=0) > KNOWN_FLAGS:
        raise _newer(max(flags))

    def where(flag: int, values: Iterable[object]) -> list[object]:
        return [value if bits & flag else None for bits, value in zip(flags, values, strict=True)]

    def parts(make: Callable[..., object], *names: str) -> Iterator[object]:
        return map(make, *[rows[name] for name in names])

    columns: Mapping[str, Sequence[Any]] = rows | {
        "topic_id": list(map(_topic_id, rows["topic_id"])),
        "topic": _texts(data, rows["topic_position"], rows["topic_bytes"]),
        "index": list(parts(PartRef, "index_position", "index_bytes", "index_crc")),
        "has_aborted": [bits & HAS_ABORTED_FLAG != 0 for bits in flags],
        "open_transactions": _lists(
            data,
            OPEN_TRANSACTION,
            OpenTransaction,
            rows["open_transactions_position"],
            rows["open_transaction_count"],
        ),
        "earliest_delete_horizon_ms": where(HAS_DELETE_HORIZON_FLAG, rows["earliest_delete_horizon_ms"]),
        "leader_epochs": _lists(
            data, LEADER_EPOCH, LeaderEpoch, rows["leader_epochs_position"], rows["leader_epoch_count"]
        ),
        "last_batch": where(
            HAS_LAST_BATCH_FLAG,
            parts(LastBatch, "last_batch_base_offset", "last_batch_epoch", "last_batch_crc"),
        ),
        "key_stream": where(
            HAS_KEY_STREAM_FLAG,
            parts(
                KeyStreamRef,
                "key_stream_position",
                "key_stream_bytes",
                "key_stream_entry_count",
                "key_stream_crc",
                "hash_key_id",
            ),
        ),
    }
    return SliceEntry.of_columns(columns)


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
    make: Callable[[int, int], object],
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
        rows = layout.unpack_rows(data, begin, row_count, size_bytes)
        return [(one,) for one in map(make, *rows.values())]
    for position, count in zip(positions, counts, strict=True):
        end = position + count * size_bytes
        if end > len(data):
            raise _corrupt("refers to a list behind its end")
        places = range(position, end, size_bytes)
        found.append(tuple([make(*layout.unpack(data, place)) for place in places]))
    return found


class _Heap:
    """The parts of variable length behind the fixed entries. Equal texts are stored once. Not thread-safe:
    one encoding uses it.
    """

    def __init__(self, position: int) -> None:
        self.data = bytearray()
        self._position = position
        self._texts: dict[str, tuple[int, int]] = {}
        """The places of texts, and their sizes."""

    def put_entries(self, entries: Sequence[SliceEntry]) -> dict[str, Sequence[int]]:
        """Append the parts of all entries; returns the columns that refer to them."""
        topics: list[tuple[int, int]] = []
        epochs: list[tuple[int, int]] = []
        transactions: list[tuple[int, int]] = []
        for entry in entries:
            topics.append(self._texts.get(entry.topic) or self._put_text(entry.topic))
            epochs.append(self._put_list(LEADER_EPOCH, entry.leader_epochs))
            transactions.append(self._put_list(OPEN_TRANSACTION, entry.open_transactions))
        return {
            "topic_position": [position for position, _ in topics],
            "topic_bytes": [size_bytes for _, size_bytes in topics],
            "leader_epochs_position": [position for position, _ in epochs],
            "leader_epoch_count": [count for _, count in epochs],
            "open_transactions_position": [position for position, _ in transactions],
            "open_transaction_count": [count for _, count in transactions],
        }

    def _put_text(self, text: str) -> tuple[int, int]:
        """Append a text; returns its position from the start of the directory, and its size."""
        encoded = text.encode()
        place = self._texts[text] = self._position + len(self.data), len(encoded)
        self.data += encoded
        return place

    def _put_list(self, layout: FixedLayout, rows: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Append a list; returns its position from the start of the directory, and its length."""
        position = self._position + len(self.data)
        for row in rows:
            self.data += layout.pack(*row)
        return position, len(rows)


def _corrupt(problem: str) -> StoreCorruptError:
    return StoreCorruptError(
        f"the directory of an object {problem}; keep the object and find out what changed it"
    )


def _newer(flags: int) -> StoreNotUsableError:
    return StoreNotUsableError(
        "the directory of an object has a newer format; use a newer version of the software", flags=flags
    )
