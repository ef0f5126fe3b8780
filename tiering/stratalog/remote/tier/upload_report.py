"""What one pass of the uploader did, and what it could not do."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.base.errors import LogStoreError
from stratalog.base.types import TopicPartition


class RefusedUpload(NamedTuple):
    """A slice that was stored but not made live: its bytes are dead and count for nothing."""

    topic_partition: TopicPartition
    object_name: str
    reason: str


class FailedUpload(NamedTuple):
    """A partition that stopped at a damaged or unreadable batch; what precedes it was uploaded. The next
    pass tries again.
    """

    topic_partition: TopicPartition
    error: LogStoreError


class UploadReport(NamedTuple):
    """Counts speak of what was committed."""

    object_names: tuple[str, ...] = ()
    slice_count: int = 0
    data_bytes: int = 0
    """Record batches in live slices."""
    object_bytes: int = 0
    """Whole objects, refused slices included."""
    refused: tuple[RefusedUpload, ...] = ()
    failed: tuple[FailedUpload, ...] = ()

    @property
    def object_count(self) -> int:
        return len(self.object_names)
