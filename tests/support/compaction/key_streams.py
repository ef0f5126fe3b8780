"""Holds the key streams of live slices against their data: the last record of each key, by its place."""

from __future__ import annotations

from stratalog.objectstore.protocol import ObjectStore
from stratalog.record.batch import batches, decode
from stratalog.record.native.kernels import siphash128
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.objects.key_stream import key_blocks
from stratalog.remote.objects.slice_entry import SliceEntry

Entry = tuple[bytes, bytes, int, bool]
"""Both halves of the hash, the ordinal, and whether it is a tombstone."""


def require_key_streams(store: ObjectStore, metadata: MetadataLog, catalog: Catalog) -> int:
    """Check all key streams. Returns the number of those with entries. Raises AssertionError."""
    state = metadata.state()
    found_count = 0
    for tip in state.partitions:
        topic = catalog.by_id(tip.topic_id)
        assert topic is not None
        for live in state.partition(tip).slices:
            if live.gap is None and live.entry.key_stream is not None:
                key = metadata.layout.data_key(live.object_name)
                found = _found(store, key, live.entry)
                assert found == _expected(store, key, live.entry, topic.hash_key)
                found_count += bool(found)
    return found_count


def _found(store: ObjectStore, key: str, entry: SliceEntry) -> list[Entry]:
    stream = entry.key_stream
    assert stream is not None
    if not stream.size_bytes:
        return []
    data = store.get_range(key, stream.position, stream.size_bytes)
    return [
        (
            bytes(block.hash_high[8 * index : 8 * index + 8]),
            bytes(block.hash_low[8 * index : 8 * index + 8]),
            int.from_bytes(block.ordinal[4 * index : 4 * index + 4], "little"),
            block.tombstone[index] == 1,
        )
        for block in key_blocks(data, stream, entry.record_count)
        for index in range(block.entry_count)
    ]


def _expected(store: ObjectStore, key: str, entry: SliceEntry, hash_key: bytes) -> list[Entry]:
    if not entry.data_bytes:
        return []
    newest: dict[tuple[int, int], tuple[int, bool]] = {}
    data = store.get_range(key, entry.data_position, entry.data_bytes)
    numbered = [
        (record, header.is_control) for position, header in batches(data) for record in decode(data, position)
    ]
    for ordinal, (record, is_marker) in enumerate(numbered):
        if is_marker:
            continue
        assert record.key is not None
        newest[siphash128(hash_key, record.key)] = ordinal, record.is_tombstone
    return [
        (high.to_bytes(8, "little"), low.to_bytes(8, "little"), *newest[high, low])
        for high, low in sorted(newest)
    ]
