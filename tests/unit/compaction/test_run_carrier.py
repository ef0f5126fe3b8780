"""Slices of a compacted topic that are carried keep a key stream, if all have one."""

from __future__ import annotations

import pytest

from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.objects.key_stream import SMALL_STREAM_BYTES
from tests.support.compaction.carried_slices import carry
from tests.support.compaction.key_streams import require_key_streams
from tests.support.tiered.tiered_site import TieredSite

T0 = TopicPartition("t", 0)


class World(TieredSite):
    """A server with one compacted partition."""

    def __init__(self, cleanup_policy: str = "compact") -> None:
        super().__init__()
        self.logs = self.start()
        topic = self.logs.create_topic("t", 1, {"cleanup.policy": cleanup_policy})
        self.tip = TopicIdPartition(topic.topic_id, 0)

    def upload(self, *batches: list[bytes]) -> None:
        """One object, with a batch for each list of keys."""
        for keys in batches:
            records = [Record(0, self.clock.now_ms(), key, b"v") for key in keys]
            self.logs.logs[T0].appender.append_as_leader(encode_batch(records), self.logs.claimed.epoch)
        self.logs.seal()
        assert not self.logs.upload().failed

    def slices(self) -> tuple[LiveSlice, ...]:
        return tuple(self.logs.metadata.state().partition(self.tip).slices)

    def carry_all(self) -> LiveSlice:
        carry(self.logs, self.tip, self.slices(), self.ids)
        (output,) = self.slices()
        require_key_streams(self.store, self.logs.metadata, self.logs.catalog)
        return output


@pytest.mark.parametrize("log_start", [0, 1, 2, 3, 5])
def test_the_newest_entry_of_each_key_counts(log_start: int) -> None:
    world = World()
    world.upload([b"a", b"b"], [b"c", b"a"])
    world.upload([b"b", b"d"])
    epoch = world.logs.claimed.epoch
    world.logs.metadata.advance_log_start({world.tip: log_start}, epoch=epoch, catalog_seq=None)
    output = world.carry_all()
    stream = output.entry.key_stream
    assert stream is not None
    # Whole batches below log start are gone, and their keys with them.
    assert (output.entry.record_count, stream.entry_count) == {
        0: (6, 4),
        1: (6, 4),
        2: (4, 4),
        3: (4, 4),
        5: (2, 2),
    }[log_start]


def test_large_key_streams_are_merged_block_by_block() -> None:
    world = World()
    keys = [b"key-%05d" % number for number in range(9000)]
    world.upload(keys)
    world.upload(keys[4000:] + [b"new-%05d" % number for number in range(500)])
    sizes = [stream.size_bytes for live in world.slices() if (stream := live.entry.key_stream) is not None]
    assert min(sizes) < SMALL_STREAM_BYTES < max(sizes)
    output = world.carry_all()
    assert output.entry.key_stream is not None
    assert (output.entry.record_count, output.entry.key_stream.entry_count) == (14_500, 9_500)


def test_without_the_key_stream_of_one_slice_there_is_none() -> None:
    world = World("delete")
    world.upload([b"a"])
    world.logs.catalog.alter(world.tip.topic_id, config={"cleanup.policy": "compact"})
    world.upload([b"b"])
    assert world.carry_all().entry.key_stream is None
