"""An export of two small partitions in memory, made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from types import MappingProxyType

import pyarrow as pa

from stratalog.base.clock import Clock
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.objectstore.protocol import ObjectStore
from stratalog.pipeline.transfer.export_manifest import (
    ExportedFile,
    ExportedPartition,
    ExportedTopic,
    ExportManifest,
    write_manifest,
)
from stratalog.pipeline.transfer.parquet_file import FILE_SCHEMA, write_file
from stratalog.pipeline.transfer.topic_import import ImportReport, import_topic
from stratalog.record.codecs.compression import Codec
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.inline_cluster import InlineCluster, InlinePlace

STARTS = (5, 0)
"""The first offset of each partition; three records follow."""


def accept_all(_config: Mapping[str, str]) -> Codec:
    """Any configuration."""
    return Codec.NONE


class SmallExport:
    """An export, and imports of it. Not thread-safe: one test uses it."""

    def __init__(
        self, clock: Clock, *, hole: int = 0, topic_config: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """With a `hole` each partition has a second file behind it, and another hole at its end."""
        self._clock = clock
        self._source = MemoryObjectStore(clock)
        partitions = tuple(self._partition(number, start, hole) for number, start in enumerate(STARTS))
        topic = ExportedTopic("t", "", len(STARTS), dict(topic_config), partitions)
        write_manifest(self._source, ExportManifest("", "read_committed", 0, (topic,)))

    def _partition(self, number: int, start: int, hole: int) -> ExportedPartition:
        begins = (start, start + 3 + hole) if hole else (start,)
        files = tuple(self._file(number, begin) for begin in begins)
        return ExportedPartition(number, start, begins[-1] + 3 + hole, files)

    def _file(self, number: int, begin: int) -> ExportedFile:
        row = {"key": b"k", "topic": "t", "partition": number, "timestampType": 0}
        rows = [
            {**row, "offset": begin + index, "value": b"%d" % index, "timestamp": index} for index in range(3)
        ]
        written = write_file([pa.RecordBatch.from_pylist(rows, schema=FILE_SCHEMA)])
        key = f"p{number}-{begin}"
        self._source.put(key, memoryview(written.data))
        return ExportedFile(
            key=key,
            first_offset=begin,
            end_offset=begin + 3,
            record_count=3,
            size_bytes=written.data.size,
            data_bytes=1,
        )

    def restore(
        self,
        store: ObjectStore,
        name: str = "new",
        seed: int = 1,
        *,
        config: Mapping[str, str] = MappingProxyType({}),
    ) -> ImportReport:
        """Import it into a store."""
        ids = SequentialIds(2 * seed), SequentialIds(2 * seed + 1)
        return import_topic(
            InlineCluster(Random(seed)),
            InlinePlace(MemoryFileSystem(), self._clock, ids[0], self._source),
            InlinePlace(MemoryFileSystem(), self._clock, ids[1], store),
            source_topic="",
            name=name,
            config=config,
            accept=accept_all,
        )
