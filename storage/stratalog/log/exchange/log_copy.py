"""A copy of a log in another directory, made while the log takes appends, and the exchange of the two.

The copy follows the log as it is: segments in order, then the active one as it grows; what retention drops of
the log goes from the copy, too. `advance` takes bounded steps and needs no lock. `prepare` makes durable what
is there, so that the last bit, which `relocate` copies under the log's locks, is small::

    advance, advance ...   bytes        batches proved, sealed segments with their indexes, synced
    prepare                the rest     producer snapshots, leader epochs, the tail so far, names
    relocate               under locks  what came since; `commit` gives the directory its name; the exchange

Of the log nothing changes but where its files are: offsets, producers, epochs and whoever holds the log know
nothing of it. A reader that misses a file meanwhile waits for the lock and finds other segments. What waits
for a sync is durable in the new place before the exchange, so a flush that follows finds it done.

A log that was truncated, or whose segments were replaced, is another one: the copy cannot follow.

Crash: until `commit` the copy means nothing, and behind it everything it stands for is durable.
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
from stratalog.segment.segment_copy import ProvenRun, SegmentCopy

_LAST_BYTES = 1024 * 1024
"""At most so much is copied under the log's locks."""
_PASSING_SUFFIXES = (TEMPORARY_SUFFIX, DELETED_SUFFIX, CLEANED_SUFFIX, SWAP_SUFFIX)

Result = TypeVar("Result")


class LogPlace(NamedTuple):
    """Where a log is: its directory, and the health of the log directory that this is in."""

    directory: str
    health: DirectoryHealth


Commit = Callable[[], LogPlace]
"""Gives the copy's directory its name, durably; where the log is then. Called under the log's locks.

An error of the tree leaves the log where it was. An OSError says that nobody knows which of the two the next
process will find, so the log goes offline.
"""


class LogCopy:
    """Used by one thread, beside whatever changes the log; `relocate` takes the log's locks."""

    def __init__(
        self,
        parts: LogParts,
        directory: str,
    ) -> None:
        """Use `UnifiedLog.copy_to`. `directory` is there, and empty but for files that the caller has put."""
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
        # The log's segments when these were compared with them: a log replaces its list as a whole.
        self._followed: LogSegments | None = None
        self._snapshots = self._writing(lambda: ProducerSnapshotFiles(self._filesystem, directory))
        self._epochs = LeaderEpochCache(self._filesystem, directory)
        self._has_new_names = True

    @property
    def copied_bytes(self) -> int:
        return sum(copy.size_bytes for copy in self._segments)

    @property
    def remaining_bytes(self) -> int:
        """What the log has and the copy has not, as of now."""
        return max(0, self._local.segments.size_bytes - self.copied_bytes)

    def copy_other_files(self, left_out: Collection[str]) -> None:
        """Whatever is in the directory besides the log: whose it is, and what a human may want to look at.

        Durable but for the names when it returns. Raises UnsupportedOperationError where there is a directory
        in it, DataDirectoryError.
        """
        names = self._availability.reading(lambda: self._filesystem.list_directory(self._source_directory))
        for name in names:
            if name in left_out or not _is_other(name):
                continue
            source, target = f"{self._source_directory}/{name}", f"{self.directory}/{name}"
            if self._availability.reading(partial(self._filesystem.is_directory, source)):
                raise UnsupportedOperationError(
                    "the partition's directory has a directory in it; move that away before the partition is"
                    " moved",
                    path=source,
                )
            self._writing(partial(self._copy_file, source, target))

    def _copy_file(self, source: str, target: str) -> None:
        self._filesystem.copy_file(source, target)
        with self._resources.files.use(target) as file:
            file.sync()
        self._resources.files.forget(target)

    def advance(self, max_bytes: int) -> int:
        """Copy about so many bytes at most, but at least a batch; returns how many, 0 where the copy has all
        that was there.

        Raises UnsupportedOperationError where the log was truncated since, CorruptRecordError where it is
        damaged, DataDirectoryError with the path of the directory that failed.
        """
        self._availability.require_online()
        while True:
            copy = self._next_copy()
            if copy is None:
                return 0
            # Asked before the size: what is sealed does not grow.
            is_sealed = not copy.source.is_active
            run = self._availability.reading(partial(self._next_run, copy, max_bytes))
            if run.rows:
                self._writing(partial(copy.write, run))
                return len(run.data)
            if not is_sealed:
                return 0
            if copy in self._segments:
                self._seal(copy)

    def _next_copy(self) -> SegmentCopy | None:
        """The copy that is not complete, perhaps a new one; None where there is nothing to copy."""
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

    def _next_run(self, copy: SegmentCopy, max_bytes: int) -> ProvenRun:
        self._follow()
        if copy not in self._segments:
            return ProvenRun(b"", [], NO_LEADER_EPOCH)
        return copy.next_run(max_bytes)

    def _follow(self) -> LogSegments:
        """Let go of what the log has dropped. Raises UnsupportedOperationError where it is another one."""
        segments = self._local.segments
        if segments is self._followed:
            return segments
        if self._local.cut_count != self._cut_count:
            raise self._changed()
        while self._segments and self._segments[0].base_offset < segments.start_offset:
            self._dropped.append(self._segments.pop(0))
        last = self._segments[-1] if self._segments else None
        if last is not None and last.source.size_bytes == 0 and last.source not in segments:
            # Nothing was in it, and the log went on behind a gap.
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
        """Make durable what is copied, with the names, and what belongs to it. Raises DataDirectoryError,
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
        """None where it is being written, or damaged, or gone: what is missing is found in the batches."""
        try:
            data = self._filesystem.read_file(snapshot_path(self._source_directory, offset))
            return ProducerSnapshot.from_bytes(offset, data)
        except (CorruptRecordError, FileNotFoundError):
            return None

    @property
    def is_close(self) -> bool:
        """What is missing may be copied under the log's locks."""
        # Only the last copy may be one that still grows.
        missing_count = len(self._local.segments) - len(self._segments)
        missing_count += bool(self._segments) and not self._segments[-1].is_sealed
        return missing_count <= 2 and self.remaining_bytes <= _LAST_BYTES

    def relocate(self, commit: Commit) -> bool:
        """Copy the rest, `commit`, and let the log go on in the new place; False, with nothing changed, where
        the rest is too much by now. What was appended is durable when it returns True.

        Takes the log's locks. Raises what `commit` does, and as `advance` does, with the log where it was.
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
        """Nothing here can fail: the copy is the log by now."""
        directory, self._availability.health = place
        # Files of that name may be open since the log was there before.
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
                "the directory to which the log is copied is full or its disk failed; free space, repair it"
                " or choose another one",
                path=self.directory,
                reason=str(failure),
            ) from failure


def _is_other(name: str) -> bool:
    """Not of the log, and not left over from something that was under way."""
    is_of_log = parse_segment_name(name) is not None or parse_snapshot_name(name) is not None
    return not is_of_log and name != LEADER_EPOCH_FILE and not name.endswith(_PASSING_SUFFIXES)
