"""Slices in few bytes: the same slices, and the same job."""

from __future__ import annotations

import itertools
import pickle
from random import Random

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.plan import planned_jobs
from stratalog.compaction.plan.packed_slices import PackedSlices
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.slice_columns import SliceRanges
from stratalog.remote.objects.slice_entry import LeaderEpoch, OpenTransaction
from stratalog.testing.manual_clock import ManualClock
from stratalog.testing.memory_filesystem import MemoryFileSystem
from stratalog.testing.sequential_ids import SequentialIds
from tests.support.tiered.tiered_store import TieredStore

PARTITIONS = 5


def uploaded(seed: int) -> TieredStore:
    """A store with a few objects of random keys, each with a slice of each partition."""
    random = Random(seed)
    clock = ManualClock()
    tiered = TieredStore(MemoryFileSystem(), MemoryObjectStore(clock), clock, SequentialIds(1))
    topic = tiered.catalog.create("t", PARTITIONS, {"cleanup.policy": "compact"})
    for number in range(6):
        slices: dict[TopicIdPartition, list[bytes]] = {}
        for partition in range(PARTITIONS):
            tip = TopicIdPartition(topic.topic_id, partition)
            keys = [b"%d" % random.randrange(8) for _ in range(random.randrange(1, 9))]
            records = [Record(0, 1000 + number, key, random.randbytes(20)) for key in keys]
            base_offset = tiered.partition(tip).tiered_end_offset
            slices[tip] = [encode_batch(records, base_offset=base_offset, leader_epoch=1)]
        tiered.upload(slices)
    return tiered


def runs_of(tiered: TieredStore) -> list[tuple[LiveSlice, ...]]:
    """The slices of each partition."""
    state = tiered.metadata.refresh()
    return [tuple(state.partition(tip).slices) for tip in sorted(state.partitions)]


def test_packed_slices_are_the_same_slices() -> None:
    slices = runs_of(uploaded(1))[0]
    packed = PackedSlices(slices)
    assert packed == slices
    assert tuple(packed) == slices
    assert packed.unpacked() == slices
    assert (len(packed), packed[-1], packed[1:3]) == (len(slices), slices[-1], slices[1:3])
    assert packed != slices[1:]
    assert packed.ranges == SliceRanges.of(slices)
    assert packed.ranges.end_offsets == tuple(live.end_offset for live in slices)


def test_packed_slices_keep_every_part_of_an_entry() -> None:
    first, second, *rest = runs_of(uploaded(1))[0]
    assert first.entry.key_stream is not None
    opened = (OpenTransaction(7, second.base_offset), OpenTransaction(9, second.base_offset + 1))
    epochs = (LeaderEpoch(1, second.base_offset), LeaderEpoch(4, second.base_offset + 1))
    slices = (
        first._replace(entry=first.entry._replace(last_batch=None, leader_epochs=())),
        second._replace(
            entry=second.entry._replace(
                open_transactions=opened,
                stable_end_offset=second.base_offset,
                leader_epochs=epochs,
                key_stream=None,
                earliest_delete_horizon_ms=-(2**62),
            )
        ),
        *rest,
    )
    unpacked = PackedSlices(slices).unpacked()
    assert unpacked == slices
    kinds = [list(map(type, (live.entry, *live.entry))) for live in slices]
    assert [list(map(type, (live.entry, *live.entry))) for live in unpacked] == kinds
    assert list(map(type, unpacked[1].entry.open_transactions)) == [OpenTransaction] * 2
    assert list(map(type, unpacked[1].entry.leader_epochs)) == [LeaderEpoch] * 2


def test_packed_slices_take_few_bytes_and_go_to_another_process() -> None:
    runs = runs_of(uploaded(1))
    data = pickle.dumps(list(map(PackedSlices, runs)))
    assert len(data) < 200 * sum(map(len, runs))
    assert pickle.loads(data) == runs


@pytest.mark.parametrize("held_slices", [0, 7])
def test_a_job_with_packed_runs_does_the_same(held_slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected, found = uploaded(2), uploaded(2)
    reports = expected.compactor().run_once()
    monkeypatch.setattr(planned_jobs, "HELD_SLICES", held_slices)
    compactor = found.compactor()
    [job] = compactor.plan().jobs
    assert [isinstance(run.slices, PackedSlices) for run in job.runs].count(True) >= PARTITIONS - 1
    assert compactor.run_once() == reports
    assert runs_of(found) == runs_of(expected)
    for live in itertools.chain(*runs_of(expected)):
        key = expected.layout.data_key(live.object_name)
        assert found.store.get(key) == expected.store.get(key)
