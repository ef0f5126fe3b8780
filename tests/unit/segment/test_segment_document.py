"""The examples of docs/formats/segment.md are what the code writes."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import format_checkpoint
from stratalog.log.leader_epoch_cache import EpochEntry, format_epochs
from stratalog.log.producers.producer_snapshot import ProducerSnapshot
from stratalog.log.producers.producer_state_entry import BatchMetadata, ProducerStateEntry
from stratalog.manager.directories.manifest import (
    AsideEntry,
    Manifest,
    PartitionEntry,
    PartitionState,
    parse_manifest,
)
from stratalog.manager.directories.partition_metadata import (
    format_partition_metadata,
    parse_partition_metadata,
)
from stratalog.record.native.batch_row import BatchRow
from stratalog.remote.metadata.ownership.claims import ClaimsFile
from stratalog.remote.metadata.ownership.seen_heads import format_seen_heads, parse_seen_heads
from stratalog.segment.indexes.offset_index import OffsetIndex
from stratalog.segment.indexes.segment_indexes import SegmentIndexes
from stratalog.segment.indexes.time_index import TimeIndex
from stratalog.segment.indexes.transaction_index import AbortedTransaction, TransactionIndex
from stratalog.segment.segment_seal import SegmentSeal
from stratalog.segment.timestamp_offset import TimestampOffset
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.logs.edited_manifest import format_manifest
from tests.support.places import DOCS

DOCUMENT = (DOCS / "formats" / "segment.md").read_text()

MOVE = UUID("7f1c2d60-a1f9-4e0b-9d1f-2f6f7b3f5a11")


def example(name: str) -> str:
    """The indented block under the marker of that name."""
    found = re.search(rf"<!-- example: {name} -->\n((?:    .*\n)+)", DOCUMENT)
    assert found is not None, name
    return re.sub(r"(?m)^    ", "", found[1])


def test_the_offset_index() -> None:
    index = OffsetIndex(147_001)
    index.append(147_068, 5647)
    assert index.to_bytes() == bytes.fromhex(example("offset index"))


def test_the_time_index() -> None:
    index = TimeIndex(147_001)
    index.maybe_append(TimestampOffset(1_700_000_004_960, 147_068))
    assert index.to_bytes() == bytes.fromhex(example("time index"))


def test_the_transaction_index() -> None:
    index = TransactionIndex(2)
    index.append(AbortedTransaction(2, 13, 19, 20))
    assert index.to_bytes() == bytes.fromhex(example("transaction index"))


def test_the_seal() -> None:
    indexes = [bytes.fromhex(example(f"{name} index")) for name in ("offset", "time", "transaction")]
    batches = SegmentIndexes.empty(147_001)
    batches.add_rows(
        [
            BatchRow(
                position=0,
                size_bytes=5647,
                base_offset=147_001,
                last_offset=147_060,
                max_timestamp_ms=1_700_000_004_950,
                leader_epoch=7,
                is_noted=True,
            ),
            BatchRow(
                position=5647,
                size_bytes=300,
                base_offset=147_061,
                last_offset=147_068,
                max_timestamp_ms=1_700_000_004_960,
                leader_epoch=8,
                is_noted=True,
            ),
            BatchRow(
                position=5947,
                size_bytes=65,
                base_offset=147_069,
                last_offset=147_069,
                max_timestamp_ms=1_700_000_004_955,
                leader_epoch=8,
                is_noted=False,
            ),
        ],
        4096,
    )
    seal = SegmentSeal.of(
        6_012,
        147_070,
        batches.headers.packed(),
        OffsetIndex.seal_of(indexes[0]),
        TimeIndex.seal_of(indexes[1]),
        TransactionIndex.seal_of(indexes[2]),
    )
    assert seal.to_bytes() == bytes.fromhex(example("seal"))
    assert SegmentSeal.from_bytes(seal.to_bytes()) == seal


def test_the_producer_snapshot() -> None:
    batch = BatchMetadata(last_sequence=1, last_offset=1, offset_delta=1, timestamp_ms=1_700_000_000_000)
    entry = ProducerStateEntry(
        producer_id=2,
        epoch=0,
        coordinator_epoch=-1,
        last_timestamp_ms=1_700_000_000_000,
        current_txn_first_offset=0,
        batches=(batch,),
    )
    assert ProducerSnapshot(2, (entry,)).to_bytes() == bytes.fromhex(example("producer snapshot"))


def test_the_leader_epochs() -> None:
    entries = [EpochEntry(0, 0), EpochEntry(7, 105_640)]
    assert format_epochs(entries).decode() == example("leader epochs")


def test_the_partition_metadata() -> None:
    topic_id = UUID("c18e718f-16bf-417e-afbc-fd863765585b")
    assert parse_partition_metadata(example("partition metadata")) == topic_id
    assert format_partition_metadata(topic_id) + "\n" == example("partition metadata")


def test_the_checkpoint() -> None:
    offsets = {TopicPartition("orders", 1): 105_640, TopicPartition("orders", 0): 105_823}
    assert format_checkpoint(offsets) == example("checkpoint")


@pytest.fixture
def directory() -> MemoryFileSystem:
    """A disk with an empty directory `/d`."""
    disk = MemoryFileSystem()
    disk.make_directories("/d")
    return disk


def test_the_manifest() -> None:
    topic_id = parse_partition_metadata(example("partition metadata"))
    manifest = Manifest(
        "66OiJamjSDoWdGb695vWvA",
        {"hT0dKZTUQYWRW1R1pmXqAA": "/disk-b/logs"},
        {
            TopicPartition("orders", 0): PartitionEntry(
                topic_id,
                log_start_offset=105823,
                move_number=2,
                import_epoch=12,
                horizon_ms=1_700_086_400_000,
            ),
            TopicPartition("orders", 3): PartitionEntry(topic_id, PartitionState.INCOMING, 0, 1),
        },
        {f"orders-1.{MOVE.hex}-stray": AsideEntry(TopicPartition("orders", 1), topic_id, 0, 17)},
        cordoned=True,
    )
    assert format_manifest(manifest).decode() == example("manifest")
    assert parse_manifest(example("manifest").encode()) == manifest


def test_the_claims(directory: MemoryFileSystem) -> None:
    claims = frozenset(map(UUID, example("claims").splitlines()))
    file = ClaimsFile(directory, "/d", 0)
    file.write(claims)
    assert directory.read_file("/d/claims-0000").decode() == example("claims")
    assert file.read() == claims


def test_the_heads_that_were_seen() -> None:
    data = example("seen heads").encode()
    claim = UUID(example("claims").splitlines()[-1])
    [(shard, seen)] = parse_seen_heads(data).items()
    assert (shard, seen.seq, seen.epoch, seen.claim) == (0, 118, 4, claim)
    assert format_seen_heads({shard: seen}) == data
