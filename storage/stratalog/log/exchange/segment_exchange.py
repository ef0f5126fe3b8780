"""Cleaned segments in the place of those that they were made of, while the log is appended to and read.

Before anything is renamed the new files have been read back, the log is durable up to its end, and the
checkpoint says so: a hole in its offsets is never taken for lost data. What the disk refuses until then
leaves the log as it was, and so does the first old file, if it cannot be renamed and is found under its name.
From then on there is no way back but forward: a failure takes the log offline, and the next process finds the
old segments or the new ones (see `segment_swap`).

Readers have the old segments or the new ones. One that comes to an old file too late is told that it is
missing, even if a new one has its name, and looks at the log again; one that has it open finishes. Appends
wait for the renames, and for no sync.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import pairwise

from stratalog.base.errors import DataDirectoryError
from stratalog.log.append.log_flusher import LogFlusher
from stratalog.log.directory_health import DISK_FAILURES
from stratalog.log.exchange.cleaned_segment import CleanedSegment, OnRead
from stratalog.log.exchange.segment_swap import announce_swap, exchange_names, take_back_swap
from stratalog.log.local_log import LocalLog
from stratalog.log.log_parts import LogParts
from stratalog.log.log_segments import LogSegments
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_extent import SegmentExtent
from stratalog.segment.segment_resources import SegmentResources


class SegmentExchange:
    """Thread-safe: it takes UnifiedLog's locks, the flusher's first, which every change of sealed segments
    takes."""

    def __init__(
        self,
        parts: LogParts,
        flusher: LogFlusher,
        *,
        checkpoint: Callable[[], None],
        unlink_later: Callable[[Sequence[LogSegment]], None],
    ) -> None:
        """`checkpoint` makes the recovery point durable; called under `UnifiedLog.lock`."""
        self._flush_lock = parts.flush_lock
        self._log_lock = parts.lock
        self._local = parts.local_log
        self._state = parts.state
        self._offsets = parts.offsets
        self._availability = parts.availability
        self._flusher = flusher
        self._checkpoint = checkpoint
        self._unlink_later = unlink_later

    @property
    def resources(self) -> SegmentResources:
        """What the log's segments share with those of other logs."""
        return self._local.resources

    def replace(
        self, cleaned: Sequence[CleanedSegment], replaced: Sequence[LogSegment], on_read: OnRead
    ) -> bool:
        """Have the cleaned segments, whose files are there as `.cleaned`, where those were that they were
        made of. Durable when it returns; the old files are unlinked after `file.delete.delay.ms`.

        False where one of these is not in the log any more. Raises CorruptRecordError where a new file is not
        what was written, OSError, and what `on_read` does. In all these cases nothing has changed, and
        nothing is left of the new files. Raises DataDirectoryError.
        """
        _require_same_range(cleaned, replaced)
        local = self._local
        filesystem, directory = local.resources.filesystem, local.directory
        new_bases = [new.base_offset for new in cleaned]
        try:
            for new in cleaned:
                new.prove(filesystem, directory, on_read)
        except BaseException:
            self._drop_new(new_bases)
            raise
        with self._flush_lock:
            with self._log_lock:
                self._availability.require_online()
                is_there = _is_run_of(replaced, local.segments)
            if not is_there:
                self._drop_new(new_bases)
                return False
            try:
                self._flusher.flush()
            except DataDirectoryError:
                self._drop_new(new_bases)
                raise
            with self._log_lock, self._availability.unchanged_on_refusal(lambda: self._drop_new(new_bases)):
                assert self._offsets.recovery_point >= replaced[-1].end_offset
                self._checkpoint()
            local.is_changed = True
            self._announce(new_bases)
            for old in replaced:
                old.supersede()
            with self._log_lock:
                self._exchange_names(new_bases, replaced)
                local.exchange(_live(local, cleaned, replaced), replaced)
            self._finish(new_bases, replaced)
        self._unlink_later(replaced)
        return True

    def _drop_new(self, new_bases: Sequence[int]) -> None:
        """Remove files that are still `.cleaned`; what cannot be removed the next process removes."""
        with suppress(OSError):
            take_back_swap(self._local.resources.filesystem, self._local.directory, new_bases)

    def _announce(self, new_bases: Sequence[int]) -> None:
        """Raises OSError with the log as it was, and DataDirectoryError where that could not be achieved."""
        filesystem, directory = self._local.resources.filesystem, self._local.directory
        try:
            announce_swap(filesystem, directory, new_bases)
        except OSError as failure:
            self._take_back(new_bases, failure)
            raise

    def _exchange_names(self, new_bases: Sequence[int], replaced: Sequence[LogSegment]) -> None:
        """As `_announce`."""
        filesystem, directory = self._local.resources.filesystem, self._local.directory
        try:
            exchange_names(filesystem, directory, new_bases, replaced)
        except OSError as failure:
            is_disk_failure = failure.errno in DISK_FAILURES
            if replaced[0].is_dropped or is_disk_failure or not self._is_found(replaced[0]):
                raise self._availability.go_offline(failure) from failure
            self._take_back(new_bases, failure)
            raise

    def _is_found(self, old: LogSegment) -> bool:
        """The data is certainly there under its name. A rename that was done may be told to have failed (by a
        disk that another machine serves, say), and then the new files are the only ones left of these
        records."""
        try:
            # Opened: a name alone may be known from before.
            file = self._local.resources.filesystem.open_read(old.path)
            try:
                return file.size() >= old.size_bytes
            finally:
                file.close()
        except OSError:
            return False

    def _take_back(self, new_bases: Sequence[int], failure: OSError) -> None:
        """Remove the new files, none of which has replaced anything. Raises DataDirectoryError."""
        try:
            take_back_swap(self._local.resources.filesystem, self._local.directory, new_bases)
        except OSError:
            # The next process would go on with it, whatever became of the log meanwhile.
            with self._log_lock:
                raise self._availability.go_offline(failure) from failure

    def _finish(self, new_bases: Sequence[int], replaced: Sequence[LogSegment]) -> None:
        """Make the new names durable. Appends go on."""
        try:
            self._local.resources.filesystem.sync_directory(self._local.directory)
            with self._log_lock:
                snapshot_files = self._state.producers.snapshot_files
                for old in replaced:
                    if old.base_offset not in new_bases:
                        # It belongs to no segment any more.
                        snapshot_files.remove_at(old.base_offset)
        except OSError as failure:
            with self._log_lock:
                raise self._availability.go_offline(failure) from failure


def _require_same_range(cleaned: Sequence[CleanedSegment], replaced: Sequence[LogSegment]) -> None:
    assert cleaned
    assert replaced
    assert cleaned[0].base_offset == replaced[0].base_offset, "the log must not begin elsewhere"
    # So whoever finds the new files alone knows which segments they replace: those in their offsets.
    assert replaced[-1].base_offset <= cleaned[-1].last_offset < replaced[-1].end_offset
    for before, segment in pairwise(cleaned):
        assert before.last_offset < segment.base_offset
    assert all(segment.size_bytes > 0 for segment in cleaned), "only the active segment may be empty"


def _is_run_of(replaced: Sequence[LogSegment], segments: LogSegments) -> bool:
    """They are sealed segments of the log, one after the other, none of them dropped meanwhile."""
    sealed = segments.sealed
    first = next((at for at, segment in enumerate(sealed) if segment is replaced[0]), None)
    if first is None:
        return False
    found = sealed[first : first + len(replaced)]
    return len(found) == len(replaced) and all(map(_is_same, found, replaced))


def _is_same(one: LogSegment, other: LogSegment) -> bool:
    return one is other


def _live(
    local: LocalLog, cleaned: Sequence[CleanedSegment], replaced: Sequence[LogSegment]
) -> list[LogSegment]:
    """The new segments: they tile the offsets of the old ones."""
    ends = [segment.base_offset for segment in cleaned[1:]] + [replaced[-1].end_offset]
    return [
        LogSegment(
            local.resources,
            local.directory,
            SegmentExtent(segment.base_offset, end_offset, segment.size_bytes),
            created_ms=replaced[0].created_ms,
            index_interval_bytes=replaced[0].index_interval_bytes,
            seal=segment.seal,
        )
        for segment, end_offset in zip(cleaned, ends, strict=True)
    ]
