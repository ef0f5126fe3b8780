"""The log directory of a stopped broker, as an import finds it. Nothing in it is changed, not even created.

Each partition that the broker hosts has a directory `TOPIC-N`; these files lie beside them, and are read::

    .lock                               held by a broker that runs
    .kafka_cleanshutdown                there if the broker has closed every log
    meta.properties                     whose directory it is
    recovery-point-offset-checkpoint    below it everything is fsynced
    log-start-offset-checkpoint         below it records are deleted; no line: nothing is
    replication-offset-checkpoint       high watermarks

What else a broker leaves is no partition of a topic and is passed over, with a reason: `TOPIC-N.ID-delete`
(deleted), `-stray` (of a topic that the broker does not host), `-future` (a copy on its way from another
directory).

A broker may have other log directories, and other brokers other partitions: how many a topic has is written
nowhere. What is found must be 0 to some last one without a hole.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import (
    CorruptRecordError,
    DataDirectoryError,
    DataDirectoryInUseError,
    UnsupportedOperationError,
)
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import (
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    OffsetCheckpoint,
    parse_checkpoint,
)
from stratalog.log.leader_epoch_cache import LEADER_EPOCH_FILE
from stratalog.log.producer_snapshot import parse_snapshot_name
from stratalog.manager.data_directory import CLEAN_SHUTDOWN_FILE, LOCK_FILE, parse_partition_name
from stratalog.manager.meta_properties import META_FILE, STORE_ID, parse_meta_properties
from stratalog.manager.partition_metadata import read_partition_metadata
from stratalog.record.header import MAGIC, MAGIC_POSITION
from stratalog.segment.file_names import CLEANED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX, parse_segment_name

INTERNAL_TOPICS = frozenset(
    {"__cluster_metadata", "__consumer_offsets", "__remote_log_metadata", "__share_group_state"}
    | {"__transaction_state"}
)
"""Kafka's own: what they hold means something to Kafka alone."""

_NO_PARTITION = re.compile(r".+\.[0-9a-zA-Z_-]+-(delete|stray|future)")
_WHY_NO_PARTITION = {
    "delete": "the broker has deleted it",
    "stray": "the broker does not know whose it is",
    "future": "it is a copy that was not finished",
}


class SourceFile(NamedTuple):
    """A file of a partition that an import takes over."""

    name: str
    size_bytes: int
    is_settled: bool
    """Nobody writes it any more: a segment's batches, below the recovery point, behind which there is
    another segment."""


class SourcePartition(NamedTuple):
    """A partition's directory."""

    topic_partition: TopicPartition
    path: str
    files: tuple[SourceFile, ...]
    log_start_offset: int
    recovery_point: int
    """0 where the broker did not say."""
    high_watermark: int | None

    @property
    def segment_count(self) -> int:
        return sum(file.name.endswith(LOG_SUFFIX) for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def linked_bytes(self) -> int:
        """What an import need not copy."""
        return sum(file.size_bytes for file in self.files if file.is_settled)


class SourceTopic(NamedTuple):
    """A topic with all its partitions, in order."""

    name: str
    topic_id: UUID | None
    """None where a broker older than topic ids made it."""
    partitions: tuple[SourcePartition, ...]


class PassedOver(NamedTuple):
    """A directory that is not imported."""

    name: str
    reason: str


class KafkaLogDirectory:
    """Keeps a broker from starting on it until it is released. Belongs to one thread."""

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        """Raises DataDirectoryInUseError where a broker runs on it, DataDirectoryError where it is not a log
        directory, or a server's data directory, OSError.
        """
        self.path = path
        self._filesystem = filesystem
        if not filesystem.is_directory(path):
            raise DataDirectoryError("there is no such log directory; correct the path", path=path)
        self._lock = None
        if filesystem.exists(f"{path}/{LOCK_FILE}"):
            self._lock = filesystem.try_lock_shared(f"{path}/{LOCK_FILE}")
            if self._lock is None:
                raise DataDirectoryInUseError("a broker runs on this log directory; stop it first", path=path)
        try:
            self._refuse_data_directory()
            self.was_clean = filesystem.exists(f"{path}/{CLEAN_SHUTDOWN_FILE}")
            self._recovery_points = self._offsets(RECOVERY_POINT_FILE)
            self._start_offsets = self._start_offsets_of_deletions()
            self._high_watermarks = self._offsets(HIGH_WATERMARK_FILE)
            self._partitions: defaultdict[str, list[int]] = defaultdict(list)
            self.passed_over = self._find()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    @property
    def partitions_by_topic(self) -> Mapping[str, tuple[int, ...]]:
        """The numbers of the partitions that are here, by topic, in the order of names."""
        return {name: tuple(sorted(self._partitions[name])) for name in sorted(self._partitions)}

    def topic(self, name: str) -> SourceTopic:
        """One of those topics, with what an import has to know.

        Raises DataDirectoryError where it is not whole, UnsupportedOperationError where it is older than
        batches of version 2, OSError.
        """
        numbers = self.partitions_by_topic[name]
        missing = sorted(set(range(numbers[-1])) - set(numbers))
        if missing:
            raise DataDirectoryError(
                "partitions of the topic are not in this log directory; bring those of all brokers and"
                " directories together in one, or leave the topic out",
                topic=name,
                missing_partitions=",".join(map(str, missing)),
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
        return SourceTopic(name, topic_ids.pop(), tuple(partitions))

    def _refuse_data_directory(self) -> None:
        """What a server has tiered is not in its data directory any more."""
        try:
            text = self._filesystem.read_file(f"{self.path}/{META_FILE}").decode()
            properties = parse_meta_properties(text)
        except (FileNotFoundError, UnicodeDecodeError, CorruptRecordError):
            # Directories that were put together by hand have none; a damaged one says nothing of the logs.
            return
        if STORE_ID in properties:
            raise DataDirectoryError(
                "this is the data directory of a stratalog server, not a broker's log directory; export its"
                " topics, and import these",
                path=self.path,
            )

    def _offsets(self, name: str) -> dict[TopicPartition, int]:
        return OffsetCheckpoint(self._filesystem, f"{self.path}/{name}").read()

    def _start_offsets_of_deletions(self) -> dict[TopicPartition, int]:
        """Without these, records that were deleted would be back: so a damaged file is no empty one."""
        path = f"{self.path}/{LOG_START_OFFSET_FILE}"
        try:
            return parse_checkpoint(self._filesystem.read_file(path).decode())
        except FileNotFoundError:
            return {}
        except ValueError:
            raise DataDirectoryError(
                "the file that says which records were deleted is damaged; start the broker, stop it and"
                " import again",
                path=path,
            ) from None

    def _find(self) -> tuple[PassedOver, ...]:
        passed_over: list[PassedOver] = []
        for name in self._filesystem.list_directory(self.path):
            if not self._filesystem.is_directory(f"{self.path}/{name}"):
                continue
            partition = parse_partition_name(name)
            if partition is not None:
                self._partitions[partition.topic].append(partition.partition)
                continue
            match = _NO_PARTITION.fullmatch(name)
            reason = "it is not a partition's" if match is None else _WHY_NO_PARTITION[match[1]]
            passed_over.append(PassedOver(name, reason))
        return tuple(passed_over)

    def _partition(self, topic_partition: TopicPartition) -> SourcePartition:
        path = f"{self.path}/{topic_partition}"
        names = self._filesystem.list_directory(path)
        base_offsets = _base_offsets(names)
        recovery_point = self._recovery_points.get(topic_partition, 0)
        # A segment ends where the next one begins.
        settled = {base for base, end_offset in pairwise(base_offsets) if end_offset <= recovery_point}
        files: list[SourceFile] = []
        for name in names:
            segment = parse_segment_name(name.removesuffix(_unfinished_suffix(name)))
            if segment is None and parse_snapshot_name(name) is None and name != LEADER_EPOCH_FILE:
                continue
            size_bytes = self._filesystem.file_size(f"{path}/{name}")
            if segment is not None and segment[1] == LOG_SUFFIX:
                self._require_format(f"{path}/{name}", size_bytes)
            is_settled = segment is not None and name.endswith(LOG_SUFFIX) and segment[0] in settled
            files.append(SourceFile(name, size_bytes, is_settled))
        return SourcePartition(
            topic_partition,
            path,
            tuple(files),
            # A broker that was killed may not have written down yet that retention dropped segments.
            max(self._start_offsets.get(topic_partition, 0), *_base_offsets(names, SWAP_SUFFIX)[:1], 0),
            recovery_point,
            self._high_watermarks.get(topic_partition),
        )

    def _require_format(self, path: str, size_bytes: int) -> None:
        """The first batch tells: a broker never goes back to an older format."""
        if size_bytes <= MAGIC_POSITION:
            return
        file = self._filesystem.open_read(path)
        try:
            [magic] = file.read_at(MAGIC_POSITION, 1)
        finally:
            file.close()
        if magic < MAGIC:
            raise UnsupportedOperationError(
                "the log holds messages of a format older than version 2; let a client copy the topic to a"
                " new one, and import that",
                path=path,
                message_format=magic,
            )


def _unfinished_suffix(name: str) -> str:
    """Of a file that was to replace a segment's: whether it does is for whoever opens the log to settle."""
    return next((suffix for suffix in (SWAP_SUFFIX, CLEANED_SUFFIX) if name.endswith(suffix)), "")


def _base_offsets(names: Sequence[str], *suffixes: str) -> list[int]:
    """Where segments begin, in order: those that have their names, and those with one of these suffixes."""
    logs = {name.removesuffix(suffix) for name in names for suffix in ("", *suffixes)}
    parsed = (parse_segment_name(name) for name in logs)
    return sorted(found[0] for found in parsed if found is not None and found[1] == LOG_SUFFIX)
