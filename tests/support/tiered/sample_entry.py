"""Makes directory entries of slices for tests in which most fields do not matter."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from stratalog.remote.objects.slice_entry import LastBatch, PartRef, SliceEntry


def sample_entry(base_offset: int, end_offset: int, *, data_bytes: int = 0, **fields: Any) -> SliceEntry:
    """A sound entry of an offset range, with the given fields."""
    defaults: dict[str, Any] = {
        "topic_id": UUID(int=1),
        "topic": "topic",
        "partition": 0,
        "data_position": 0,
        "data_crc": 0,
        "record_count": 0,
        "min_timestamp": 0,
        "max_timestamp": 0,
        "max_timestamp_offset": base_offset,
        "codec_mask": 1,
        "stable_end_offset": end_offset,
        "last_batch": LastBatch(base_offset, 0, 0) if data_bytes else None,
        "index": PartRef(0, 0, 0),
    }
    return SliceEntry(
        base_offset=base_offset, end_offset=end_offset, data_bytes=data_bytes, **(defaults | fields)
    )
