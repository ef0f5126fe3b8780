"""The files of one partition on this disk: writes, rolls, syncs, drops and reads its segments.

It knows files only: no watermark, no other tier, and no rule for rolls, syncs or retention. Each change of
the list replaces `segments` as a whole.

Crash: a start trusts a segment that lies below the recovery point, is followed by another one and has a sound
seal; it walks the others. The recovery point may be at the end of a segment before the segment is sealed. If
a segment has aborted transactions, their index and the seal are durable before the next segment has a file.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import NO_DESCRIPTOR, Buffer
from stratalog.log.directory_health import DISK_FAILURES
from stratalog.log.fetch_data import FetchData
from stratalog.log.log_config import LogConfig
from stratalog.log.log_segments import LogSegments
from stratalog.record.native.batch_row import AppendedBatch
from stratalog.segment.batch_read import BatchRead, EpochSpan, ReadBounds
from stratalog.segment.file_names import SEAL_SUFFIX, TRANSACTION_INDEX_SUFFIX, segment_path
from stratalog.segment.kept_bytes import KeptBytes
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.log_tail import LogTail
from stratalog.segment.segment_resources import SegmentResources

_MAX_HINTS = 64


class UnsyncedWork(NamedTuple):
    """The files to sync before the log is durable up to an offset. Each sealed segment comes with its
    indexes."""

    sealed: tuple[LogSegment, ...]
    active: LogSegment | None
    directories: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        return not self.sealed and self.active is None and not self.directories


class TruncatedLog(NamedTuple):
    """The log after a truncation: its `segments`, the last one active. `dropped`: segments that go as a
    whole."""

    segments: LogSegments
    dropped: tuple[LogSegment, ...]


class LocalLog:
    """Changes are guarded by UnifiedLog.lock; reads are thread-safe beside them."""

    def __init__(
        self,
        resources: SegmentResources,
        directory: str,
        config: LogConfig,
        segments: Sequence[LogSegment],
        *,
        unsynced: Sequence[str],
        may_be_reserved: bool,
    ) -> None:
        """`unsynced`: directories with new names that are not durable yet. `may_be_reserved`: the active
        segment may have reserved disk space behind its data."""
        assert segments
        self.resources = resources
        self._settle_in(directory)
        self.config = config
        """The configuration of the log, replaced as a whole by `UnifiedLog.reconfigure`."""
        self.segments = LogSegments(segments)
        self.is_changed = False
        """The files have changed since the log was loaded."""
        self.cut_count = 0
        """The number of truncations. A copy compares it, because the segments alone do not show them."""
        self._unsynced_sealed: list[LogSegment] = []
        self._unsynced_directories = list(unsynced)
        self._may_be_reserved = may_be_reserved
        # The ends of reads, where the next read of the same reader begins. A lost hint costs a look-up.
        self._hints: dict[int, tuple[LogSegment, int]] = {}
        self.tail = LogTail(resources.tails)
        """The newest batches, in memory. Empty after any change of the files but an append."""

    def append(self, parts: Sequence[Buffer], batches: Sequence[AppendedBatch]) -> None:
        """Append batches to the active segment. Raises as LogSegment.append does."""
        self.is_changed = True
        active, tail = self.segments[-1], self.tail
        if not tail.admits(sum(map(len, parts)), len(batches)):
            active.append(parts, batches)
            tail.clear()
            return
        position, kept = active.size_bytes, KeptBytes(parts)
        active.append(kept.parts, batches)
        tail.add(active, position, kept, batches)

    def roll(
        self,
        now_ms: int,
        base_offset: int | None = None,
        on_begun: Callable[[], None] = lambda: None,
    ) -> None:
        """Seal the active segment and begin another one at the end, or at `base_offset` behind it.

        An empty segment stays, unless the new one must begin elsewhere: then it is removed after `on_begun`,
        which runs with the new segment in its place. Raises OSError with nothing changed, DataDirectoryError
        if the log must not be written to any more, and what `on_begun` raises.
        """
        old = self.segments.active
        base_offset = self.segments.end_offset if base_offset is None else base_offset
        assert base_offset >= self.segments.end_offset
        if old.size_bytes == 0 and old.base_offset == base_offset:
            return
        self.is_changed = True
        if old.size_bytes > 0:
            # Before the new file: a failure then leaves only index files, which mean nothing yet, and the new
            # file can use the space that this one did not need.
            old.save_indexes()
            self._sync_aborted(old)
            self._trim_active()
        new = self._create(now_ms, base_offset)
        if old.size_bytes > 0:
            old.seal()
            self._unsynced_sealed.append(old)
            self.segments = LogSegments((*self.segments, new))
            on_begun()
            return
        self.segments = LogSegments((*self.segments.sealed, new))
        on_begun()
        self._unsynced_directories.append(self.directory)
        try:
            old.mark_deleted()
            old.unlink_deleted()
        except OSError as failure:
            raise DataDirectoryError(
                "an empty segment could not be removed; repair the disk and restart the server",
                path=old.path,
                reason=str(failure),
            ) from failure

    def _create(self, now_ms: int, base_offset: int) -> LogSegment:
        segment = LogSegment.create(
            self.resources,
            self.directory,
            base_offset,
            created_ms=now_ms,
            index_interval_bytes=self.config.index_interval_bytes,
            reserved_bytes=self.config.reserved_bytes,
        )
        self._may_be_reserved = self.config.preallocate
        self._unsynced_directories.append(self.directory)
        return segment

    def _sync_aborted(self, segment: LogSegment) -> None:
        """Make the segment's saved index of aborted transactions durable, and its seal, names included.

        Raises DataDirectoryError: after a failed sync the bytes on the disk are unknown, and the next sync
        may claim success.
        """
        if not segment.has_aborted:
            return
        path = segment_path(self.directory, segment.base_offset, TRANSACTION_INDEX_SUFFIX)
        try:
            for synced in (path, segment_path(self.directory, segment.base_offset, SEAL_SUFFIX)):
                with self.resources.files.use(synced) as file:
                    file.sync()
            self.resources.filesystem.sync_directory(self.directory)
        except OSError as failure:
            raise DataDirectoryError(
                "a transaction index could not be synced; repair the disk and restart the server",
                path=path,
                reason=str(failure),
            ) from failure

    def _trim_active(self) -> None:
        """Give back the reserved space of the active segment. Raises OSError."""
        if self._may_be_reserved:
            self.segments.active.trim()
            self._may_be_reserved = False

    def take_unsynced(self, recovery_point: int, end_offset: int) -> UnsyncedWork:
        """The work of a sync up to `end_offset`: the end of the log, or the base offset of the active
        segment, which is left alone then. The work counts as synced from now on, unless it is `put_back`."""
        active = self.segments.active
        work = UnsyncedWork(
            tuple(self._unsynced_sealed),
            active if end_offset > max(recovery_point, active.base_offset) else None,
            tuple(dict.fromkeys(self._unsynced_directories)),
        )
        self._unsynced_sealed.clear()
        self._unsynced_directories.clear()
        return work

    def put_back(self, work: UnsyncedWork) -> None:
        """Note that `work` was not synced. Segments that have left the log meanwhile need no sync."""
        sealed = self.segments.sealed
        self._unsynced_sealed[:0] = [segment for segment in work.sealed if segment in sealed]
        self._unsynced_directories[:0] = work.directories

    def sync(self, work: UnsyncedWork) -> None:
        """Sync the files of `work`. Needs no lock. Raises OSError."""
        for segment in work.sealed:
            segment.sync(with_indexes=True)
        if work.active is not None:
            work.active.sync(with_indexes=False)
        # Names last: a durable name then stands for durable contents.
        for directory in work.directories:
            self.resources.filesystem.sync_directory(directory)

    def put_aside_oldest(self, count: int, on_left: Callable[[OSError], None]) -> int:
        """Rename the files of the first `count` segments; return how many segments the disk let go. The
        caller drops those with `drop_oldest`: until then they are in the list, and cannot be read any more.

        `on_left` gets the failures for index files that stay; without a log file they mean nothing. Raises
        OSError with nothing changed, unless the disk has failed.
        """
        assert 0 < count < len(self.segments), "a log always keeps its active segment"
        self.is_changed = True
        # Oldest first: a crash in between leaves a log without a gap.
        for number, segment in enumerate(self.segments[:count]):
            try:
                segment.mark_deleted()
            except OSError as failure:
                if failure.errno in DISK_FAILURES or (number == 0 and not segment.is_dropped):
                    raise
                if not segment.is_dropped:
                    return number
                on_left(failure)
        return count

    def drop_oldest(self, count: int) -> tuple[LogSegment, ...]:
        """Take the first `count` segments, which were put aside, out of the log; the caller unlinks them
        later. Durable when it returns, or with the next sync if the process has no descriptor left now.
        Raises OSError."""
        dropped, self.segments = self.segments[:count], LogSegments(self.segments[count:])
        self.tail.clear_below(self.segments.start_offset)
        self._unsynced_sealed = [segment for segment in self._unsynced_sealed if segment not in dropped]
        # The segment behind these must have a durable name, also in a directory that was never synced.
        directories = tuple(dict.fromkeys((self.directory, *self._unsynced_directories)))
        try:
            for directory in directories:
                self.resources.filesystem.sync_directory(directory)
        except OSError as failure:
            if failure.errno not in NO_DESCRIPTOR:
                raise
            self._unsynced_directories = list(directories)
        return dropped

    def exchange(self, new: Sequence[LogSegment], replaced: Sequence[LogSegment]) -> None:
        """Put `new` in the place of `replaced`, which are neighbours; the files have their new names
        already."""
        self.is_changed = True
        self._forget_places()
        self._unsynced_sealed = [segment for segment in self._unsynced_sealed if segment not in replaced]
        first = self.segments.index(replaced[0])
        behind = self.segments[first + len(replaced) :]
        self.segments = LogSegments((*self.segments[:first], *new, *behind))

    def before(self, offset: int) -> TruncatedLog:
        """The log without the batches that end at or above `offset`; it has at least the first segment's
        base.

        Changes nothing: `truncate` follows. Raises CorruptRecordError, OSError.
        """
        kept, dropped = self.segments.split_at(offset)
        return TruncatedLog(LogSegments((*kept[:-1], kept[-1].before(offset))), dropped)

    def truncate(self, truncated: TruncatedLog) -> None:
        """Become that log; durable when it returns. Dropped segments are renamed, the caller unlinks them
        later. Raises OSError."""
        self.is_changed = True
        self.cut_count += 1
        self._forget_places()
        # A reader that meets a file that becomes shorter looks at the list again, and finds this one.
        self.segments = truncated.segments
        sealed = self.segments.sealed
        self._unsynced_sealed = [segment for segment in self._unsynced_sealed if segment in sealed]
        # Newest first, so that a crash in between leaves a beginning of the log.
        for segment in reversed(truncated.dropped):
            segment.mark_deleted()
        if truncated.dropped:
            self.resources.filesystem.sync_directory(self.directory)
        # Durable at once: the next append must not meet old bytes.
        self.segments.active.trim(durable=True)
        self.segments.active.cut_indexes()
        self.resources.filesystem.sync_directory(self.directory)

    def restart_at(self, offset: int, now_ms: int) -> tuple[LogSegment, ...]:
        """Replace all segments by an empty one at `offset`; durable when it returns. Returns the renamed old
        segments. Raises OSError."""
        self.is_changed = True
        self.cut_count += 1
        dropped = self.segments
        self._forget_places()
        self._unsynced_sealed.clear()
        # Newest first, so that a crash in between leaves a beginning of the old log. The new segment comes
        # after all of them are gone for good, because it may lie among their offsets.
        for segment in reversed(dropped):
            segment.mark_deleted()
        self.resources.filesystem.sync_directory(self.directory)
        self.segments = LogSegments((self._create(now_ms, offset),))
        self.resources.filesystem.sync_directory(self.directory)
        return dropped

    def read(
        self,
        segments: LogSegments,
        offset: int,
        max_bytes: int,
        *,
        end_offset: int,
        min_one: bool,
        epoch_at: Callable[[int], EpochSpan],
    ) -> FetchData:
        """Read from the first batch that ends at or above `offset`, in one of the given segments. `epoch_at`:
        see `ReadBounds`.

        Raises CorruptRecordError, OSError (FileNotFoundError if a segment was dropped meanwhile).
        """
        log_end_offset = segments[-1].end_offset
        assert offset < end_offset <= log_end_offset
        recent = self.read_tail(offset, max_bytes, end_offset=end_offset, min_one=min_one)
        if recent is not None:
            return recent
        for segment in segments.since(offset):
            if segment.base_offset >= end_offset:
                break
            if offset >= segment.end_offset:
                continue
            hinted, position = self._hints.get(offset, (None, 0))
            first_offset = offset
            if hinted is not segment:
                first_offset = segment.base_offset
                found = segment.proven_position_of(offset)
                if found is None:
                    continue
                position = found
            if position >= segment.size_bytes:
                # The hint is right: a hole follows up to the next segment.
                continue
            limit_offset = min(segment.end_offset, log_end_offset)
            bounds = ReadBounds(first_offset, min(end_offset, limit_offset), limit_offset, epoch_at)
            found_batches = segment.read(position, max_bytes, bounds, min_one=min_one)
            return self._found(segment, offset, position, found_batches)
        # Compaction has left no batch here: the reader goes on behind the hole.
        return FetchData((), end_offset)

    def read_tail(self, offset: int, max_bytes: int, *, end_offset: int, min_one: bool) -> FetchData | None:
        """Like `read`, from memory alone; None if the tail does not have the batches."""
        recent = self.tail.read(offset, max_bytes, end_offset, min_one=min_one)
        if recent is None:
            return None
        return FetchData(recent.chunks, recent.next_offset, lacks_room=recent.lacks_room)

    def read_cached(
        self,
        segments: LogSegments,
        offset: int,
        max_bytes: int,
        *,
        end_offset: int,
        min_one: bool,
        epoch_at: Callable[[int], EpochSpan],
    ) -> FetchData | None:
        """Like `read`, but does not wait for the disk, and asks no index: it goes on where another read has
        ended. None if it cannot, and if the first batch is larger than `max_bytes`."""
        segment = next(segments.since(offset))
        hinted, position = self._hints.get(offset, (None, 0))
        if hinted is not segment or position >= segment.size_bytes:
            return None
        limit_offset = min(segment.end_offset, segments[-1].end_offset)
        bounds = ReadBounds(offset, min(end_offset, limit_offset), limit_offset, epoch_at)
        found = segment.read_cached(position, max_bytes, bounds, min_one=min_one)
        return None if found is None else self._found(segment, offset, position, found)

    def _found(self, segment: LogSegment, offset: int, position: int, found: BatchRead) -> FetchData:
        """The result of a read from `offset`, which began at that position; the next read goes on behind
        it."""
        data, next_offset, lacks_room = found
        if not data:
            return FetchData((), max(offset, next_offset))
        if len(self._hints) >= _MAX_HINTS:
            self._hints = {}
        self._hints[next_offset] = (segment, position + len(data))
        return FetchData((data,), next_offset, lacks_room=lacks_room)

    def _forget_places(self) -> None:
        """Forget where batches lie in the files, which change now."""
        self._hints = {}
        self.tail.clear()

    def _settle_in(self, directory: str) -> None:
        self.directory = directory
        self.log_dir = posixpath.dirname(directory)
        """The log directory that has the directory of the log."""

    def relocate(self, directory: str, segments: Sequence[LogSegment]) -> None:
        """Use the durable files in that directory, through these segments. Cannot fail."""
        for segment in self.segments:
            segment.let_go()
        self.is_changed = True
        self._forget_places()
        self._unsynced_sealed.clear()
        self._unsynced_directories.clear()
        self._may_be_reserved = False
        self._settle_in(directory)
        self.segments = LogSegments(segments)

    def save_active_indexes(self) -> None:
        """Write the active segment's indexes for the next process. Raises OSError."""
        self._trim_active()
        active = self.segments.active
        active.save_indexes()
        active.sync(with_indexes=True)
        self.resources.filesystem.sync_directory(self.directory)

    def close(self) -> None:
        """Close the files. Writes nothing."""
        self.tail.clear()
        for segment in self.segments:
            segment.close()

    def check(self) -> None:
        """Check the segments, and assert that only segments of the log wait for a sync. Raises
        CorruptRecordError, OSError."""
        self.segments.check()
        self.tail.check()
        assert all(segment in self.segments.sealed for segment in self._unsynced_sealed)
