"""A reader that comes back learns whether the log is the one that it has read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stratalog.base.errors import LogTruncatedError
from stratalog.base.types import TopicIdPartition
from stratalog.log.leader_epoch_cache import EpochEntry, LeaderEpochCache
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.slice_entry import LeaderEpoch
from stratalog.server.log_identity import UNKNOWN_EPOCH
from stratalog.server.partitions.epoch_history import EpochHistory
from stratalog.testing.memory_filesystem import MemoryFileSystem
from tests.support.tiered.sample_entry import sample_entry
from tests.support.tiered.shard_states import partition_of

TIP = TopicIdPartition(UUID(int=7), 0)


def starts_of(epochs: Sequence[int], start: int, end: int) -> list[tuple[int, int]]:
    """Epoch and first offset of each run of equal epochs in [start, end)."""
    return [
        (epochs[offset], offset)
        for offset in range(start, end)
        if offset == start or epochs[offset] != epochs[offset - 1]
    ]


def history_of(
    epochs: Sequence[int], *, log_start: int = 0, slice_ends: Sequence[int] = (), known_from: int = 0
) -> EpochHistory:
    """The history of a log with an epoch for each offset. Slices end at `slice_ends`; the local log knows the
    epochs from `known_from` on."""
    slices: list[LiveSlice] = []
    base = 0
    for end in slice_ends:
        leader_epochs = tuple(LeaderEpoch(*one) for one in starts_of(epochs, base, end))
        entry = sample_entry(base, end, leader_epochs=leader_epochs)
        if end > log_start:
            slices.append(LiveSlice(f"object-{end}", base, end, entry))
        base = end
    local = [EpochEntry(*one) for one in starts_of(epochs, max(known_from, log_start), len(epochs))]
    cache = LeaderEpochCache(MemoryFileSystem(), "/log", local)
    tiered = partition_of(TIP, slices)
    if slices:
        tiered = TieredPartition(TIP, tiered.with_log_start(max(log_start, slices[0].base_offset)).row)
    return EpochHistory(cache, tiered if slice_ends else None, log_start, len(epochs))


def truncation(history: EpochHistory, offset: int, epoch: int) -> tuple[int, int]:
    """The epoch and the end offset of the refusal."""
    with pytest.raises(LogTruncatedError) as refusal:
        history.require_same(offset, epoch)
    fields = refusal.value.fields
    assert (fields["offset"], fields["last_fetched_epoch"]) == (offset, epoch)
    common_epoch, end_offset = fields["epoch"], fields["end_offset"]
    assert isinstance(common_epoch, int)
    assert isinstance(end_offset, int)
    return common_epoch, end_offset


# Five records of epoch 1, then another server went on with epoch 3; epoch 2 had no record here.
TAKEN_OVER = [1] * 5 + [3] * 4


@pytest.mark.parametrize(
    "history",
    [
        history_of(TAKEN_OVER),
        history_of(TAKEN_OVER, slice_ends=[3, 7], known_from=7),
        history_of(TAKEN_OVER, slice_ends=[5], known_from=5),
        history_of(TAKEN_OVER, slice_ends=[9], known_from=9),
        history_of(TAKEN_OVER, slice_ends=[3, 9], known_from=3),
    ],
    ids=["local", "end of an epoch in a slice", "at the seam", "tiered", "both"],
)
def test_a_reader_of_the_former_log_is_sent_back_to_where_the_logs_part(history: EpochHistory) -> None:
    for offset in range(6):
        history.require_same(offset, 1)
    for offset in range(6, 10):
        history.require_same(offset, 3)
    assert truncation(history, 7, 1) == (1, 5)
    assert truncation(history, 7, 2) == (1, 5), "all records of an epoch that is not here are lost"
    assert truncation(history, 12, 3) == (3, 9), "it has read more of an epoch than this server had"
    assert truncation(history, 4, 3) == (3, 4), "never beyond the position of the reader"


def test_an_epoch_spans_the_hole_behind_its_records() -> None:
    """A reader that stepped over a hole has the epoch of the answer, not that of its last record."""
    history = history_of(TAKEN_OVER, slice_ends=[9], known_from=9)
    assert [history.epoch_at(offset) for offset in range(9)] == TAKEN_OVER
    assert history.epoch_at(9) == UNKNOWN_EPOCH
    assert history.epoch_at(-1) == UNKNOWN_EPOCH


def test_nothing_is_compared_below_the_log_start() -> None:
    history = history_of(TAKEN_OVER, log_start=6, slice_ends=[3, 7], known_from=7)
    history.require_same(6, 1)
    history.require_same(2, 99)
    assert truncation(history, 8, 1) == (1, 6), "the log start, because all of the epoch is deleted"


def test_a_slice_without_batches_has_the_epoch_of_the_slice_before_it() -> None:
    tiered = history_of([1] * 9, slice_ends=[5, 9], known_from=9).tiered
    assert tiered is not None
    first, empty = tiered.slices
    bare = partition_of(TIP, [first, empty._replace(entry=sample_entry(5, 9))])
    history = EpochHistory(LeaderEpochCache(MemoryFileSystem(), "/log"), bare, 0, 9)
    assert [history.epoch_at(offset) for offset in (4, 5, 8)] == [1, 1, 1]


class Layout(NamedTuple):
    """How the offsets of a log are spread over the tiers."""

    epochs: list[int]
    log_start: int
    slice_ends: list[int]
    known_from: int


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    steps = draw(st.lists(st.integers(0, 2), min_size=1, max_size=20))
    epochs: list[int] = []
    for step in steps:
        epochs.append((epochs[-1] if epochs else 1) + step)
    slice_ends = sorted(draw(st.sets(st.integers(1, len(epochs)), max_size=4)))
    tiered_end = slice_ends[-1] if slice_ends else 0
    log_start = draw(st.integers(0, len(epochs)))
    return Layout(epochs, log_start, slice_ends, draw(st.integers(0, max(tiered_end, log_start))))


@given(layout=layouts(), offset=st.integers(0, 25), epoch=st.integers(0, 45))
def test_the_answer_is_that_of_a_list_of_epochs(layout: Layout, offset: int, epoch: int) -> None:
    """The oracle keeps the epoch of each offset, wherever its record lies."""
    epochs, log_start, slice_ends, known_from = layout
    history = history_of(epochs, log_start=log_start, slice_ends=slice_ends, known_from=known_from)
    is_known = log_start < offset <= len(epochs)
    assert history.epoch_at(offset - 1) == (epochs[offset - 1] if is_known else UNKNOWN_EPOCH)
    if offset <= len(epochs) and not (is_known and epochs[offset - 1] != epoch):
        history.require_same(offset, epoch)
        return
    _, end_offset = truncation(history, offset, epoch)
    later = [one for one in range(log_start, len(epochs)) if epochs[one] > epoch]
    assert end_offset == min(max(later[0] if later else len(epochs), log_start), offset)
