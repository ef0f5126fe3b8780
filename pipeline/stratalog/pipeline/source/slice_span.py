"""A part of a slice for a task: the place of its bytes, and the offsets that it wants of them.

Spans travel pickled from the driver to the executors. They have names and positions, and nothing secret.
"""

from __future__ import annotations

from dataclasses import dataclass

from stratalog.remote.metadata.shard.live_slice import LiveSlice


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceSpan:
    """Whole batches of one slice. Immutable.

    `first_offset` and `end_offset` narrow them further: to the slice's valid range, to the partition's log
    start, to its stable end if only committed records are wanted, and to the query's bounds.
    """

    topic: str
    partition: int
    shard: int
    object_key: str
    position: int
    """Place of the first byte in the object."""
    size_bytes: int
    first_offset: int
    end_offset: int
    slice_base_offset: int
    slice_end_offset: int
    deciding: tuple[LiveSlice, ...] = ()
    """Slices that name the span's aborted transactions; empty if every record is wanted."""

    @property
    def end_position(self) -> int:
        return self.position + self.size_bytes

    @property
    def error_fields(self) -> dict[str, object]:
        """The fields of an error about the span: topic, partition, slice and object."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "slice": f"{self.slice_base_offset}-{self.slice_end_offset}",
            "key": self.object_key,
        }
