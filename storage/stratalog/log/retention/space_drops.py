"""`space-drop-checkpoint`: how far a log was dropped for space, before the object store had its records.

One file in the log's directory, in the form of Kafka's checkpoints. It is there once the server has dropped
such records, and says why they are missing: the loss goes on record in the store later, perhaps by another
process and under another configuration of the topic. The file is durable before the first segment goes, so a
crash leaves the segments, or the reason of their loss. Only where the disk has no room for the file, it comes
after them. It stays: an end at or below the tiered end says nothing.
"""

from __future__ import annotations

from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import OffsetCheckpoint

SPACE_DROP_FILE = "space-drop-checkpoint"


class SpaceDrops:
    """The file of one log directory and partition. Not thread-safe: guarded by UnifiedLog.lock, but `read`
    may be called at any time."""

    def __init__(self, filesystem: FileSystem, directory: str, topic_partition: TopicPartition) -> None:
        """`directory`: the log's own."""
        self._file = OffsetCheckpoint(filesystem, f"{directory}/{SPACE_DROP_FILE}")
        self._topic_partition = topic_partition

    def read(self) -> int:
        """The offset below which records may have been dropped for space; 0 if none were, or if the file is
        damaged. Raises OSError."""
        return self._file.read().get(self._topic_partition, 0)

    def note(self, end_offset: int) -> None:
        """Note that records below the offset are about to be dropped. Durable when it returns. Raises
        OSError."""
        if end_offset > self.read():
            self._file.write({self._topic_partition: end_offset})
