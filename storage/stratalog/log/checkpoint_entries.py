"""What a checkpoint file shall say, and of which partitions it may still say something else.

A write that fails leaves the file as it was, or as it shall be, and nobody knows which. So what was to be
changed is remembered until a write succeeds: whoever must not go on before the file is right asks again, and
finds that it is not. Nobody is kept by what could not be written of another partition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from stratalog.base.types import TopicPartition


class CheckpointEntries:
    """Guarded by whoever has the file: one caller at a time."""

    __slots__ = ("_unsaved", "_write", "offsets")

    def __init__(
        self,
        offsets: dict[TopicPartition, int],
        write: Callable[[Mapping[TopicPartition, int]], None],
    ) -> None:
        """`offsets`: what the file says. `write` replaces it, durably, or raises OSError."""
        self.offsets = offsets
        self._write = write
        self._unsaved: set[TopicPartition] = set()

    def set(self, partition: TopicPartition, offset: int | None) -> None:
        """The entry, or none, until `save` in this process only."""
        if self.offsets.get(partition) == offset:
            return
        self._unsaved.add(partition)
        if offset is None:
            del self.offsets[partition]
        else:
            self.offsets[partition] = offset

    def save(self) -> None:
        """All of it is durable when it returns. Raises OSError."""
        self._write(self.offsets)
        self._unsaved.clear()

    def save_for(self, partition: TopicPartition) -> None:
        """As `save`, where the file may say something else of this partition."""
        if partition in self._unsaved:
            self.save()
