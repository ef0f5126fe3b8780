"""A copy of a log in another directory, made while the log takes appends, and the exchange of the two.

The copy follows the log: segments in order, then the active one as it grows. Segments that retention drops
from the log go from the copy, too. `advance` takes bounded steps and needs no lock. `prepare` makes the copy
durable, so that the rest, which `relocate` copies under the log's locks, is small::

    advance, advance ...   bytes        batches proved, sealed segments with their indexes, synced
    prepare                the rest     producer snapshots, leader epochs, the tail so far, names
    relocate               under locks  the rest; `commit` gives the directory its name; the exchange

Only the place of the log's files changes: offsets, producers and epochs stay, and so does the UnifiedLog. A
reader that misses a file meanwhile waits for the lock and finds other segments. Data that wait for a sync are
durable in the new place before the exchange, so a later flush has nothing to do for them.

If the log is truncated, or its segments are replaced, the copy cannot follow.

Crash: until `commit` the copy means nothing; after it the whole copy is durable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import NamedTuple, TypeVar

from stratalog.base.atomic_file import TEMPORARY_SUFFIX
from stratalog.base.errors import CorruptRecordError, DataDirectoryError, UnsupportedOperationError
from stratalog.base.filesystem import FileSystem
from stratalog.log.directory_health import DirectoryHealth
from stratalog.log.leader_epoch_cache import LEADER_EPOCH_FILE, LeaderEpochCache
from stratalog.log.log_parts import LogParts
from stratalog.log.log_segments import LogSegments
from stratalog.log.producers.producer_snapshot import ProducerSnapshot, parse_snapshot_name, snapshot_path
from stratalog.log.producers.producer_snapshot_files import ProducerSnapshotFiles
from stratalog.record.builder import NO_LEADER_EPOCH
from stratalog.segment.file_names import (
    CLEANED_SUFFIX,
    DELETED_SUFFIX,
    SWAP_SUFFIX,
    parse_segment_name,
)
from stratalog.segment.segment_copy import ProvenPortion, SegmentCopy

_LAST_BYTES = 1024 * 1024
"""At most so much is copied under the log's locks."""
_PASSING_SUFFIXES = (TEMPORARY_SUFFIX, DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)

Result = TypeVar("Result")


class LogPlace(NamedTuple):
    """The directory of a log, and the health of its log directory."""

    directory: str
    health: DirectoryHealth


Commit = Callable[[], LogPlace]
"""Gives the copy's directory its name, durably, and returns the new place. Called under the log's locks.

A LogStoreError leaves the log in its old place. After an OSError it is unknown which of the two places the
next process will find, so the log goes offline.
"""


class LogCopy:
    """A copy of a log in another directory, made while the log changes. Used by one thread, beside whatever
    changes the log; `relocate` takes the log's locks."""

    def __init__(
        self,
        parts: LogParts,
        directory: str,
    ) -> None:
        """Use `UnifiedLog.copy_to`. `directory` exists, and has no files but those of the caller."""
        self.directory = directory
        self.durable_end_offset = 0
        """Below it the copy is durable, as of the last `prepare`."""
        self._flush_lock = parts.flush_lock
        self._lock = parts.lock
        self._local = parts.local_log
        self._state = parts.state
        self._offsets = parts.offsets
        self._availability = parts.availability
        self._source_directory = self._local.directory
        self._cut_count = self._local.cut_count
        self._resources = self._local.resources
        self._filesystem: FileSystem = self._local.resources.filesystem
        self._segments: list[SegmentCopy] = []
        self._dropped: list[SegmentCopy] = []
        # The log's list of segments at the last comparison: a log replaces its list as a whole.
        self._followed: LogSegments | None = None
        self._snapshots = self._writing(lambda: ProducerSnapshotFiles(self._filesystem, directory))
        self._epochs = LeaderEpochCache(self._filesystem, directory)
        self._has_new_names = True

    @property
    def copied_bytes(self) -> int:
        return sum(copy.size_bytes for copy in self._segments)

    @property
    def remaining_bytes(self) -> int:
        """Bytes of the log that are not yet copied."""
        return max(0, self._local.segments.size_bytes - self.copied_bytes)

    def copy_other_files(self, left_out: Collection[str]) -> None:
        """Copy the other files of the directory, such as `partition.metadata`.

        Their contents are durable when it returns. Raises UnsupportedOperationError for a directory among
        them, DataDirectoryError.
        """
        names = self._availability.reading(lambda: self._filesystem.list_directory(self._source_directory))
        for name in names:
            if name in left_out or not _is_other(name):
                continue
            source, target = f"{self._source_directory}/{name}", f"{self.directory}/{name}"
            if self._availability.reading(partial(self._filesystem.is_directory, source)):
                raise UnsupportedOperationError(
                    "the partition's directory contains a directory; move that away, then move the partition",
                    path=source,
                )
            self._writing(partial(self._copy_file, source, target))

    def _copy_file(self, source: str, target: str) -> None:
        self._filesystem.copy_file(source, target)
        with self._resources.files.use(target) as file:
            file.sync()
        self._resources.files.forget(target)

    def advance(self, max_bytes: int) -> int:
        """Copy about so many bytes at most, but at least a batch. Return the number of bytes, 0 if the copy
        is complete for now.

        Raises UnsupportedOperationError if the log was truncated meanwhile, CorruptRecordError if it is
        damaged, DataDirectoryError with the path of the directory that failed.
        """
        self._availability.require_online()
        while True:
            copy = self._next_copy()
            if copy is None:
                return 0
            # Asked before the size: a sealed segment does not grow.
            is_sealed = not copy.source.is_active
            portion = self._availability.reading(partial(self._next_portion, copy, max_bytes))
            if portion.rows:
                self._writing(partial(copy.write, portion))
                return len(portion.data)
            if not is_sealed:
                return 0
            if copy in self._segments:
                self._seal(copy)

    def _next_copy(self) -> SegmentCopy | None:
        """The incomplete copy, perhaps a new one; None if there is nothing to copy."""
        segments = self._follow()
        if self._segments and not self._segments[-1].is_sealed:
            return self._segments[-1]
        if len(self._segments) == len(segments):
            return None
        leader_epoch = self._segments[-1].leader_epoch if self._segments else NO_LEADER_EPOCH
        source = segments[len(self._segments)]
        self._segments.append(
            self._writing(lambda: SegmentCopy(self._resources, source, self.directory, leader_epoch))
        )
        self._has_new_names = True
        return self._segments[-1]

    def _next_portion(self, copy: SegmentCopy, max_bytes: int) -> ProvenPortion:
        self._follow()
        if copy not in self._segments:
            return ProvenPortion(b"", [])
        return copy.next_portion(max_bytes)

    def _follow(self) -> LogSegments:
        """Drop the copies of segments that the log has dropped; return the log's segments. Raises
        UnsupportedOperationError if the log was truncated or compacted."""
        segments = self._local.segments
        if segments is self._followed:
            return segments
        if self._local.cut_count != self._cut_count:
            raise self._changed()
        while self._segments and self._segments[0].base_offset < segments.start_offset:
            self._dropped.append(self._segments.pop(0))
        last = self._segments[-1] if self._segments else None
        if last is not None and last.source.size_bytes == 0 and last.source not in segments:
            # It was empty, and the log went on behind a gap.
            self._dropped.append(self._segments.pop())
        sources = tuple(copy.source for copy in self._segments)
        if self._local.directory != self._source_directory or sources != tuple(segments[: len(sources)]):
            raise self._changed()
        self._discard_dropped()
        self._followed = segments
        return segments

    def _changed(self) -> UnsupportedOperationError:
        return UnsupportedOperationError(
            "the log was truncated or compacted while it was copied; begin the move again",
            path=self._source_directory,
        )

    def _discard_dropped(self) -> None:
        for copy in self._dropped:
            self._writing(copy.discard)
            self._has_new_names = True
        self._dropped.clear()

    def _seal(self, copy: SegmentCopy) -> None:
        def find() -> int:
            self._follow()
            if copy in self._segments:
                copy.add_aborted(copy.new_aborted())
                return self._filesystem.modified_ms(copy.source.path)
            return -1

        modified_ms = self._availability.reading(find)
        if modified_ms >= 0:
            self._writing(lambda: copy.seal(modified_ms))
            self._has_new_names = True

    def prepare(self) -> None:
        """Make the copied data durable, with snapshots, epochs and names. Raises DataDirectoryError,
        UnsupportedOperationError."""
        self._availability.require_online()
        self._follow()
        self._writing(self._make_durable)
        self.durable_end_offset = self._segments[-1].end_offset if self._segments else 0

    def _make_durable(self) -> None:
        for copy in self._segments:
            copy.sync()
        self._copy_snapshots()
        self._epochs.replace(self._state.epochs.entries)
        self._epochs.flush()
        if self._has_new_names:
            self._filesystem.sync_directory(self.directory)
            self._has_new_names = False

    def _copy_snapshots(self) -> None:
        wanted, copied = set(self._state.producers.snapshot_files.offsets), set(self._snapshots.offsets)
        for offset in copied - wanted:
            self._snapshots.remove_at(offset)
            self._has_new_names = True
        for offset in sorted(wanted - copied):
            snapshot = self._availability.reading(partial(self._read_snapshot, offset))
            if snapshot is not None:
                self._snapshots.write(snapshot, durable=False)
                self._has_new_names = True
        self._snapshots.sync(self._snapshots.take_unsynced())

    def _read_snapshot(self, offset: int) -> ProducerSnapshot | None:
        """A snapshot of the log; None if it is being written, damaged, or gone: batches can replace it."""
        try:
            data = self._filesystem.read_file(snapshot_path(self._source_directory, offset))
            return ProducerSnapshot.from_bytes(offset, data)
        except (CorruptRecordError, FileNotFoundError):
            return None

    @property
    def is_close(self) -> bool:
        """The rest is small enough to be copied under the log's locks."""
        # Only the last copy may be one that still grows.
        missing_count = len(self._local.segments) - len(self._segments)
        missing_count += bool(self._segments) and not self._segments[-1].is_sealed
        return missing_count <= 2 and self.remaining_bytes <= _LAST_BYTES

    def relocate(self, commit: Commit) -> bool:
        """Copy the rest, `commit`, and let the log go on in the new place. False, with nothing changed, if
        the rest is too large by now. All appended records are durable when it returns True.

        Takes the log's locks. Raises as `commit` and `advance` do, with the log in its old place.
        """
        with self._flush_lock, self._lock:
            return self._relocate(commit)

    def _relocate(self, commit: Commit) -> bool:
        self._availability.require_online()
        self._follow()
        if not self.is_close:
            return False
        while self.advance(_LAST_BYTES):
            pass
        last = self._segments[-1]
        last.add_aborted(self._availability.reading(last.new_aborted))
        self._writing(self._make_durable)
        segments = self._local.segments
        assert tuple(copy.source for copy in self._segments) == tuple(segments)
        assert self.remaining_bytes == 0
        assert last.end_offset == segments.end_offset
        assert all(copy.is_sealed for copy in self._segments[:-1])
        with self._availability.offline_on_failure():
            place = commit()
        self._exchange(place)
        return True

    def _exchange(self, place: LogPlace) -> None:
        """Let the log use the copy. Cannot fail."""
        directory, self._availability.health = place
        # Files of that name may be open from an earlier stay of the log in that directory.
        self._resources.files.forget_below(self.directory)
        self._resources.files.forget_below(directory)
        self._state.relocate(directory)
        self._local.relocate(directory, [copy.segment(directory) for copy in self._segments])
        self._resources.files.forget_below(self._source_directory)
        self._offsets.recovery_point = self._offsets.log_end_offset
        self._state.publish(self._offsets.high_watermark)

    def _writing(self, write: Callable[[], Result]) -> Result:
        try:
            return write()
        except OSError as failure:
            raise DataDirectoryError(
                "the target directory of a copy is full or its disk failed; free space, repair the disk, or"
                " choose another directory",
                path=self.directory,
                reason=str(failure),
            ) from failure


def _is_other(name: str) -> bool:
    """Whether a file belongs neither to the log nor to an unfinished operation."""
    is_of_log = parse_segment_name(name) is not None or parse_snapshot_name(name) is not None
    return not is_of_log and name != LEADER_EPOCH_FILE and not name.endswith(_PASSING_SUFFIXES)
