"""The rule of the option failOnDataLoss. Records that a query or a stream should read, and that are not
there, fail it, or it goes on without them and says so in a warning.

Offsets that compaction has emptied are no loss, and neither are records that retention has deleted, also
where an outage has made that a gap. All other offsets that the metadata records as lost, its gaps, are one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from stratalog.base.errors import OffsetOutOfRangeError
from stratalog.remote.metadata.shard.live_slice import GapReason
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition

logger = logging.getLogger(__name__)


def report_loss(problem: str, *, fails: bool, **fields: object) -> None:
    """Raise OffsetOutOfRangeError, or log a warning if the loss does not fail the query. `problem` is a
    clause; `fields` name the place."""
    if fails:
        raise OffsetOutOfRangeError(f"{problem}; set failOnDataLoss to false to go on without them", **fields)
    logger.warning(
        "failOnDataLoss is false, so reading goes on: %s", OffsetOutOfRangeError(problem, **fields)
    )


def report_gaps(
    tiered: TieredPartition, first_offset: int, end_offset: int, *, fails: bool, place: Mapping[str, object]
) -> None:
    """Report each range of [first_offset, end_offset) that the metadata records as lost; `place` names the
    partition. Raises OffsetOutOfRangeError for the first one if the loss fails the query."""
    gaps = [
        (live, live.gap.reason)
        for live in tiered.gaps_in(first_offset, end_offset)
        if live.gap is not None and live.gap.reason != GapReason.EXPIRED.value
    ]
    for live, reason in gaps:
        report_loss(
            "records are lost: they never reached the store, or are gone from it",
            fails=fails,
            **place,
            offset=max(live.base_offset, first_offset),
            end_offset=min(live.end_offset, end_offset),
            reason=reason,
            **({"gap_count": len(gaps)} if len(gaps) > 1 else {}),
        )
