"""The rules by which a rebuild puts a partition together, one by one."""

from __future__ import annotations

from uuid import UUID

import pytest

from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.shard.live_slice import Gap, LiveSlice
from stratalog.remote.metadata.shard.partition_row import EMPTY_ROW, PartitionRow
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.object_ref import format_object_name
from stratalog.remote.objects.slice_entry import LastBatch, OpenTransaction
from stratalog.remote.restore.partition_tiling import (
    LostOffsets,
    Output,
    Upload,
    closed,
    extended,
    is_refused,
    with_output,
    with_uploads,
)
from tests.support.tiered.sample_entry import sample_entry
from tests.support.tiered.shard_states import row_of

TIP = TopicIdPartition(UUID(int=1), 0)
EMPTY = TieredPartition(TIP, EMPTY_ROW)
Ranges = list[tuple[str, int, int]]


def live(name: str, base: int, end: int) -> LiveSlice:
    return LiveSlice(name, base, end, sample_entry(base, end))


def upload(name: str, epoch: int, base: int, end: int) -> Upload:
    return Upload(name, epoch, sample_entry(base, end))


def output(inputs: str, *ranges: tuple[str, int, int]) -> Output:
    return Output(tuple(live(*one) for one in ranges), frozenset(inputs.split()))


def ranges_of(tiles: list[LiveSlice] | None) -> Ranges | None:
    return None if tiles is None else [(one.object_name, one.base_offset, one.end_offset) for one in tiles]


def test_uploads_go_on_at_the_end() -> None:
    tiles = with_uploads([live("a", 0, 5)], 5, [upload("c", 1, 8, 9), upload("b", 1, 5, 8)])
    assert ranges_of(tiles) == [("a", 0, 5), ("b", 5, 8), ("c", 8, 9)]


def test_the_upload_that_reaches_farthest_wins_and_the_next_is_clipped() -> None:
    tiles = with_uploads([], 0, [upload("a", 1, 0, 5), upload("b", 1, 0, 7), upload("c", 1, 5, 9)])
    assert ranges_of(tiles) == [("b", 0, 7), ("c", 7, 9)]


def test_a_later_epoch_ends_what_an_earlier_one_never_committed() -> None:
    uploads = [upload("a", 1, 0, 5), upload("orphan", 1, 5, 100), upload("b", 2, 5, 8)]
    assert ranges_of(with_uploads([], 0, uploads)) == [("a", 0, 5), ("b", 5, 8)]


def test_an_upload_below_the_known_end_was_never_committed() -> None:
    tiles = with_uploads([live("a", 0, 5)], 5, [upload("orphan", 1, 3, 9)])
    assert ranges_of(tiles) == [("a", 0, 5)]


def test_an_output_replaces_its_inputs_and_fills_what_is_gone() -> None:
    tiles = [live("a", 0, 5), live("c", 8, 9)]
    assert ranges_of(with_output(tiles, output("a b", ("r", 0, 8)), 0, ())) == [("r", 0, 8), ("c", 8, 9)]


def test_an_output_of_other_inputs_is_left_out() -> None:
    refused = output("a b", ("r", 0, 8))
    assert with_output([live("x", 0, 8)], refused, 0, ()) is None
    assert with_output([live("a", 0, 5), live("b", 5, 12)], refused, 0, ()) is None, "it ends inside"
    gap = LiveSlice.of_gap(TIP, 5, 8, Gap("expired", 0))
    assert with_output([live("a", 0, 5), gap], refused, 0, ()) is None, "a gap is never replaced"


def test_an_output_with_a_hole_is_of_a_job_that_died() -> None:
    half = output("a b", ("r1", 0, 3), ("r3", 5, 8))
    assert with_output([live("a", 0, 5), live("b", 5, 8)], half, 0, ()) is None


def test_an_output_is_clipped_where_the_known_state_begins() -> None:
    tiles = [live("b", 5, 8)]
    assert ranges_of(with_output(tiles, output("a b", ("r", 0, 8)), 5, ())) == [("r", 5, 8)]


def test_an_upload_never_wins_over_an_output() -> None:
    wins = output("a b", ("r", 2, 8))
    assert ranges_of(with_output([live("o", 2, 8)], wins, 0, {"o"})) == [("r", 2, 8)]
    assert ranges_of(with_output([live("o", 0, 4)], wins, 0, {"o"})) == [("o", 0, 4), ("r", 4, 8)]
    assert ranges_of(with_output([live("o", 5, 9)], wins, 0, {"o"})) == [("r", 2, 8), ("o", 8, 9)]
    assert ranges_of(with_output([live("o", 0, 9)], wins, 0, {"o"})) == [("o", 0, 9)]


def test_a_hole_becomes_a_gap_with_its_open_transactions() -> None:
    opened = sample_entry(0, 5, stable_end_offset=3, open_transactions=(OpenTransaction(7, 3),))
    tiles = [LiveSlice("a", 0, 5, opened), live("c", 8, 9)]
    tiling = closed(TIP, EMPTY, tiles, 1234)
    tiling.partition.check()
    assert tiling.lost == (LostOffsets(TIP, 5, 8, is_start=False),)
    assert tiling.partition.slices[1].gap == Gap("object_lost", 1234, (OpenTransaction(7, 3),))


def test_log_start_moves_to_the_first_slice() -> None:
    tiling = closed(TIP, EMPTY, [live("b", 5, 8)], 0)
    tiling.partition.check()
    assert tiling.partition.log_start_offset == 5
    assert tiling.lost == (LostOffsets(TIP, 0, 5, is_start=True),)


def test_offsets_of_lost_records_are_never_given_again() -> None:
    row = row_of([live("a", 0, 5), live("b", 5, 9)])
    known = TieredPartition(TIP, row._replace(log_start_offset=2, compacted_upto=5))
    tiling = closed(TIP, known, [live("a", 0, 5)], 0)
    tiling.partition.check()
    assert tiling.partition.tiered_end_offset == 9
    assert (tiling.partition.log_start_offset, tiling.partition.compacted_upto) == (2, 5)
    assert tiling.lost == (LostOffsets(TIP, 5, 9, is_start=False),)
    nothing = closed(TIP, known, [], 0)
    nothing.partition.check()
    assert nothing.partition.tiered_end_offset == nothing.partition.log_start_offset == 9
    assert nothing.lost == (LostOffsets(TIP, 2, 9, is_start=True),)


@pytest.mark.parametrize(
    ("birth_seq", "end_offset", "expected"), [(6, 5, True), (7, 5, False), (8, 5, False), (6, 4, False)]
)
def test_what_was_begun_before_the_tiered_end_moved_back_is_refused_above_it(
    birth_seq: int, end_offset: int, *, expected: bool
) -> None:
    row = row_of([live("a", 0, 4)])._replace(lowered_seq=7)
    name = format_object_name(birth_seq, UUID(int=0))
    assert is_refused(row, name, end_offset) is expected
    assert not is_refused(row._replace(lowered_seq=0), name, end_offset), "no end has moved back"


def marked(name: str, base: int, end: int, crc: int) -> LiveSlice:
    return LiveSlice(
        name, base, end, sample_entry(base, end, data_bytes=1, last_batch=LastBatch(base, 0, crc))
    )


def test_the_end_mark_is_a_batch_as_it_was_uploaded_and_never_one_of_a_compaction() -> None:
    known = TieredPartition(TIP, row_of([marked("a", 0, 5, 1)]))
    rewritten, uploaded = marked("r", 0, 5, 2), marked("b", 5, 8, 3)
    # Outputs in the place of all that is known; of an upload, too; beyond every upload.
    assert closed(TIP, known, [rewritten], 0).partition.end_mark == LastBatch(0, 0, 1)
    assert closed(TIP, known, [rewritten, uploaded], 0, uploaded).partition.end_mark == LastBatch(5, 0, 3)
    whole = marked("r", 0, 8, 4)
    assert closed(TIP, known, [whole], 0, uploaded).partition.end_mark == LastBatch(5, 0, 3)
    assert closed(TIP, known, [marked("r", 0, 9, 5)], 0, uploaded).partition.end_mark is None
    assert closed(TIP, known, [whole], 0).partition.end_mark is None
    # Records at the end are lost, and the log is still compared with the last of them.
    assert closed(TIP, known, [marked("r", 0, 3, 6)], 0).partition.end_mark == LastBatch(0, 0, 1)


def test_a_partition_of_many_slices_is_put_together_in_steps_of_one_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copied, with_slice = 0, PartitionRow.with_slice

    def counting(row: PartitionRow, one: LiveSlice) -> PartitionRow:
        nonlocal copied
        copied += len(row.pieces)
        return with_slice(row, one)

    monkeypatch.setattr(PartitionRow, "with_slice", counting)
    tiles = [live(f"o{number}", 3 * number, 3 * number + 2 + number % 2) for number in range(2000)]
    tiling = closed(TIP, EMPTY, tiles, 0)
    assert copied <= 2 * len(tiling.partition.slices)
    assert len(tiling.lost) == 1000
    tiling.partition.check()
    halves = closed(TIP, EMPTY, tiles[:1000], 0).partition
    assert extended(TIP, halves.row, tiles[1000:], 0).partition == tiling.partition
