"""The key stream of a compacted slice is that of its records, whatever the sizes of the inputs' are."""

from __future__ import annotations

import pytest

from stratalog.base.errors import StoreCorruptError
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.keys.merged_keys import KeySource, merged_keys
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.codecs.compression import Codec
from stratalog.record.record import Record
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.compaction.key_streams import require_key_streams
from tests.support.tiered.tiered_store import TieredStore


@pytest.mark.parametrize("counts", [(9000, 9000), (9000, 20, 7000), (20, 9000), (30, 20)])
@pytest.mark.parametrize("with_key_streams", [True, False])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_the_key_stream_is_that_of_the_records(
    counts: tuple[int, ...], with_key_streams: bool, codec: Codec
) -> None:
    clock = ManualClock()
    tiered = TieredStore(MemoryFileSystem(), MemoryObjectStore(clock), clock, SequentialIds(1))
    topic = tiered.catalog.create("t", 1, {"cleanup.policy": "compact", "delete.retention.ms": "0"})
    tip = TopicIdPartition(topic.topic_id, 0)
    offset = 0
    for count in counts:
        records = [
            Record(
                0, clock.now_ms(), b"key-%05d" % (offset * 7 % 13_000 + number), b"v" if number % 5 else None
            )
            for number in range(count)
        ]
        batch = encode_batch(records, base_offset=offset, leader_epoch=1, codec=codec)
        tiered.upload({tip: [batch]}, with_key_streams=with_key_streams)
        offset += count
    # The first run stamps the tombstones, the second one drops them.
    removed_counts: list[int] = []
    for _ in range(2):
        (report,) = tiered.compactor().run()
        assert report.refused is None
        removed_counts.append(report.tombstones_removed)
        tiered.metadata.refresh()
        assert require_key_streams(tiered.store, tiered.metadata, tiered.catalog) == 1
    assert removed_counts[0] == 0 < removed_counts[1]


def test_other_records_than_stay_are_refused() -> None:
    source = KeySource(bytearray(b"\x03"), 8, b"", ())
    assert [len(entries) for entries in merged_keys(KeyHashing(bytes(16)), [source], 2)] == [0]
    with pytest.raises(StoreCorruptError):
        list(merged_keys(KeyHashing(bytes(16)), [source], 3))
