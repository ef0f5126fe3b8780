"""Keys go to the range of their hash, and none gets lost unnoticed."""

from __future__ import annotations

from random import Random

import pytest

from stratalog.base.errors import StoreCorruptError
from stratalog.compaction.job_execution import JobClock
from stratalog.pipeline.jobs.key_exchange import KeyPiece, SliceBits, ranges_of
from stratalog.record.native.kernels import KeyEntries, sort_key_entries
from stratalog.remote.objects.key_stream import KeyBlock, encode_key_stream, key_blocks
from stratalog.remote.objects.slice_entry import KeyStreamRef
from tests.support.compaction.both_ways import BothWays
from tests.support.tiered.compaction_history import CompactionHistory

UINT64 = 1 << 64


def block_of(hashes: list[int], *, has_versions: bool) -> KeyBlock:
    entries = KeyEntries(has_versions=has_versions)
    for ordinal, high in enumerate(hashes):
        entries.hash_high.append(high)
        entries.hash_low.append(ordinal)
        entries.ordinal.append(ordinal)
        entries.tombstone.append(ordinal % 2)
        if entries.version is not None:
            entries.version.append(-ordinal)
    encoded = encode_key_stream(sort_key_entries(entries))
    ref = KeyStreamRef(0, encoded.size_bytes, encoded.entry_count, encoded.crc, 0)
    [block] = key_blocks(b"".join(map(bytes, encoded.parts)), ref, len(hashes))
    return block


@pytest.mark.parametrize("has_versions", [False, True])
@pytest.mark.parametrize("range_count", [1, 2, 3, 7, 1000])
def test_a_block_is_cut_at_the_bounds_of_ranges(range_count: int, has_versions: bool) -> None:
    random = Random(range_count)
    bounds = [-(-number * UINT64 // range_count) for number in range(1, range_count)]
    near = [bound + difference for bound in bounds[:5] for difference in (-1, 0, 1)]
    hashes = sorted({0, UINT64 - 1, *near, *(random.randrange(UINT64) for _ in range(200))})
    block = block_of(hashes, has_versions=has_versions)
    pieces = list(ranges_of(block, range_count))
    assert [number for number, _ in pieces] == sorted({high * range_count // UINT64 for high in hashes})
    for number, columns in pieces:
        piece = KeyPiece(0, 0, 0, columns).block()
        assert {high * range_count // UINT64 for high in piece.hash_high.cast("Q")} == {number}
    for index, column in enumerate(block[1:5] + ((block.version,) if has_versions else ())):
        assert column is not None
        assert b"".join(columns[index] for _, columns in pieces) == bytes(column)


@pytest.mark.parametrize("kind", [KeyPiece, SliceBits])
def test_a_loss_between_tasks_fails_the_job(kind: type) -> None:
    """A key that did not arrive would let an older record of it stay, or lose the newest one."""
    history = CompactionHistory(3)
    both = BothWays(Random(3), history.store, history.clock)
    for _ in range(6):
        history.upload()
    [job, *_] = history.tiered.compactor().plan(list(history.tiered.catalog.topics())).jobs
    shard = history.tiered.shard(history.store)
    job_clock = JobClock(history.clock.now_ms(), may_drop_tombstones=True)
    order = shard.order(job, history.compactor().settings, job_clock)
    lost: list[object] = []

    def lose_one(value: object) -> int:
        if isinstance(value, kind) and not lost:
            lost.append(value)
            return 0
        return 1

    both.cluster.copies = lose_one
    with pytest.raises(StoreCorruptError) as caught:
        both.execute(order, lambda _read, _kept: None)
    assert lost
    assert {"topic", "partition", "object", "slice_base_offset", "merged_count"} <= caught.value.fields.keys()
