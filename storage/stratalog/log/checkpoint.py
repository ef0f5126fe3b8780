"""Kafka's offset checkpoint: a small text file with one number for each partition.

::

    0                       version
    2                       how many lines follow
    orders 0 105823         topic, partition, offset
    orders 1 105640

A write replaces the whole file atomically, so a crash leaves the old one or the new one. A damaged file
counts as empty, with a warning in the log of the process. Its offsets are then found in the logs, with more
work.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

from stratalog.base.atomic_file import replace_file
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.record.header import MAX_OFFSET

logger = logging.getLogger(__name__)

RECOVERY_POINT_FILE = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_FILE = "log-start-offset-checkpoint"
HIGH_WATERMARK_FILE = "replication-offset-checkpoint"
"""A broker's; the high watermark here follows from the recovery point and the store."""
_VERSION = 0


class OffsetCheckpoint:
    """One checkpoint file. Not thread-safe: guarded by its user."""

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self._path = path

    def read(self) -> dict[TopicPartition, int]:
        """All entries; none if the file is missing or damaged. Raises OSError if it cannot be read."""
        try:
            return parse_checkpoint(self._filesystem.read_file(self._path).decode())
        except FileNotFoundError:
            return {}
        except ValueError as failure:
            logger.warning(
                "a checkpoint is damaged and counts as empty, path=`%s` reason=`%s`", self._path, failure
            )
            return {}

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Durable when it returns. Raises OSError."""
        replace_file(self._filesystem, self._path, format_checkpoint(offsets).encode())


class CheckpointEntries:
    """The wanted entries of a checkpoint file, and the partitions whose entries the file may not have yet.

    Guarded by its user: one caller at a time. A failed write leaves the old contents of the file or the new
    ones. So changed entries are remembered until a write succeeds, and `save_for` writes again only if the
    entry of its own partition may be missing.
    """

    __slots__ = ("_unsaved", "_write", "offsets")

    def __init__(
        self,
        offsets: dict[TopicPartition, int],
        write: Callable[[Mapping[TopicPartition, int]], None],
    ) -> None:
        """`offsets`: the entries of the file. `write` replaces the file durably, or raises OSError."""
        self.offsets = offsets
        self._write = write
        self._unsaved: set[TopicPartition] = set()

    def knows(self, partition: TopicPartition) -> bool:
        """Whether it has an entry of the partition, or the file may have one. Takes no lock."""
        return partition in self.offsets or partition in self._unsaved

    def set(self, partition: TopicPartition, offset: int | None) -> None:
        """Change an entry, or remove it. The file follows with `save`."""
        if self.offsets.get(partition) == offset:
            return
        self._unsaved.add(partition)
        if offset is None:
            del self.offsets[partition]
        else:
            self.offsets[partition] = offset

    def save(self) -> None:
        """Make all entries durable. Raises OSError."""
        self._write(self.offsets)
        self._unsaved.clear()

    def save_for(self, *partitions: TopicPartition) -> None:
        """Save if the file may not have the entry of one of these partitions. Raises OSError."""
        if not self._unsaved.isdisjoint(partitions):
            self.save()


def format_checkpoint(offsets: Mapping[TopicPartition, int]) -> str:
    """The text of a checkpoint file, partitions in order."""
    lines = [str(_VERSION), str(len(offsets))]
    lines += [
        f"{partition.topic} {partition.partition} {offset}" for partition, offset in sorted(offsets.items())
    ]
    return "\n".join(lines) + "\n"


def parse_checkpoint(text: str) -> dict[TopicPartition, int]:
    """The entries of a checkpoint's text. Raises ValueError if anything about it is wrong."""
    lines = text.split("\n")
    if lines.pop() != "" or len(lines) < 2 or int(lines[0]) != _VERSION or int(lines[1]) != len(lines) - 2:
        raise ValueError("not a checkpoint of this version, or not all of it")
    offsets: dict[TopicPartition, int] = {}
    for line in lines[2:]:
        topic, partition, offset = line.split(" ")
        if not topic or int(partition) < 0 or not 0 <= int(offset) <= MAX_OFFSET:
            raise ValueError("a checkpoint entry is out of range")
        offsets[TopicPartition(topic, int(partition))] = int(offset)
    return offsets


def parse_broker_checkpoint(text: str) -> dict[TopicPartition, int]:
    """Parse a checkpoint file of a broker. It is empty from the broker's first start to its first checkpoint;
    an empty file of ours is damaged, because ours are replaced as a whole.
    """
    return parse_checkpoint(text) if text else {}
