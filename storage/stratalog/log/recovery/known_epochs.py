"""Compares the file of leader epochs with the batches of the log.

Kafka's file has no checksum. The seals of the segments have the epochs of their batches, and a checksum. So
if the file contradicts a seal, is damaged or is missing, the epochs come from the seals and from the batches
that recovery walks. Entries for offsets below the first segment stay: their records are in the store.

A seal says nothing about the epochs of a segment whose headers were damaged at its import
(`segment_adoption`). Then only the file has these epochs, and if it contradicts other seals, or is missing,
the log is refused.

If the file agrees with all seals, and a walked batch contradicts it, one of the two was damaged, and it is
unknown which one. The log is refused then. The file is durable before a batch has its epoch, so a crash does
not make them differ. A broker's file may be older than its batches after a crash.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from stratalog.base.errors import DataDirectoryError
from stratalog.log.leader_epoch_cache import LEADER_EPOCH_FILE, EpochEntry, LeaderEpochCache
from stratalog.record.header import MAX_OFFSET, BatchHeader
from stratalog.segment.batch_headers import UNKNOWN_HEADERS, summed_epochs
from stratalog.segment.log_segment import LogSegment

logger = logging.getLogger(__name__)


class EpochRange(NamedTuple):
    """Consecutive batches with one leader epoch, in [start_offset, end_offset)."""

    epoch: int
    start_offset: int
    end_offset: int


def epoch_ranges(sums: Iterable[tuple[bytes, int]]) -> list[EpochRange]:
    """The ranges in segments that follow each other. `sums`: of each segment the packed sum over its headers,
    which are known, and the offset after its last batch."""
    ranges: list[EpochRange] = []
    for packed, end_offset in sums:
        summed = summed_epochs(packed)
        ends = [*(epoch.floor_offset for epoch in summed[1:]), end_offset]
        for epoch, range_end in zip(summed, ends, strict=False):
            if ranges and ranges[-1].epoch == epoch.epoch:
                ranges[-1] = ranges[-1]._replace(end_offset=range_end)
            else:
                ranges.append(EpochRange(epoch.epoch, epoch.start_offset, range_end))
    return ranges


def settle_epochs(known: LeaderEpochCache, sealed: Sequence[LogSegment], log_start_offset: int) -> bool:
    """Rebuild `known` from the seals of these segments if it contradicts them. In memory until `flush`.
    Returns whether `known` agrees with the seals. Raises CorruptRecordError if the seals contradict each
    other, DataDirectoryError if `known` contradicts them, or is empty, and they do not have all epochs.
    """
    seals = [segment.written_seal for segment in sealed if segment.written_seal is not None]
    telling = [seal for seal in seals if seal.headers != UNKNOWN_HEADERS]
    ranges = epoch_ranges((seal.headers, seal.end_offset) for seal in telling)
    if seals and not telling and not known.entries:
        raise DataDirectoryError(
            f"{LEADER_EPOCH_FILE} is missing or damaged, and damaged segments hide all epochs; restore the"
            " file or the segments from a copy",
            path=sealed[0].directory,
        )
    wrong = _contradicted(known, ranges, log_start_offset)
    if wrong is None:
        return True
    if len(telling) < len(seals):
        raise DataDirectoryError(
            f"{LEADER_EPOCH_FILE} contradicts the seals, and a damaged segment hides epochs; restore both"
            " from copies",
            path=sealed[0].directory,
            leader_epoch=wrong.epoch,
            start_offset=wrong.start_offset,
            end_offset=wrong.end_offset,
        )
    first = ranges[0]
    below = [
        entry
        for entry in known.entries
        if entry.start_offset < first.start_offset and entry.epoch <= first.epoch
    ]
    if below and below[-1].epoch == first.epoch:
        ranges = ranges[1:]
    if known.entries:
        logger.warning(
            "%s contradicts the seals of the segments and is rebuilt from them, path=`%s` offset=%d",
            LEADER_EPOCH_FILE,
            sealed[0].directory,
            wrong.start_offset,
        )
    known.replace([*below, *(EpochEntry(one.epoch, one.start_offset) for one in ranges)])
    return False


def require_epochs(known: LeaderEpochCache, ranges: Sequence[EpochRange], directory: str) -> None:
    """Raise DataDirectoryError if `known` has another epoch for walked batches."""
    wrong = _contradicted(known, ranges, MAX_OFFSET)
    if wrong is not None:
        raise DataDirectoryError(
            f"batches and {LEADER_EPOCH_FILE} contradict each other, so one of them was damaged; {_ADVICE}",
            path=directory,
            leader_epoch=wrong.epoch,
            start_offset=wrong.start_offset,
            end_offset=wrong.end_offset,
        )


def require_epoch(segment: LogSegment, header: BatchHeader, known: LeaderEpochCache) -> None:
    """Raise DataDirectoryError if `known` has another epoch for the batch."""
    expected_epoch = known.epoch_for_offset(header.base_offset)
    if expected_epoch is not None and expected_epoch != header.leader_epoch:
        raise DataDirectoryError(
            f"a batch and {LEADER_EPOCH_FILE} contradict each other, so one of them was damaged; {_ADVICE}",
            path=segment.path,
            base_offset=header.base_offset,
            leader_epoch=header.leader_epoch,
            expected_epoch=expected_epoch,
        )


def is_newer(header: BatchHeader, known: LeaderEpochCache) -> bool:
    """Whether the epoch of the batch may be missing in a broker's file only because that is older."""
    if not known.entries:
        return False
    latest = known.entries[-1]
    return latest.epoch < header.leader_epoch and latest.start_offset < header.base_offset


_ADVICE = (
    "restore the damaged one from a copy, or remove the segments with the batches if the store has them, or"
    f" {LEADER_EPOCH_FILE} if the batches are right"
)


def _contradicted(
    known: LeaderEpochCache, ranges: Iterable[EpochRange], log_start_offset: int
) -> EpochRange | None:
    """The first range with another epoch in `known`. An offset below the log start may have none there."""
    for one in ranges:
        for offset in (one.start_offset, one.end_offset - 1):
            epoch = known.epoch_for_offset(offset)
            if epoch != one.epoch and not (epoch is None and offset < log_start_offset):
                return one
    return None
