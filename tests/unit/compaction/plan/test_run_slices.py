"""Slices as columns: the same slices."""

from __future__ import annotations

import pickle
from random import Random
from typing import Any

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.compaction.plan import run_slices
from stratalog.compaction.plan.run_slices import RunSlices
from stratalog.compaction.plan.slice_table import column_places
from stratalog.objectstore.memory import MemoryObjectStore
from stratalog.record.builder import encode_batch
from stratalog.record.record import Record
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.slice_columns import SliceRanges
from stratalog.remote.objects.slice_entry import LeaderEpoch, OpenTransaction, joined_epochs
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


def test_run_slices_are_the_same_slices() -> None:
    slices = runs_of(uploaded(1))[0]
    found = RunSlices(slices)
    assert found == slices
    assert tuple(found) == slices
    assert found.unpacked() == slices
    assert (len(found), found[-1], found[1:3].unpacked()) == (len(slices), slices[-1], slices[1:3])
    assert found != slices[1:]
    assert found.ranges == SliceRanges.of(slices)
    assert found.ranges.end_offsets == tuple(live.end_offset for live in slices)


def test_run_slices_keep_every_part_of_an_entry() -> None:
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
    unpacked = RunSlices(slices).unpacked()
    assert unpacked == slices
    kinds = [list(map(type, (live.entry, *live.entry))) for live in slices]
    assert [list(map(type, (live.entry, *live.entry))) for live in unpacked] == kinds
    assert list(map(type, unpacked[1].entry.open_transactions)) == [OpenTransaction] * 2
    assert list(map(type, unpacked[1].entry.leader_epochs)) == [LeaderEpoch] * 2


def test_columns_are_the_numbers_of_the_entries() -> None:
    slices = runs_of(uploaded(3))[1]
    entries = [live.entry for live in slices]
    found = RunSlices(slices)
    assert list(found.column("data_position")) == [entry.data_position for entry in entries]
    assert list(found.column("marker_count")) == [entry.marker_count for entry in entries]
    assert list(found.column("index.size_bytes")) == [entry.index.size_bytes for entry in entries]
    streams = [entry.key_stream for entry in entries]
    assert list(found.column("key_stream.crc")) == [stream.crc for stream in streams if stream is not None]
    assert found.leader_epochs == joined_epochs(entries) == (LeaderEpoch(1, slices[0].base_offset),)
    assert (found.base_offset, found.end_offset) == (slices[0].base_offset, slices[-1].end_offset)
    assert not found.are_transactional


@pytest.mark.parametrize(
    "change",
    [
        {"marker_count": 1},
        {"has_aborted": True},
        {"open_transactions": (OpenTransaction(1, 0),), "stable_end_offset": 0},
    ],
)
def test_one_slice_with_transactions_counts(change: dict[str, Any]) -> None:
    first, *rest = runs_of(uploaded(1))[0]
    assert RunSlices((first._replace(entry=first.entry._replace(**change)), *rest)).are_transactional


@pytest.mark.parametrize("hash_key_id", [0, 5, 1 << 63, (1 << 64) - 1])
def test_key_streams_are_those_of_one_hashing(hash_key_id: int) -> None:
    first, *rest = (with_stream(live, hash_key_id) for live in runs_of(uploaded(1))[0])
    assert RunSlices((first, *rest)).have_key_streams(hash_key_id)
    assert RunSlices((first, *rest)).unpacked() == (first, *rest)
    assert not RunSlices((first, *rest)).have_key_streams(hash_key_id ^ 1)
    assert not RunSlices((with_stream(first, hash_key_id ^ 1), *rest)).have_key_streams(hash_key_id)
    without = first._replace(entry=first.entry._replace(key_stream=None))
    assert not RunSlices((without, *rest)).have_key_streams(hash_key_id)


def with_stream(live: LiveSlice, hash_key_id: int) -> LiveSlice:
    stream = live.entry.key_stream
    assert stream is not None
    return live._replace(entry=live.entry._replace(key_stream=stream._replace(hash_key_id=hash_key_id)))


def test_a_part_of_a_run_is_a_run() -> None:
    slices = runs_of(uploaded(1))[0]
    # A clipped one.
    slices = (slices[0]._replace(base_offset=slices[0].end_offset - 1), *slices[1:])
    found = RunSlices(slices)
    assert (found[:1].unpacked(), found[2:5].unpacked(), found[0]) == (slices[:1], slices[2:5], slices[0])
    assert found[1:].ranges == SliceRanges.of(slices[1:])


def test_run_slices_take_few_bytes_and_go_to_another_process() -> None:
    runs = runs_of(uploaded(1))
    data = pickle.dumps(list(map(RunSlices, runs)))
    assert len(data) < 320 * sum(map(len, runs))
    assert pickle.loads(data) == runs


@pytest.mark.parametrize("table_slices", [1, 7, 4096])
def test_runs_of_one_table_are_as_each_by_itself(table_slices: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_slices, "TABLE_SLICES", table_slices)
    runs = runs_of(uploaded(2))
    opened = (OpenTransaction(7, runs[1][-1].base_offset),)
    entry = runs[1][-1].entry._replace(
        open_transactions=opened, stable_end_offset=runs[1][-1].base_offset, leader_epochs=()
    )
    runs[1] = (*runs[1][:-1], runs[1][-1]._replace(entry=entry))
    together, alone = list(RunSlices.of_runs(runs)), list(map(RunSlices, runs))
    assert together == alone == runs
    for one, other in zip(together, alone, strict=True):
        assert one.ranges == other.ranges
        assert one.leader_epochs == other.leader_epochs
        assert one.are_transactional == other.are_transactional
        assert one[1:].unpacked() == other.unpacked()[1:]
        for name in ("data_position", "record_count", "key_stream.crc"):
            assert one.column(name) == other.column(name)
            places = column_places(name)
            assert (one.first(places), one.last(places)) == ([one.column(name)[0]], [one.column(name)[-1]])
    assert pickle.loads(pickle.dumps(together)) == runs


def test_a_table_with_other_key_streams_tells_those_of_each_run() -> None:
    runs = [
        tuple(with_stream(live, number) for live in run) for number, run in enumerate(runs_of(uploaded(1)))
    ]
    for number, slices in enumerate(RunSlices.of_runs(runs)):
        assert slices.have_key_streams(number)
        assert not slices.have_key_streams(number + 1)


def test_a_run_with_a_hole_is_refused() -> None:
    first, _, *rest = runs_of(uploaded(1))[0]
    with pytest.raises(AssertionError):
        list(RunSlices.of_runs([(first,), (first, *rest)]))
