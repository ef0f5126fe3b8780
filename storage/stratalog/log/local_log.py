"""The log of one partition on this disk: how its segments are written, rolled, synced, dropped and read.

It knows nothing but files: no watermark, no other tier, no rule that says when to roll, to sync, or what may
go. `segments` is replaced as a whole by whatever changes the list.

Crash: a start trusts a segment that lies below the recovery point, is followed by another one and has a sound
seal; it walks the others. The recovery point may be at the end of a segment before the segment is sealed.
Where a segment has aborted transactions, their index and the seal are durable before the next segment has a
file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import NO_DESCRIPTOR, Buffer
from stratalog.log.directory_health import DISK_FAILURES
from stratalog.log.log_config import LogConfig
from stratalog.log.log_segments import LogSegments
from stratalog.log.read.fetch_data import FetchData
from stratalog.segment.appended_batch import AppendedBatch
from stratalog.segment.batch_read import EpochSpan, ReadBounds
from stratalog.segment.file_names import SEAL_SUFFIX, TRANSACTION_INDEX_SUFFIX, segment_path
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_resources import SegmentResources

_MAX_HINTS = 64


class UnsyncedWork(NamedTuple):
    """What has to be synced before the log is durable up to its end. Each sealed segment comes with its
    indexes."""

    sealed: tuple[LogSegment, ...]
    active: LogSegment | None
    directories: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        return not self.sealed and self.active is None and not self.directories


class TruncatedLog(NamedTuple):
    """What a log will be without its end: `segments`, the last of them active. `dropped`: gone as a whole."""

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
        """`unsynced`: directories in which names were made that are not durable yet. `may_be_reserved`: the
        active segment may have disk space behind its data."""
        assert segments
        self.resources = resources
        self.directory = directory
        self.config = config
        """The configuration of the log, replaced as a whole by `UnifiedLog.reconfigure`."""
        self.segments = LogSegments(segments)
        self.is_changed = False
        """Something was done to the files since the log was loaded."""
        self.cut_count = 0
        """How often it was truncated: the segments alone do not tell that to whoever follows them."""
        self._unsynced_sealed: list[LogSegment] = []
        self._unsynced_directories = list(unsynced)
        self._may_be_reserved = may_be_reserved
        # Where a read ended: the next one of the same reader begins there. Lost hints cost a look-up.
        self._hints: dict[int, tuple[LogSegment, int]] = {}

    def append(self, parts: Sequence[Buffer], batches: Sequence[AppendedBatch]) -> None:
        """Raises as LogSegment.append does."""
        self.is_changed = True
        self.segments.active.append(parts, batches)

    def roll(
        self,
        now_ms: int,
        base_offset: int | None = None,
        on_begun: Callable[[], None] = lambda: None,
    ) -> None:
        """Seal the active segment and begin another one at the end, or at `base_offset` behind it.

        An empty one stays, unless it must begin elsewhere: then it goes when `on_begun` has returned, which
        finds the other one in its place. Raises OSError: nothing has changed then. Raises DataDirectoryError
        where that could not be achieved: the log must not be written to any more; and what `on_begun` does.
        """
        old = self.segments.active
        base_offset = self.segments.end_offset if base_offset is None else base_offset
        assert base_offset >= self.segments.end_offset
        if old.size_bytes == 0 and old.base_offset == base_offset:
            return
        self.is_changed = True
        if old.size_bytes > 0:
            # Before the new file, so that a failure leaves nothing but index files, which mean nothing yet;
            # and so that the new one finds the space that this one did not need.
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
        """Make its saved index of aborted transactions durable, and the seal that proves it, names included.

        Raises DataDirectoryError: after a sync that failed nobody knows what is on the disk, and the next one
        would not say so.
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
        """Give back what the active segment did not need. Raises OSError."""
        if self._may_be_reserved:
            self.segments.active.trim()
            self._may_be_reserved = False

    def take_unsynced(self, recovery_point: int) -> UnsyncedWork:
        """What to sync for durability up to the end; it counts as synced from now on, so a failure is
        final, unless it is `put_back`."""
        active = self.segments.active
        work = UnsyncedWork(
            tuple(self._unsynced_sealed),
            active if active.end_offset > max(recovery_point, active.base_offset) else None,
            tuple(dict.fromkeys(self._unsynced_directories)),
        )
        self._unsynced_sealed.clear()
        self._unsynced_directories.clear()
        return work

    def put_back(self, work: UnsyncedWork) -> None:
        """It was not synced: it still has to be, as far as it is still in the log."""
        sealed = self.segments.sealed
        self._unsynced_sealed[:0] = [segment for segment in work.sealed if segment in sealed]
        self._unsynced_directories[:0] = work.directories

    def sync(self, work: UnsyncedWork) -> None:
        """Needs no lock. Raises OSError."""
        for segment in work.sealed:
            segment.sync(with_indexes=True)
        if work.active is not None:
            work.active.sync(with_indexes=False)
        # Names last: whatever is durable of them then stands for durable contents.
        for directory in work.directories:
            self.resources.filesystem.sync_directory(directory)

    def put_aside_oldest(self, count: int, on_left: Callable[[OSError], None]) -> int:
        """Rename the files of the first `count` segments; of how many of them the disk let go. `drop_oldest`
        follows with those: until then they are in the list, and cannot be read any more.

        `on_left` is told of index files that stay: without a log they mean nothing. Raises OSError with
        nothing changed, unless the disk has failed.
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
        later. Durable when it returns, or with the next sync, where no directory can be opened now. Raises
        OSError."""
        dropped, self.segments = self.segments[:count], LogSegments(self.segments[count:])
        self._unsynced_sealed = [segment for segment in self._unsynced_sealed if segment not in dropped]
        # What begins where these end must be found there, be it the directory of a log that was never synced.
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
        """Have `new` where `replaced` were, one after the other; the files have changed their names."""
        self.is_changed = True
        self._hints = {}
        self._unsynced_sealed = [segment for segment in self._unsynced_sealed if segment not in replaced]
        first = self.segments.index(replaced[0])
        behind = self.segments[first + len(replaced) :]
        self.segments = LogSegments((*self.segments[:first], *new, *behind))

    def before(self, offset: int) -> TruncatedLog:
        """The log without the batches that end at or above `offset`, which is not below the first segment's
        base.

        Nothing is changed yet: `truncate` follows. Raises CorruptRecordError, OSError.
        """
        kept, dropped = self.segments.split_at(offset)
        return TruncatedLog(LogSegments((*kept[:-1], kept[-1].before(offset))), dropped)

    def truncate(self, truncated: TruncatedLog) -> None:
        """Be that log; durable when it returns. What was dropped is renamed, the caller unlinks it later.
        Raises OSError."""
        self.is_changed = True
        self.cut_count += 1
        self._hints = {}
        # Readers that meet a file which becomes shorter look at the log again, and find this.
        self.segments = truncated.segments
        sealed = self.segments.sealed
        self._unsynced_sealed = [segment for segment in self._unsynced_sealed if segment in sealed]
        # Newest first, so that a crash in between leaves a beginning of the log.
        for segment in reversed(truncated.dropped):
            segment.mark_deleted()
        if truncated.dropped:
            self.resources.filesystem.sync_directory(self.directory)
        # At once, and for good: what is appended next must not meet what was here.
        self.segments.active.trim(durable=True)
        self.segments.active.cut_indexes()

    def restart_at(self, offset: int, now_ms: int) -> tuple[LogSegment, ...]:
        """Replace all segments by an empty one at `offset`; durable when it returns. Returns the old ones,
        renamed."""
        self.is_changed = True
        self.cut_count += 1
        dropped = self.segments
        self._hints = {}
        self._unsynced_sealed.clear()
        # Newest first, so that a crash in between leaves a beginning of the old log; and the new segment only
        # when all of them are gone for good, because it may lie anywhere among their offsets.
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
        """From the first batch that ends at or above `offset`, in one segment of those that the caller took.
        `epoch_at`: see `ReadBounds`.

        Raises CorruptRecordError, OSError (FileNotFoundError where a segment was dropped meanwhile).
        """
        log_end_offset = segments[-1].end_offset
        assert offset < end_offset <= log_end_offset
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
                # The hint is right, and behind it there is a hole up to the next segment.
                continue
            limit_offset = min(segment.end_offset, log_end_offset)
            bounds = ReadBounds(first_offset, min(end_offset, limit_offset), limit_offset, epoch_at)
            data, next_offset = segment.read(position, max_bytes, bounds, min_one=min_one)
            if not data:
                return FetchData(b"", max(offset, next_offset))
            if len(self._hints) >= _MAX_HINTS:
                self._hints = {}
            self._hints[next_offset] = (segment, position + len(data))
            return FetchData(data, next_offset)
        # Compaction left nothing from here on: the reader goes on behind the hole.
        return FetchData(b"", end_offset)

    def relocate(self, directory: str, segments: Sequence[LogSegment]) -> None:
        """The files are there now, durable, and these segments have them. Cannot fail."""
        for segment in self.segments:
            segment.let_go()
        self.is_changed = True
        self._hints = {}
        self._unsynced_sealed.clear()
        self._unsynced_directories.clear()
        self._may_be_reserved = False
        self.directory = directory
        self.segments = LogSegments(segments)

    def save_active_indexes(self) -> None:
        """Write the active segment's indexes, so that the next process need not make them again. Raises
        OSError."""
        self._trim_active()
        active = self.segments.active
        active.save_indexes()
        active.sync(with_indexes=True)
        self.resources.filesystem.sync_directory(self.directory)

    def close(self) -> None:
        """Let go of the files. Nothing is written."""
        for segment in self.segments:
            segment.close()

    def check(self) -> None:
        """Prove the segments, and that nothing waits for a sync which is not here any more. Raises
        CorruptRecordError, OSError."""
        self.segments.check()
        assert all(segment in self.segments.sealed for segment in self._unsynced_sealed)
