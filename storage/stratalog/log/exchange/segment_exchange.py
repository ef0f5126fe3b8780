"""Replaces segments of a log by cleaned ones, beside appends and reads.

Before the first rename the new files have been read back, the log is durable up to its end, and the
checkpoint says so: so a hole in its offsets is never taken for lost data. A failure until then leaves the log
as it was. So does a failure to rename the first old file, if that is still found under its name. A later
failure takes the log offline, and the next process finds the old segments or the new ones (see
`segment_swap`).

Readers have the old segments or the new ones. A reader that opens an old file too late gets
FileNotFoundError, even if a new file has its name, and looks at the log again. A reader that has it open
finishes. Appends wait for the renames, but for no sync. A deletion of records waits for all of it: from the
first rename on a start of the process goes on with the exchange, which may be right for this log start only.
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
from stratalog.record.header import MAX_OFFSET
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_extent import SegmentExtent
from stratalog.segment.segment_resources import SegmentResources


class SegmentExchange:
    """Replaces sealed segments of a log by cleaned ones. Thread-safe: it takes UnifiedLog's locks, first the
    flush lock, as every change of sealed segments."""

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
        """The resources that segments of all logs share."""
        return self._local.resources

    def replace(
        self,
        cleaned: Sequence[CleanedSegment],
        replaced: Sequence[LogSegment],
        on_read: OnRead,
        *,
        max_start_offset: int = MAX_OFFSET,
    ) -> bool:
        """Put cleaned segments, whose files are named `.cleaned`, in the place of `replaced`. Durable when it
        returns; the old files are unlinked after `file.delete.delay.ms`.

        False if one of `replaced` is not in the log any more, or the log starts above `max_start_offset`: the
        highest start for which the cleaned segments are right. Raises CorruptRecordError if a new file
        differs from the written bytes, OSError, and what `on_read` raises. In all these cases nothing has
        changed, and the new files are gone. Raises DataDirectoryError.
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
                is_right = self._offsets.log_start_offset <= max_start_offset
                is_right = is_right and _are_neighbours_in(replaced, local.segments)
            if not is_right:
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
                # The start is the same as before: it moves only under the flush lock, too.
                assert self._offsets.log_start_offset <= max_start_offset
                self._exchange_names(new_bases, replaced)
                local.exchange(_live(local, cleaned, replaced), replaced)
            self._finish(new_bases, replaced)
        self._unlink_later(replaced)
        return True

    def _drop_new(self, new_bases: Sequence[int]) -> None:
        """Remove the `.cleaned` files. The next process removes those that stay."""
        with suppress(OSError):
            take_back_swap(self._local.resources.filesystem, self._local.directory, new_bases)

    def _announce(self, new_bases: Sequence[int]) -> None:
        """Announce the swap. Raises OSError with the log as it was, else DataDirectoryError."""
        filesystem, directory = self._local.resources.filesystem, self._local.directory
        try:
            announce_swap(filesystem, directory, new_bases)
        except OSError as failure:
            self._take_back(new_bases, failure)
            raise

    def _exchange_names(self, new_bases: Sequence[int], replaced: Sequence[LogSegment]) -> None:
        """Exchange the names of the files. Raises as `_announce` does."""
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
        """Whether the old file is certainly there under its name. A rename may be done and yet report a
        failure (on a network disk, say); then the new files are the only ones with these records."""
        try:
            # Opened, because a name alone may come from a cache.
            file = self._local.resources.filesystem.open_read(old.path)
            try:
                return file.size() >= old.size_bytes
            finally:
                file.close()
        except OSError:
            return False

    def _take_back(self, new_bases: Sequence[int], failure: OSError) -> None:
        """Remove the new files, none of which has replaced an old one, because of `failure`. Raises
        DataDirectoryError."""
        try:
            take_back_swap(self._local.resources.filesystem, self._local.directory, new_bases)
        except OSError:
            # The next process would go on with the swap, although the log has changed meanwhile.
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
    # So recovery knows which segments the new files replace: those in the range of their offsets.
    assert replaced[-1].base_offset <= cleaned[-1].last_offset < replaced[-1].end_offset
    for before, segment in pairwise(cleaned):
        assert before.last_offset < segment.base_offset
    assert all(segment.size_bytes > 0 for segment in cleaned), "only the active segment may be empty"


def _are_neighbours_in(replaced: Sequence[LogSegment], segments: LogSegments) -> bool:
    """Whether these are neighbours among the sealed segments of the log."""
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
