"""The findings of a rebuild of one head."""

from __future__ import annotations

from typing import NamedTuple

from stratalog.remote.restore.partition_tiling import LostOffsets


class RebuildReport(NamedTuple):
    """The contents of a rebuilt head. Immutable."""

    log: str
    """`catalog`, or `shard N`."""
    known_seq: int
    """The commit that checkpoints and history lead to; 0 if the objects alone tell."""
    new_seq: int
    """The commit of the new checkpoint. No file names a later one."""
    topic_count: int = 0
    partition_count: int = 0
    slice_count: int = 0
    live_object_count: int = 0
    live_bytes: int = 0
    """Size of the slices' batches."""
    added_object_count: int = 0
    """Live objects that checkpoint and history do not know."""
    unused_object_count: int = 0
    """Objects that nothing refers to: uploads and compactions that never committed, or that others replace.
    The orphan sweep deletes them a grace period later."""
    unused_bytes: int = 0
    lost: tuple[LostOffsets, ...] = ()
    warnings: tuple[str, ...] = ()
    """Facts that cannot be known, and damage that was passed over; a text for people each."""
