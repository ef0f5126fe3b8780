"""Loading a partition's directory: what a former process left, brought to a state that may be served.

After a clean stop the files are what they were; only the end of the active segment is looked at. After any
other stop they hold whatever the operating system had written by then. Below the recovery point everything
was fsynced, so it is complete; from the segment that holds the recovery point on nothing is certain, and this
is done:

1. Walk every batch, in order, with its checksum. The first one that is torn, nonsense, out of order or
   altered ends the log; so does a segment that does not begin where the one before it ends, because what lay
   between is lost. The file is cut there, and later segments are removed: their offsets would leave a hole.
2. Make the indexes of these segments again; what is in their files is not looked at.
3. Sync everything that is kept, with its names, and only then serve it: what has been read once must not
   vanish at the next crash.

If the end so found lies below the recovery point, bytes that were fsynced have been damaged since. That is
not what a crash does, so nothing is cut and a human decides. Drops that were under way (`.deleted`) are
finished; index files without a log are removed; anything that has another kind of name is left alone.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.log.local_log import LocalLog
from stratalog.log.log_config import LogConfig
from stratalog.segment.batch_walk import walk, walk_valid
from stratalog.segment.file_names import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    parse_segment_name,
    segment_path,
)
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_indexes import SegmentIndexes
from stratalog.segment.segment_resources import SegmentResources


class RecoveryReport(NamedTuple):
    """What loading found and did, for the log of the server and for tests."""

    was_clean: bool
    recovered_bytes: int = 0
    truncated_bytes: int = 0
    removed_segment_count: int = 0


class LoadProgress(NamedTuple):
    """How much of a log has not been walked yet."""

    directory: str
    remaining_segment_count: int
    remaining_bytes: int


class LoadedLog(NamedTuple):
    """The segments, everything below `recovery_point` being durable."""

    local_log: LocalLog
    recovery_point: int
    report: RecoveryReport


class _WalkedSegment(NamedTuple):
    """A segment as far as it is valid."""

    segment: LogSegment
    valid_bytes: int
    lost_bytes: int
    end_offset: int
    indexes: SegmentIndexes


class LogLoader:
    """Loads one directory, once. Used by one thread, before anybody else knows the log."""

    def __init__(
        self,
        resources: SegmentResources,
        directory: str,
        config: LogConfig,
        *,
        now_ms: int,
        recovery_point: int,
        on_progress: Callable[[LoadProgress], None] | None = None,
    ) -> None:
        """`recovery_point`: everything below is known to have been fsynced. `on_progress` is told before each
        segment that has to be walked."""
        self._resources = resources
        self._filesystem = resources.filesystem
        self._directory = directory
        self._config = config
        self._now_ms = now_ms
        self._recovery_point = recovery_point
        self._on_progress = on_progress

    def load(self, *, is_new: bool, was_clean: bool, first_offset: int) -> LoadedLog:
        """`is_new`: the directory was just made. `was_clean`: the former process closed the log.
        `first_offset`: where a log begins that has no segment.

        Raises DataDirectoryError where fsynced bytes are damaged, OSError.
        """
        segments = self._find_segments()
        if not segments:
            if not is_new:
                # A process that was killed may have just dropped segments: they must not come back.
                self._filesystem.sync_directory(self._directory)
            return self._begin(first_offset)
        if was_clean and self._activate(segments[-1]):
            local_log = LocalLog(self._resources, self._directory, segments, unsynced=())
            return LoadedLog(local_log, local_log.segments.end_offset, RecoveryReport(was_clean=True))
        return self._recover(segments)

    def _begin(self, first_offset: int) -> LoadedLog:
        segment = LogSegment.create(
            self._resources,
            self._directory,
            first_offset,
            created_ms=self._now_ms,
            index_interval_bytes=self._config.index_interval_bytes,
        )
        # An empty log has nothing to lose: its names become durable together with its first records.
        unsynced = (self._directory, posixpath.dirname(self._directory))
        local_log = LocalLog(self._resources, self._directory, [segment], unsynced=unsynced)
        return LoadedLog(local_log, first_offset, RecoveryReport(was_clean=True))

    def _find_segments(self) -> list[LogSegment]:
        """All segments in order, none of them active yet, after the directory was tidied up."""
        names = self._filesystem.list_directory(self._directory)
        for name in names:
            if name.endswith(DELETED_SUFFIX) and parse_segment_name(name.removesuffix(DELETED_SUFFIX)):
                self._filesystem.unlink(f"{self._directory}/{name}")
        parsed = [found for name in names if (found := parse_segment_name(name)) is not None]
        base_offsets = {base_offset for base_offset, suffix in parsed if suffix == LOG_SUFFIX}
        for base_offset, suffix in parsed:
            if base_offset not in base_offsets:
                self._filesystem.unlink(segment_path(self._directory, base_offset, suffix))
        segments = [self._segment(base_offset) for base_offset in sorted(base_offsets)]
        for segment, follower in pairwise(segments):
            segment.end_offset = follower.base_offset
        return segments

    def _segment(self, base_offset: int) -> LogSegment:
        return LogSegment(
            self._resources,
            self._directory,
            base_offset,
            end_offset=base_offset,
            size_bytes=self._filesystem.file_size(segment_path(self._directory, base_offset, LOG_SUFFIX)),
            created_ms=self._now_ms,
            index_interval_bytes=self._config.index_interval_bytes,
            indexes=None,
        )

    def _activate(self, segment: LogSegment) -> bool:
        """Make the last segment of a closed log active again; False where its files do not agree with each
        other."""
        end_offset = segment.base_offset
        try:
            indexes = SegmentIndexes.load(self._filesystem, self._directory, segment.base_offset)
            last = indexes.offset_index.last
            with self._resources.files.use(segment.path) as file:
                for located in walk(file, last.position if last else 0, segment.size_bytes):
                    header = located.header
                    if (
                        last is not None
                        and located.position == last.position
                        and header.last_offset != last.offset
                    ):
                        return False
                    end_offset = header.next_offset
                    indexes.resume_with(header.size_in_bytes, header.last_offset, header.max_timestamp)
            indexes.check(end_offset=end_offset, log_size_bytes=segment.size_bytes)
        except (FileNotFoundError, CorruptRecordError):
            return False
        segment.activate(indexes, end_offset)
        return True

    def _recover(self, segments: Sequence[LogSegment]) -> LoadedLog:
        """Keep what is durable and what is valid behind it, drop the rest, and sync what was kept."""
        durable_count = sum(segment.end_offset <= self._recovery_point for segment in segments[:-1])
        walked = self._walk_valid(segments[durable_count:])
        last = walked[-1]
        if last.end_offset < self._recovery_point:
            raise DataDirectoryError(
                "log bytes that had been fsynced are damaged or missing; move the partition's directory away "
                "to go on without it, or take its line out of the recovery point checkpoint to accept it",
                path=self._directory,
                end_offset=last.end_offset,
                recovery_point=self._recovery_point,
            )
        dropped = segments[durable_count + len(walked) :]
        self._drop(dropped)
        self._make_durable(walked)
        kept = [*segments[:durable_count], *(item.segment for item in walked)]
        report = RecoveryReport(
            was_clean=False,
            recovered_bytes=sum(item.valid_bytes for item in walked),
            truncated_bytes=sum(item.size_bytes for item in dropped) + last.lost_bytes,
            removed_segment_count=len(dropped),
        )
        return LoadedLog(
            LocalLog(self._resources, self._directory, kept, unsynced=()), last.end_offset, report
        )

    def _walk_valid(self, segments: Sequence[LogSegment]) -> list[_WalkedSegment]:
        """The segments up to the first that is not whole, or that another one does not follow without a
        hole."""
        walked: list[_WalkedSegment] = []
        for ordinal, segment in enumerate(segments):
            if walked and walked[-1].end_offset != segment.base_offset:
                break
            if self._on_progress is not None:
                remaining_bytes = sum(later.size_bytes for later in segments[ordinal:])
                self._on_progress(LoadProgress(self._directory, len(segments) - ordinal, remaining_bytes))
            walked.append(self._walk_segment(segment))
            if walked[-1].lost_bytes:
                break
        return walked

    def _walk_segment(self, segment: LogSegment) -> _WalkedSegment:
        indexes = SegmentIndexes.empty(segment.base_offset)
        valid_bytes, end_offset = 0, segment.base_offset
        with self._resources.files.use(segment.path) as file:
            for located in walk_valid(file, segment.size_bytes, segment.base_offset):
                header = located.header
                if not segment.fits(header.last_offset):
                    break
                indexes.add(
                    position=located.position,
                    size_bytes=header.size_in_bytes,
                    last_offset=header.last_offset,
                    max_timestamp_ms=header.max_timestamp,
                    interval_bytes=self._config.index_interval_bytes,
                )
                valid_bytes, end_offset = located.position + header.size_in_bytes, header.next_offset
        return _WalkedSegment(segment, valid_bytes, segment.size_bytes - valid_bytes, end_offset, indexes)

    def _drop(self, segments: Sequence[LogSegment]) -> None:
        # Newest first: a crash in between leaves a beginning of what is there now.
        for segment in reversed(segments):
            segment.mark_deleted()
            segment.unlink_deleted()

    def _make_durable(self, walked: Sequence[_WalkedSegment]) -> None:
        """Cut, seal and sync the segments that were walked, the last of which becomes the active one."""
        for item in walked:
            item.segment.cut(item.valid_bytes)
            item.segment.activate(item.indexes, item.end_offset)
            if item is not walked[-1]:
                item.segment.save_indexes()
                item.segment.seal()
            item.segment.sync(with_indexes=not item.segment.is_active)
        self._filesystem.sync_directory(self._directory)
        self._filesystem.sync_directory(posixpath.dirname(self._directory))
