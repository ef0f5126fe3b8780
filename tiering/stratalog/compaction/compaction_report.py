"""What one compaction job did."""

from __future__ import annotations

import dataclasses

from stratalog.base.types import TopicIdPartition


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """One job, committed or refused. Immutable."""

    inputs: int = 0
    """Objects that were read."""
    get_requests: int = 0
    """Counted at the object store: two an input."""
    input_bytes: int = 0
    """Sizes of the inputs as they lie in the store."""
    bytes_read: int = 0
    """What the requests delivered; less than `input_bytes` where footers and dead slices were left out."""
    records_in: int = 0
    records_out: int = 0
    tombstones_removed: int = 0
    """Those that went because their horizon has passed; a tombstone with a later record of its key is just a
    record.
    """
    outputs: int = 0
    output_bytes: int = 0
    partitions: int = 0
    """Partitions whose slices were replaced."""
    refused: str | None = None
    """Why nothing was committed; None where the job was. What the inputs hold is untouched then."""
    refused_partitions: tuple[tuple[TopicIdPartition, str], ...] = ()
    """Partitions that were left as they are, and why, where the rest of the job went on."""
