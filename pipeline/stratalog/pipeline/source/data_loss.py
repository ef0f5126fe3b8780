"""The error of records that a query or a stream should read, and that are there no more."""

from __future__ import annotations

from stratalog.base.errors import OffsetOutOfRangeError


def data_loss(reason: str, **fields: object) -> OffsetOutOfRangeError:
    """The error for the option failOnDataLoss. `reason` is a clause; `fields` name the place."""
    return OffsetOutOfRangeError(
        f"records are lost: {reason}; set failOnDataLoss to false to go on without them", **fields
    )
