"""The rule by which a log cleaner's second pass keeps records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


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
