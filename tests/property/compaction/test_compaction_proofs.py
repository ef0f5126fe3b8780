"""The proof of `compacted_upto` against records that were written down: it finds each key that is there
twice, and nothing else."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from stratalog.compaction.proof.unique_keys import MAX_PAIR_COUNT, FoundKeys
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from tests.support.compaction.proofs import Scratch, found_below, proved, small_means
from tests.support.logs.sampling import examples_of
from tests.support.tiered.compaction_history import CompactionHistory
from tests.support.tiered.tiered_site import TieredSite
from tests.support.tiered.transaction_history import PRODUCERS, STEPS, Step, TransactionHistory

LIFE = 10

Keyed = tuple[int, bytes | None]
"""An offset and the key there."""


def is_clipped(partition: TieredPartition) -> bool:
    """Whether some slices have records that are not readable, below their base or log start."""
    log_start_offset = partition.log_start_offset
    return any(max(log_start_offset, one.base_offset) > one.entry.base_offset for one in partition.slices)


def require_found(found: FoundKeys, records: Iterable[Keyed], partition: TieredPartition, upto: int) -> None:
    """Hold the keys that were found against the records below `upto`."""
    offsets: dict[bytes, list[int]] = defaultdict(list)
    for offset, key in records:
        if key is not None and offset < upto:
            offsets[key].append(offset)
    objects = {
        offset: live.object_name
        for live in partition.slices
        for offset in range(live.base_offset, min(live.end_offset, upto))
    }
    pairs = {pair for found_offsets in offsets.values() for pair in itertools.pairwise(found_offsets)}
    if found.repeated_count or not is_clipped(partition):
        assert found.key_count == len(offsets)
    else:
        assert found.key_count >= len(offsets), "keys below the log start of a sound slice may count"
    assert found.repeated_count == len(pairs)
    named = [(older.offset, later.offset) for older, later in found.repeated]
    assert len(named) == len(set(named))
    if found.repeated_count < 2:
        assert set(named) == pairs
    # Of a key with many records in one part, some of those between the first and the last are only counted.
    ends = {key_offsets[-1] for key_offsets in offsets.values() if len(key_offsets) > 1}
    assert {later for _, later in named} >= ends or len(named) == MAX_PAIR_COUNT
    keys = {offset: key for key, found_offsets in offsets.items() for offset in found_offsets}
    assert all(older < later and keys[older] == keys[later] for older, later in named)
    for pair in found.repeated:
        assert all(objects[one.offset] == one.object_name for one in pair)


@settings(max_examples=examples_of(4))
@given(st.integers(0, 2**32))
def test_any_end_of_the_compacted_part_is_judged_as_the_records_say(seed: int) -> None:
    """Also those that no compaction has promised, in slices of any kind, clipped or cut by that end."""
    history = CompactionHistory(seed)
    random = Random(seed)
    for _ in range(LIFE):
        history.step()
    tiered, scratch = history.tiered, Scratch(random.choice((0, 1 << 20)))
    means = small_means(history.store, history.clock, tiered.layout, random, scratch)
    for tip in history.oracles:
        partition = tiered.partition(tip)
        records = [(record.offset, record.key) for record in tiered.records(tip)]
        for upto in {0, partition.compacted_upto, random.randint(0, partition.tiered_end_offset)}:
            found = found_below(means, tiered.metadata, tiered.catalog, tip, upto)
            require_found(found, records, partition, upto)
    scratch.require_given_back()


@settings(max_examples=examples_of(5))
@given(st.integers(0, 2**32), st.booleans())
def test_a_shard_that_compactions_have_made_has_no_findings(seed: int, reads_data: bool) -> None:
    history = CompactionHistory(seed)
    random = Random(seed)
    scratch = Scratch()
    for _ in range(LIFE):
        history.step()
        if random.random() < 0.7:
            continue
        means = small_means(history.store, history.clock, history.tiered.layout, random, scratch)
        report = proved(means, history.tiered.metadata, history.tiered.catalog, reads_data=reads_data)
        assert report.findings == ()
        assert report.finding_count == 0
        for one in report.partitions:
            (tip,) = [
                tip
                for tip in history.oracles
                if (history.tiered.topic(tip).name, tip.partition) == (one.topic, one.partition)
            ]
            partition, records = history.tiered.partition(tip), history.tiered.records(tip)
            below = [record for record in records if record.offset < one.compacted_upto]
            if not is_clipped(partition):
                assert one.key_count == sum(record.key is not None for record in below)
            assert one.size_bytes - one.dirty_bytes == sum(
                live.entry.data_bytes for live in partition.slices if live.end_offset <= one.compacted_upto
            )
    scratch.require_given_back()


@settings(max_examples=examples_of(5))
@given(STEPS, st.integers(150, 1000), st.integers(0, PRODUCERS), st.integers(0, 2**32))
def test_only_committed_records_count(
    steps: list[Step], max_object_bytes: int, open_count: int, seed: int
) -> None:
    """No marker, and no record of a transaction that was aborted or is undecided."""
    site = TieredSite(max_object_bytes=max_object_bytes)
    history = TransactionHistory(site.start(), is_unstable=True, config={"cleanup.policy": "compact"})
    logs, random = history.logs, Random(seed)
    history.play(steps)
    for producer_id in range(PRODUCERS - open_count):
        history.end(producer_id, committed=producer_id == 1)
    end_offset = history.upload()
    committed = [
        (offset, b"k")
        for offset, transaction in history.records
        if transaction is None or (transaction.marker_offset < end_offset and not transaction.is_aborted)
    ]
    scratch = Scratch()
    means = small_means(logs.store, logs.clock, logs.metadata.layout, random, scratch)
    for upto in (end_offset, random.randint(0, end_offset)):
        found = found_below(means, logs.metadata, logs.catalog, history.tip, upto)
        require_found(found, committed, logs.metadata.state().partition(history.tip), upto)
    scratch.require_given_back()
