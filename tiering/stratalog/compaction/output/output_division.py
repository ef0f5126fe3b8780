"""Divides the output of a run where it would become too large for one slice or one object.

The pieces end at bounds of input slices, which are bounds of batches. Phase 1 knows the survivors of each
slice, and their share of its records is taken for their share of its bytes. So a run that shrinks much is not
divided, however large its inputs are. An input slice is never divided: it was within the bounds when it was
made. One that exceeds them since a setting or a retention was lowered becomes an output slice of its own,
never larger than it was. The producers and transactions in the middle of a slice are not on record.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from stratalog.compaction.compaction_settings import CompactionSettings
from stratalog.compaction.keys.survivor_bits import survivor_count
from stratalog.compaction.plan.compaction_job import PartitionRun
from stratalog.remote.objects.slice_entry import MAX_RECORD_COUNT


class OutputBounds(NamedTuple):
    """The most that an output slice should have."""

    data_bytes: int
    record_count: int

    def hold(self, data_bytes: int, record_count: int) -> bool:
        """Whether one slice may have so much."""
        return data_bytes <= self.data_bytes and record_count <= self.record_count

    @staticmethod
    def of(settings: CompactionSettings) -> OutputBounds:
        """The bounds by these settings."""
        return OutputBounds(max(settings.max_job_bytes, settings.target_object_bytes), MAX_RECORD_COUNT)


class OutputPiece(NamedTuple):
    """The slices [first, end) of a run, which become one slice."""

    place: int
    """The number of the object that gets it."""
    first: int
    end: int
    goes_on: bool
    """Whether it goes on behind another one at its place, so that it needs another object."""


def pieces_of(
    run: PartitionRun, survivors: Sequence[bytes | bytearray] | None, bounds: OutputBounds
) -> Iterator[OutputPiece]:
    """The pieces of a run, in order. `survivors` as in `divided`."""
    data_bytes, record_counts = run.slices.column("data_bytes"), run.slices.column("record_count")
    for place, (first, end) in enumerate(run.parts):
        bits = None if survivors is None else survivors[first:end]
        for begin, stop in divided(data_bytes[first:end], record_counts[first:end], bits, bounds):
            yield OutputPiece(place, first + begin, first + stop, begin > 0)


def divided(
    data_bytes: Sequence[int],
    record_counts: Sequence[int],
    survivors: Sequence[bytes | bytearray] | None,
    bounds: OutputBounds,
) -> Iterator[tuple[int, int]]:
    """The pieces [first, end) of consecutive slices with so many bytes and records: few, and each within the
    bounds where a slice is. `survivors` has the bits of each slice; None if all records stay."""
    if bounds.hold(sum(data_bytes), sum(record_counts)):
        # So is what stays of them.
        yield 0, len(data_bytes)
        return
    first = piece_bytes = piece_count = 0
    for index, (all_bytes, record_count) in enumerate(zip(data_bytes, record_counts, strict=True)):
        size_bytes, count = all_bytes, record_count
        if survivors is not None and record_count:
            count = survivor_count(survivors[index])
            size_bytes = -(-all_bytes * count // record_count)
        is_over = piece_bytes + size_bytes > bounds.data_bytes or piece_count + count > bounds.record_count
        if is_over and index > first:
            yield first, index
            first, piece_bytes, piece_count = index, 0, 0
        piece_bytes += size_bytes
        piece_count += count
    yield first, len(data_bytes)
