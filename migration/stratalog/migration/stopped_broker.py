"""A stopped broker: all its log directories, and the topics in them.

Each directory has its own lock, marker and checkpoints. No file records how many directories a broker has, or
how many partitions a topic; other brokers have other partitions. The partitions of a topic must be numbered
from 0 without a hole, and each may exist once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice, pairwise

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.manager.directories.partition_metadata import read_partition_metadata
from stratalog.migration.kafka_log_directory import (
    KafkaLogDirectory,
    PassedOver,
    SourcePartition,
    SourceTopic,
)

_SHOWN_GAPS = 5


class StoppedBroker:
    """The log directories of a broker, which cannot start on them until `release`. Belongs to one thread."""

    def __init__(
        self, filesystem: FileSystem, paths: Sequence[str], *, allows_missing_checkpoints: bool = False
    ) -> None:
        """`allows_missing_checkpoints` accepts partitions that are missing in the checkpoints beside them.
        Raises what KafkaLogDirectory raises."""
        self._filesystem = filesystem
        self._allows_missing_checkpoints = allows_missing_checkpoints
        self._partitions: defaultdict[TopicPartition, list[KafkaLogDirectory]] = defaultdict(list)
        self._directories: list[KafkaLogDirectory] = []
        with ExitStack() as undo:
            for path in dict.fromkeys(paths):
                directory = KafkaLogDirectory(filesystem, path)
                undo.callback(directory.release)
                self._directories.append(directory)
                for partition in directory.partitions:
                    self._partitions[partition].append(directory)
            self._undo = undo.pop_all()
        numbers: defaultdict[str, list[int]] = defaultdict(list)
        for partition in sorted(self._partitions):
            numbers[partition.topic].append(partition.partition)
        self._numbers = {topic: tuple(found) for topic, found in numbers.items()}

    def release(self) -> None:
        self._undo.close()

    @property
    def path(self) -> str:
        return ",".join(directory.path for directory in self._directories)

    @property
    def unclean_paths(self) -> tuple[str, ...]:
        return tuple(directory.path for directory in self._directories if not directory.was_clean)

    @property
    def passed_over(self) -> tuple[PassedOver, ...]:
        return tuple(over for directory in self._directories for over in directory.passed_over)

    @property
    def partitions_by_topic(self) -> Mapping[str, tuple[int, ...]]:
        """The numbers of the found partitions, by topic, sorted by name."""
        return self._numbers

    def path_of(self, partition: TopicPartition) -> str:
        return self._partitions[partition][0].path

    def topic(self, name: str) -> SourceTopic:
        """One of those topics with its partitions.

        Raises DataDirectoryError if it is not whole, or the checkpoints do not know it,
        UnsupportedOperationError if it is older than batches of version 2, OSError.
        """
        numbers = self._numbers[name]
        missing_count = numbers[-1] + 1 - len(numbers)
        if missing_count:
            raise DataDirectoryError(
                "partitions of the topic are not in this log directory; name the broker's other log"
                " directories as well, bring here those that other brokers have, move away a directory that"
                " is no partition's, or leave the topic out",
                topic=name,
                missing_partitions=",".join(islice(_gaps(numbers), _SHOWN_GAPS)),
                missing_count=missing_count,
                last_path=f"{self.path_of(TopicPartition(name, numbers[-1]))}/{name}-{numbers[-1]}",
                path=self.path,
            )
        partitions = [self._partition(TopicPartition(name, number)) for number in numbers]
        topic_ids = {read_partition_metadata(self._filesystem, partition.path) for partition in partitions}
        if len(topic_ids) > 1:
            raise DataDirectoryError(
                "partitions of one name belong to different topics; move those of the older one away",
                topic=name,
                topic_ids=",".join(sorted(map(str, topic_ids))),
                path=self.path,
            )
        self._require_checkpoints(name, partitions)
        return SourceTopic(name, topic_ids.pop(), tuple(partitions))

    def _partition(self, partition: TopicPartition) -> SourcePartition:
        first, *others = self._partitions[partition]
        if others:
            raise DataDirectoryError(
                "two of the log directories have this partition, and no file says which one is right; leave"
                " the topic out, or move one of them away",
                path=f"{first.path}/{partition}",
                other_path=f"{others[0].path}/{partition}",
            )
        return first.partition(partition)

    def _require_checkpoints(self, name: str, partitions: Sequence[SourcePartition]) -> None:
        """A broker's own logs are all in its checkpoints."""
        unknown = [partition for partition in partitions if partition.lacks_checkpoints]
        if unknown and not self._allows_missing_checkpoints:
            raise DataDirectoryError(
                "the checkpoint files of the log directory lack these partitions, so their deleted records"
                " are unknown; if they come from another log directory, import that one too, or copy its"
                " lines; if the broker was killed in its first minute with them, start and stop it; if"
                " deleted records may come back, give --allow-missing-checkpoints",
                topic=name,
                partitions=",".join(str(partition.topic_partition.partition) for partition in unknown),
                path=self.path_of(unknown[0].topic_partition),
            )


def _gaps(numbers: Sequence[int]) -> Iterator[str]:
    """The missing numbers between 0 and the highest, as `3` or `5-9`."""
    for before, number in pairwise((-1, *numbers)):
        if number - before == 2:
            yield str(number - 1)
        elif number - before > 2:
            yield f"{before + 1}-{number - 1}"
