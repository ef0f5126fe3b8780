"""Indexes made again from a real broker's data have the bytes that the broker wrote.

Kafka's rule decides every entry (see `segment_indexes`), for appended and for compacted segments alike, so
nothing is left out of the comparison: not the entry that closes a time index, nor the indexes that are empty.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import format_checkpoint, parse_checkpoint
from stratalog.manager.directories.partition_metadata import (
    format_partition_metadata,
    parse_partition_metadata,
)
from stratalog.record.batch import batches
from stratalog.record.header import BatchHeader
from stratalog.segment.batch_headers import row_of
from stratalog.segment.file_names import parse_segment_name
from stratalog.segment.indexes.offset_index import OffsetIndex
from stratalog.segment.indexes.segment_indexes import SegmentIndexes
from stratalog.segment.indexes.time_index import TimeIndex
from tests.support.places import GOLDEN

DATA = GOLDEN / "data"
SEGMENTS = sorted(DATA.glob("*/*.index"))
KAFKA_INTERVAL_BYTES = 4096


def segment_batches(index_path: Path) -> list[tuple[int, BatchHeader]]:
    """Position and header of each batch of the segment that the index belongs to."""
    return list(batches(index_path.with_suffix(".log").read_bytes()))


@pytest.mark.parametrize("index_path", SEGMENTS, ids=lambda path: f"{path.parent.name}-{int(path.stem)}")
def test_rebuilt_indexes_are_kafkas(index_path: Path) -> None:
    parsed = parse_segment_name(index_path.name)
    assert parsed is not None
    indexes = SegmentIndexes.empty(parsed[0])
    for position, header in segment_batches(index_path):
        indexes.add_rows([row_of(position, header)], KAFKA_INTERVAL_BYTES)
    indexes.time_index.maybe_append(indexes.max_timestamp)
    offset_data, time_data = index_path.read_bytes(), index_path.with_suffix(".timeindex").read_bytes()
    assert indexes.offset_index.to_bytes() == offset_data
    assert indexes.time_index.to_bytes() == time_data
    assert list(OffsetIndex(parsed[0], offset_data)) == list(indexes.offset_index)
    assert list(TimeIndex(parsed[0], time_data)) == list(indexes.time_index)


def test_the_golden_segments_are_worth_comparing() -> None:
    assert len(SEGMENTS) == 11
    sizes = [path.stat().st_size for path in SEGMENTS]
    assert max(sizes) == 32
    assert 0 in sizes


@pytest.mark.parametrize("name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint"])
def test_checkpoints_of_kafka_are_read_and_written_alike(name: str) -> None:
    text = (DATA / name).read_text()
    offsets = parse_checkpoint(text)
    # Kafka writes the lines in the order of a hash map.
    assert sorted(format_checkpoint(offsets).splitlines()) == sorted(text.splitlines())
    if name.startswith("recovery"):
        assert offsets[TopicPartition("g1-compacted", 0)] == 6083
    else:
        assert offsets == {TopicPartition("g1-recompressed", 0): 37}


@pytest.mark.parametrize("path", sorted(DATA.glob("*/partition.metadata")), ids=str)
def test_partition_metadata_of_kafka_is_read_and_written_alike(path: Path) -> None:
    text = path.read_text()
    assert format_partition_metadata(parse_partition_metadata(text)) == text
