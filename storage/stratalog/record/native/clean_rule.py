"""The rule by which a log cleaner's second pass keeps records."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple

from stratalog.record.header import BatchHeader


class CleanRule(NamedTuple):
    """What of a row of batches stays, beside what the offset map says."""

    now_ms: int
    """Tombstones in batches with a delete horizon up to this go."""
    horizon_ms: int
    """What a batch with tombstones that stay gets as its horizon: now + `delete.retention.ms`."""
    stop_offset: int
    """A batch that begins there or later is not taken."""
    kept_empty: Sequence[int] = ()
    """Last offsets of batches that stay although they are emptied, ascending: the last batch of each active
    producer, the one before the high watermark. An `array('q')` is read in place; anything else is copied
    with every call."""
    aborted: Sequence[int] = ()
    """`AbortedSpans.values` of all aborted transactions that may have data among the batches."""
    kept_epochs: Sequence[int] = ()
    """Two numbers each, ascending: a producer's id and epoch, of producers of whose epoch only markers tell.
    Those markers stay, so that whoever opens the log later still knows it. As `kept_empty`."""


def is_kept_epoch(kept_epochs: Sequence[int], header: BatchHeader) -> bool:
    """The producer and the epoch of this batch are among them, see `CleanRule.kept_epochs`."""
    wanted = header.producer_id, header.producer_epoch
    count = len(kept_epochs) // 2
    place = bisect_left(
        range(count), wanted, key=lambda index: (kept_epochs[2 * index], kept_epochs[2 * index + 1])
    )
    return place < count and (kept_epochs[2 * place], kept_epochs[2 * place + 1]) == wanted
