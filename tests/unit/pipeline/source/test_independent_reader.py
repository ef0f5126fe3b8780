"""The source reads the rows that a reader reads that was written from docs/formats alone."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

import pytest

from stratalog.base.posix_filesystem import PosixFileSystem
from stratalog.base.types import TopicIdPartition
from stratalog.objectstore.local import LocalObjectStore
from stratalog.pipeline.source.schema import COLUMNS_BY_NAME
from stratalog.pipeline.source.slice_scan import scan
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.spark.format_reader import Row, read_topic
from tests.support.spark.topic_scan import topic_spans
from tests.support.tiered.tiered_store import TieredStore

EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
CODECS = (Codec.NONE, Codec.GZIP, Codec.ZSTD)


class RandomTopic:
    """A compacted topic with a random life in a directory. Not thread-safe: one test uses it."""

    def __init__(self, root: Path, seed: int) -> None:
        self._random = random.Random(seed)
        clock = ManualClock(1_700_000_000_000)
        self.store = LocalObjectStore(PosixFileSystem(), clock, SequentialIds(seed), str(root))
        self.tiered = TieredStore(MemoryFileSystem(), self.store, clock, SequentialIds(seed + 1))
        config = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.0"}
        entry = self.tiered.catalog.create("t", 2, config)
        self._next = {TopicIdPartition(entry.topic_id, number): 0 for number in range(2)}

    def live(self) -> None:
        """Uploads, trims, compactions and folds."""
        for _ in range(12):
            match self._random.choice(("upload", "upload", "upload", "trim", "compact", "fold")):
                case "upload":
                    self._upload()
                case "trim":
                    self._trim()
                case "compact":
                    self.tiered.compactor().run()
                    self.tiered.metadata.refresh()
                case _:
                    self.tiered.metadata.fold()
        self._upload()

    def _upload(self) -> None:
        tips = self._random.sample(sorted(self._next), self._random.choice((1, 2)))
        self.tiered.upload(
            {tip: [self._batch(tip) for _ in range(self._random.randint(1, 4))] for tip in tips}
        )

    def _trim(self) -> None:
        tip = self._random.choice(sorted(self._next))
        partition = self.tiered.partition(tip)
        start_offset = partition.log_start_offset
        offset = self._random.randint(start_offset, max(start_offset, partition.tiered_end_offset - 1))
        if offset > start_offset:
            self.tiered.advance_log_start(tip, offset)

    def _batch(self, tip: TopicIdPartition) -> bytes:
        chosen = self._random
        records = [
            Record(
                0,
                1_700_000_000_000 + chosen.randrange(100_000),
                b"key-%d" % chosen.randrange(15),
                None if chosen.random() < 0.2 else chosen.randbytes(chosen.randrange(40)),
                tuple((f"name-{n}", chosen.choice((None, b"", b"x"))) for n in range(chosen.randrange(3))),
            )
            for _ in range(chosen.randint(1, 6))
        ]
        base_offset = self._next[tip]
        self._next[tip] += len(records)
        append_time_ms = chosen.choice((None, None, 1_700_000_999_999))
        return encode_batch(
            records, codec=chosen.choice(CODECS), base_offset=base_offset, append_time_ms=append_time_ms
        )


def source_rows(topic: RandomTopic, max_bytes: str) -> list[Row]:
    """The rows of the source, in the form of the independent reader."""
    spans = topic_spans(topic.store, topic="t", maxPartitionBytes=max_bytes)
    rows: list[Row] = []
    for batch in scan(topic.store, spans, tuple(COLUMNS_BY_NAME)):
        for row in batch.to_pylist():
            assert row["topic"] == "t"
            assert row["tombstone"] == (row["value"] is None)
            headers = tuple((one["key"], one["value"]) for one in row["headers"] or ())
            timestamp_ms = (row["timestamp"] - EPOCH) // dt.timedelta(milliseconds=1)
            place = row["partition"], row["offset"], timestamp_ms, row["timestampType"]
            rows.append(Row(*place, row["key"], row["value"], headers))
    return sorted(rows, key=lambda row: (row.partition, row.offset))


@pytest.mark.parametrize("seed", range(6))
def test_both_readers_read_the_same_rows(tmp_path: Path, seed: int) -> None:
    topic = RandomTopic(tmp_path, seed)
    topic.live()
    expected = read_topic(lambda key: (tmp_path / key).read_bytes(), "t")
    assert expected
    assert source_rows(topic, "1") == expected
    assert source_rows(topic, "1000000") == expected
