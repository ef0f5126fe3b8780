"""The result of a pass of the uploader."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicPartition


class RefusedUpload(NamedTuple):
    """A slice that was stored but not made live, so that no reader sees its bytes; or a gap that was not
    recorded, so that nothing behind it is uploaded."""

    topic_partition: TopicPartition
    object_name: str
    """Empty for a gap."""
    reason: str


class FailedUpload(NamedTuple):
    """A partition that stopped at a damaged or unreadable batch, or before a segment that contradicts its
    seal. What lies before was uploaded, and a later pass tries again.
    """

    topic_partition: TopicPartition
    error: LogStoreError
    last_success_ms: int
    """Wall time of the partition's last upload; -1 if there was none since the start."""


@dataclasses.dataclass(slots=True)
class UploadReport:
    """The result of one pass. Counts are of committed slices and objects. Not thread-safe while a pass runs:
    guarded by the uploader's lock.
    """

    object_names: list[str] = dataclasses.field(default_factory=list[str])
    slice_count: int = 0
    data_bytes: int = 0
    """Record batches in live slices."""
    object_bytes: int = 0
    """Whole objects, refused slices included."""
    refused: list[RefusedUpload] = dataclasses.field(default_factory=list[RefusedUpload])
    failed: list[FailedUpload] = dataclasses.field(default_factory=list[FailedUpload])
    has_more: bool = False
    """The pass has ended before it uploaded all that is due."""
    left_out: set[TopicPartition] = dataclasses.field(default_factory=set[TopicPartition])
    """The partitions that an uploader with precedence did not get. No other uploader gets them either before
    its next pass, so that has to come."""

    @property
    def object_count(self) -> int:
        return len(self.object_names)
