"""The log directory of a stopped broker, read by an import, which changes and creates nothing in it.

Each partition that the broker hosts has a directory `TOPIC-N`; these files lie beside them, and are read::

    .lock                               held by a broker that runs
    .kafka_cleanshutdown                there if the broker has closed every log
    meta.properties                     the owner of the directory
    recovery-point-offset-checkpoint    below it everything is fsynced
    log-start-offset-checkpoint         records below it are deleted; no line means none
    replication-offset-checkpoint       high watermarks

Other directories of a broker are passed over with a reason: `TOPIC-N.ID-delete` (deleted), `-stray` (of a
topic that the broker does not host), `-future` (an unfinished copy from another directory).

A broker creates all three checkpoints empty when it first uses a directory, and writes a line for each of its
logs into the first one, every minute and when it stops. So a partition without a line there was brought here
from another directory, or is younger than a minute. If it was brought without its line of deleted records,
those records would be back, and no file would show it.

A broker that was killed in its first minute has written neither of the first two, but perhaps the third,
which it writes every five seconds. If only one of the first two is empty, it has lost its lines.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from stratalog.base.errors import CorruptRecordError, DataDirectoryError, DataDirectoryInUseError
from stratalog.base.filesystem import FileSystem
from stratalog.base.types import TopicPartition
from stratalog.log.checkpoint import (
    HIGH_WATERMARK_FILE,
    LOG_START_OFFSET_FILE,
    RECOVERY_POINT_FILE,
    parse_broker_checkpoint,
)
from stratalog.log.leader_epoch_cache import LEADER_EPOCH_FILE
from stratalog.log.producers.producer_snapshot import parse_snapshot_name
from stratalog.manager.directories.locked_directory import CLEAN_SHUTDOWN_FILE, LOCK_FILE
from stratalog.manager.directories.manifest import parse_partition_name
from stratalog.manager.directories.meta_properties import META_FILE, STORE_ID, parse_meta_properties
from stratalog.segment.file_names import CLEANED_SUFFIX, LOG_SUFFIX, SWAP_SUFFIX, parse_segment_name
from stratalog.segment.old_messages import require_no_old_message

logger = logging.getLogger(__name__)

INTERNAL_TOPICS = frozenset(
    {"__cluster_metadata", "__consumer_offsets", "__remote_log_metadata", "__share_group_state"}
    | {"__transaction_state"}
)
"""Kafka's own topics, whose records only Kafka understands."""

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
    """No broker writes it any more: a segment below the recovery point with a later segment."""


class SourcePartition(NamedTuple):
    """A partition's directory."""

    topic_partition: TopicPartition
    path: str
    files: tuple[SourceFile, ...]
    log_start_offset: int
    recovery_point: int
    """0 if the broker has not recorded one."""
    high_watermark: int | None
    was_clean: bool
    """The broker has closed the log."""
    lacks_checkpoints: bool
    """The checkpoints beside it do not have it, so its deleted records are unknown."""

    @property
    def segment_count(self) -> int:
        return sum(file.name.endswith(LOG_SUFFIX) for file in self.files)

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def linked_bytes(self) -> int:
        """Bytes that an import can link instead of copying."""
        return sum(file.size_bytes for file in self.files if file.is_settled)


class SourceTopic(NamedTuple):
    """A topic with all its partitions, in order."""

    name: str
    topic_id: UUID | None
    """None if a broker older than topic ids created the topic."""
    partitions: tuple[SourcePartition, ...]


class PassedOver(NamedTuple):
    """A directory that is not imported."""

    name: str
    reason: str
    log_dir: str
    """The log directory that has it."""


class KafkaLogDirectory:
    """Keeps a broker from starting on the directory until `release`. Belongs to one thread."""

    def __init__(self, filesystem: FileSystem, path: str) -> None:
        """Lock a broker's log directory and read what it says of itself. Raises DataDirectoryInUseError if a
        broker runs on it, DataDirectoryError if it is no log directory or a server's data directory, OSError.
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
            is_young = not self.was_clean and all(
                map(self._is_empty, (RECOVERY_POINT_FILE, LOG_START_OFFSET_FILE))
            )
            self._start_offsets = self._start_offsets_of_deletions(is_young=is_young)
            self._recovery_points = self._offsets(RECOVERY_POINT_FILE)
            self._high_watermarks = self._offsets(HIGH_WATERMARK_FILE) or {}
            # The partitions that the broker has recorded; None if it was killed before.
            self._known = self._known_when_young() if is_young else (self._recovery_points or {}).keys()
            self.partitions, self.passed_over = self._find()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _refuse_data_directory(self) -> None:
        """Refuse a server's data directory, which lacks the tiered records."""
        if is_of_server(self._filesystem, self.path):
            raise DataDirectoryError(
                "this is the data directory of a stratalog server, not a broker's log directory; export its"
                " topics, and import these",
                path=self.path,
            )

    def _offsets(self, name: str) -> dict[TopicPartition, int] | None:
        """The lines of a checkpoint; None if it is missing or damaged."""
        path = f"{self.path}/{name}"
        try:
            return parse_broker_checkpoint(self._filesystem.read_file(path).decode())
        except FileNotFoundError:
            return None
        except ValueError as failure:
            logger.warning("a checkpoint of the broker is damaged, path=`%s` reason=`%s`", path, failure)
            return None

    def _start_offsets_of_deletions(self, *, is_young: bool) -> dict[TopicPartition, int] | None:
        """The log starts; None if the file is missing or has lost its lines. Raises DataDirectoryError for a
        damaged file, because deleted records would be back."""
        path = f"{self.path}/{LOG_START_OFFSET_FILE}"
        # Without deletions a broker writes a count of 0 lines.
        if not is_young and self._is_empty(LOG_START_OFFSET_FILE):
            return None
        try:
            return parse_broker_checkpoint(self._filesystem.read_file(path).decode())
        except FileNotFoundError:
            return None
        except ValueError:
            raise DataDirectoryError(
                "the checkpoint of deleted records is damaged, and a broker that starts on it forgets them"
                " too; repair it in a copy of the log directory, and import the copy",
                path=path,
            ) from None

    def _is_empty(self, name: str) -> bool:
        """The broker has created the file and not written it yet."""
        path = f"{self.path}/{name}"
        return self._filesystem.exists(path) and self._filesystem.file_size(path) == 0

    def _known_when_young(self) -> Collection[TopicPartition] | None:
        """The known partitions of a broker that was killed in its first minute; None if it recorded none."""
        path = f"{self.path}/{HIGH_WATERMARK_FILE}"
        is_written = self._filesystem.exists(path) and not self._is_empty(HIGH_WATERMARK_FILE)
        return self._high_watermarks.keys() if is_written else None

    def _find(self) -> tuple[tuple[TopicPartition, ...], tuple[PassedOver, ...]]:
        partitions: list[TopicPartition] = []
        passed_over: list[PassedOver] = []
        for name in self._filesystem.list_directory(self.path):
            if not self._filesystem.is_directory(f"{self.path}/{name}"):
                continue
            partition = parse_partition_name(name)
            if partition is not None:
                partitions.append(partition)
                continue
            match = _NO_PARTITION.fullmatch(name)
            reason = "it is not a partition's" if match is None else _WHY_NO_PARTITION[match[1]]
            passed_over.append(PassedOver(name, reason, self.path))
        return tuple(partitions), tuple(passed_over)

    def _lacks_checkpoints(self, partition: TopicPartition) -> bool:
        if self._start_offsets is None:
            return True
        return self._known is not None and partition not in self._known

    def partition(self, topic_partition: TopicPartition) -> SourcePartition:
        """One of `partitions` with its files. Raises UnsupportedOperationError for messages older than
        version 2, OSError.
        """
        path = f"{self.path}/{topic_partition}"
        names = self._filesystem.list_directory(path)
        base_offsets = _base_offsets(names)
        recovery_point = (self._recovery_points or {}).get(topic_partition, 0)
        # A segment ends where the next one begins.
        settled = {base for base, end_offset in pairwise(base_offsets) if end_offset <= recovery_point}
        files: list[SourceFile] = []
        for name in names:
            segment = parse_segment_name(name.removesuffix(_unfinished_suffix(name)))
            if segment is None and parse_snapshot_name(name) is None and name != LEADER_EPOCH_FILE:
                continue
            size_bytes = self._filesystem.file_size(f"{path}/{name}")
            if segment is not None and segment[1] == LOG_SUFFIX:
                self._require_format(f"{path}/{name}", segment[0], size_bytes)
            is_settled = segment is not None and name.endswith(LOG_SUFFIX) and segment[0] in settled
            files.append(SourceFile(name, size_bytes, is_settled))
        return SourcePartition(
            topic_partition=topic_partition,
            path=path,
            files=tuple(files),
            # A killed broker may not have recorded yet that retention deleted segments.
            log_start_offset=max(
                (self._start_offsets or {}).get(topic_partition, 0), *_base_offsets(names, SWAP_SUFFIX)[:1], 0
            ),
            recovery_point=recovery_point,
            high_watermark=self._high_watermarks.get(topic_partition),
            was_clean=self.was_clean,
            lacks_checkpoints=self._lacks_checkpoints(topic_partition),
        )

    def _require_format(self, path: str, base_offset: int, size_bytes: int) -> None:
        """Check the first batch, which finds most old logs at once; opening the log checks every batch."""
        file = self._filesystem.open_read(path)
        try:
            require_no_old_message(file, 0, size_bytes, base_offset)
        finally:
            file.close()


def is_of_server(filesystem: FileSystem, path: str) -> bool:
    """Whether the directory belongs to a server of ours. Raises OSError."""
    try:
        return STORE_ID in parse_meta_properties(filesystem.read_file(f"{path}/{META_FILE}").decode())
    except (FileNotFoundError, UnicodeDecodeError, CorruptRecordError):
        # A directory that was assembled by hand has no such file; a damaged file says nothing about the logs.
        return False


def _unfinished_suffix(name: str) -> str:
    """The suffix of a file that was to replace a segment's; opening the log decides whether it does."""
    return next((suffix for suffix in (SWAP_SUFFIX, CLEANED_SUFFIX) if name.endswith(suffix)), "")


def _base_offsets(names: Sequence[str], *suffixes: str) -> list[int]:
    """Sorted base offsets of the segments, including files with one of these suffixes."""
    logs = {name.removesuffix(suffix) for name in names for suffix in ("", *suffixes)}
    parsed = (parse_segment_name(name) for name in logs)
    return sorted(found[0] for found in parsed if found is not None and found[1] == LOG_SUFFIX)
