"""The examples of docs/formats/segment.md are what the code writes."""

from __future__ import annotations

import re
from pathlib import Path
from uuid import UUID

from crc32c import crc32c

from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import format_checkpoint
from stratalog.log.leader_epoch_cache import EpochEntry, format_epochs
from stratalog.log.producer_snapshot import ProducerSnapshot
from stratalog.log.producer_state_entry import BatchMetadata, ProducerStateEntry
from stratalog.manager.partition_metadata import format_partition_metadata, parse_partition_metadata
from stratalog.segment.offset_index import OffsetIndex
from stratalog.segment.time_index import TimeIndex
from stratalog.segment.timestamp_offset import TimestampOffset
from stratalog.segment.transaction_checksum import checksum_line
from stratalog.segment.transaction_index import AbortedTransaction, TransactionIndex

DOCUMENT = (Path(__file__).parents[3] / "docs" / "formats" / "segment.md").read_text()


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
    assert checksum_line(crc32c(index.to_bytes()), 5647).decode() == example("transaction checksum")


def test_the_producer_snapshot() -> None:
    batch = BatchMetadata(last_sequence=1, last_offset=1, offset_delta=1, timestamp_ms=1_700_000_000_000)
    entry = ProducerStateEntry(2, 0, -1, 1_700_000_000_000, 0, (batch,))
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
