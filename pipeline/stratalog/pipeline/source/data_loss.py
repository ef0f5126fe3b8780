"""The rule of the option failOnDataLoss. Records that a query or a stream should read, and that are not
there, fail it, or it goes on without them and says so in a warning.

Offsets that compaction has emptied are no loss. Offsets that the metadata records as lost, its gaps, are one.
"""

from __future__ import annotations

import logging

from stratalog.base.errors import OffsetOutOfRangeError

logger = logging.getLogger(__name__)


def report_loss(problem: str, *, fails: bool, **fields: object) -> None:
    """Raise OffsetOutOfRangeError, or log a warning if the loss does not fail the query. `problem` is a
    clause; `fields` name the place."""
    if fails:
        raise OffsetOutOfRangeError(f"{problem}; set failOnDataLoss to false to go on without them", **fields)
    logger.warning(
        "failOnDataLoss is false, so reading goes on: %s", OffsetOutOfRangeError(problem, **fields)
    )
