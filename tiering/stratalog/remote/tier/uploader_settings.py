"""The settings of an uploader."""

from __future__ import annotations

import dataclasses

from stratalog.log.config_key import LONG_MAX


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UploaderSettings:
    """Settings of the uploader. Immutable."""

    max_object_bytes: int = 60 << 20
    """Data in one object; less while the spool's disk is full. Larger means fewer objects and a longer time
    until the first commit."""
    read_bytes: int = 8 << 20
    """Size of one read from a segment."""
    put_attempts: int = 3
    """How often an object is sent before its name is given up."""
    put_backoff_ms: int = 500
    """Pause before the second attempt; doubled for each one after it."""
    put_count: int = 4
    """Objects that are on their way at the same time, of all shards. Each needs memory or a spool file."""
    stall_ms: int = 600_000
    """An object without progress for this long is given up."""
    short_below_bytes: int = 0
    """Uploads from a log directory with less free space do not wait for others to fill an object."""
    max_bytes_per_s: int = LONG_MAX
    """Bytes of objects in a second, of all shards."""
    max_requests_per_s: int = LONG_MAX
    """Attempts to send an object, and commits, in a second, of all shards."""
