"""The result of one compaction job."""

from __future__ import annotations

import dataclasses

from stratalog.base.types import TopicIdPartition


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """One job, committed or refused. Immutable."""

    inputs: int = 0
    """Objects that were read."""
    get_requests: int = 0
    """At most two an input: the data of one without survivors is not asked for."""
    put_requests: int = 0
    """Outputs that were sent, each part of a large one, and those that were sent again."""
    resumed_get_count: int = 0
    """Further requests for the rest of a stream whose connection broke."""
    input_bytes: int = 0
    """Sizes of the inputs in the store."""
    bytes_read: int = 0
    """Bytes that have arrived; less than `input_bytes` without footers and dead slices."""
    records_in: int = 0
    records_out: int = 0
    tombstones_removed: int = 0
    """Tombstones that were dropped after their horizon; a tombstone with a later record of its key counts as
    a record.
    """
    outputs: int = 0
    output_bytes: int = 0
    partitions: int = 0
    """Partitions whose slices were replaced."""
    refused: str | None = None
    """The reason if the job was not committed, else None. Its inputs are unchanged then."""
    refused_partitions: tuple[tuple[TopicIdPartition, str], ...] = ()
    """Partitions that the commit left unchanged, with reasons."""
    failed_attempts: int = 0
    """How many jobs over the same inputs have failed in a row, with this one. 0 if it was committed, or
    given up because the metadata had moved. Twice is no progress."""
