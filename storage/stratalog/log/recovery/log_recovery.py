"""Recovers a log that its process did not close.

Everything below the recovery point was fsynced, so it is complete. From the segment with the recovery point
on, recovery does this:

1. Walk every batch, in order, with its checksum. The first one that is torn, malformed, out of order or
   altered ends the log; so does a gap between two segments, if batches between them may be lost. The file is
   cut there, and later segments are removed, because their offsets would leave a hole.
2. Make the indexes of these segments again, without a look at the old files. Leader epochs and producers
   follow the walk, from their state at its beginning.
3. Sync all kept files, with their names, and only then serve them: a record that was read once must not
vanish
   at the next crash.

If the log so found ends below the recovery point, fsynced bytes have been damaged. So they have if sound
batches do not follow each other (`batch_order`), contradict the seal of their segment, or contradict the file
of leader epochs (`known_epochs`). No crash does that, so the log is refused. Recovery changes nothing in the
directory before it knows the end of the log.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from typing import NamedTuple

from stratalog.base.errors import DataDirectoryError
from stratalog.base.filesystem import AppendFile
from stratalog.log.local_log import LocalLog
from stratalog.log.log_config import LogConfig
from stratalog.log.log_state import LogState
from stratalog.log.producers.producer_batch import read_batch
from stratalog.log.recovery.batch_order import (
    require_end_below,
    require_fit,
    require_no_follower,
    require_no_hole,
)
from stratalog.record.header import NO_PRODUCER_ID
from stratalog.segment.batch_walk import LocatedBatch, valid_rows
from stratalog.segment.indexes.segment_indexes import SegmentIndexes
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.old_messages import require_no_old_message
from stratalog.segment.segment_resources import SegmentResources
from stratalog.segment.segment_seal import require_sealed_headers


class LogCheckpoints(NamedTuple):
    """The facts about a log that the former process wrote down outside of its directory."""

    recovery_point: int = 0
    """Everything below was fsynced."""
    log_start_offset: int = 0
    """Everything below was deleted."""
    cleaned_offset: int = 0
    """Everything below went through a clean, so holes below are no loss."""
    was_clean: bool = False
    """The former process closed the log."""


class RecoveryReport(NamedTuple):
    """The result of loading a log, for the log of the server and for tests."""

    was_clean: bool
    recovered_bytes: int = 0
    truncated_bytes: int = 0
    remains: tuple[str, ...] = ()
    """Files with the bytes that were cut off, see `cut_remains`."""
    lost_end_offset: int | None = None
    """The end that was found below the log's start. The log begins anew at its start, empty."""
    epochs_raised_from: int | None = None
    """The offset at which leader epochs went back in a broker's log, see `raised_epochs`."""
    max_producer_id: int = NO_PRODUCER_ID
    """The largest producer id of the batches of a broker's log; -1 without one."""


class LoadProgress(NamedTuple):
    """The part of a log that recovery has not walked yet."""

    directory: str
    remaining_segment_count: int
    remaining_bytes: int


class RecoveredLog(NamedTuple):
    """The segments, all of them durable, the last one active."""

    local_log: LocalLog
    report: RecoveryReport


class WalkedSegment(NamedTuple):
    """A segment that recovery has walked, up to the end of its valid batches."""

    segment: LogSegment
    valid_bytes: int
    lost_bytes: int
    end_offset: int
    indexes: SegmentIndexes
    overflows: bool = False
    """The walk ended at a valid batch that is too far from the segment's base, in a broker's log."""


class WalkedLog(NamedTuple):
    """The segments of a log, in order, after the walk."""

    durable: Sequence[LogSegment]
    walked: Sequence[WalkedSegment]
    """At least one."""
    invalid: Sequence[LogSegment]


class LogRecovery:
    """Recovers one log: `walk`, then `keep`, once. Used by one thread, before others can reach the log."""

    def __init__(
        self,
        resources: SegmentResources,
        directory: str,
        config: LogConfig,
        state: LogState,
        checkpoints: LogCheckpoints,
        *,
        written_by_broker: bool,
        on_progress: Callable[[LoadProgress], None] | None,
    ) -> None:
        """`state` has the leader epochs of the file, and holds snapshots back. `written_by_broker`: see
        LogManagerSettings. `on_progress`: see LogLoader."""
        self._resources = resources
        self._filesystem = resources.filesystem
        self._directory = directory
        self._config = config
        self._state = state
        self._recovery_point = checkpoints.recovery_point
        self._cleaned_offset = checkpoints.cleaned_offset
        self._old_holes_offset = max(checkpoints.recovery_point, checkpoints.cleaned_offset)
        self._written_by_broker = written_by_broker
        self._holes_are_old = checkpoints.was_clean or written_by_broker
        self._on_progress = on_progress

    def walk(self, segments: Sequence[LogSegment], trusted_count: int, now_ms: int) -> WalkedLog | LogSegment:
        """Find the durable segments and the valid batches behind them. Changes nothing in the directory.

        `trusted_count`: so many of the first segments need no walk if they are durable. May return a segment
        of a broker's log that has to be split first. Raises DataDirectoryError if fsynced bytes are damaged
        or sound batches contradict each other, UnsupportedOperationError if a broker's log goes on in an
        older format, CorruptRecordError if a segment contradicts its seal, OSError.
        """
        durable_count = sum(segment.end_offset <= self._recovery_point for segment in segments[:-1])
        durable_count = min(durable_count, trusted_count)
        suspects = segments[durable_count:]
        self._state.epochs.truncate_from_end(suspects[0].base_offset)
        self._state.reload_producers(segments[:durable_count], suspects[0].base_offset, now_ms)
        walked = self._walk_valid(suspects)
        last = walked[-1]
        if last.overflows:
            return last.segment
        if self._written_by_broker:
            with self._resources.files.use(last.segment.path) as file:
                require_no_old_message(file, last.valid_bytes, last.segment.size_bytes, last.end_offset)
        if last.lost_bytes:
            with self._resources.files.use(last.segment.path) as file:
                require_no_follower(last.segment, file, last.valid_bytes, last.end_offset)
        if last.end_offset < self._recovery_point:
            raise DataDirectoryError(
                "fsynced bytes of the log are damaged or missing; restore the segment from a copy, or move"
                " the partition's directory away and make an empty one in its place, or, to accept the"
                " loss, set the partition's offset in the recovery point checkpoint to 0",
                path=self._directory,
                end_offset=last.end_offset,
                recovery_point=self._recovery_point,
            )
        return WalkedLog(segments[:durable_count], walked, suspects[len(walked) :])

    def keep(self, found: WalkedLog) -> RecoveredLog:
        """Drop the invalid part, and sync the rest and its state. Raises CorruptRecordError, OSError."""
        self._drop(found.invalid)
        self._make_durable(found.walked)
        kept = [*found.durable, *(item.segment for item in found.walked)]
        lost_bytes = sum(item.size_bytes for item in found.invalid) + found.walked[-1].lost_bytes
        report = RecoveryReport(
            was_clean=False,
            recovered_bytes=sum(item.valid_bytes for item in found.walked),
            truncated_bytes=lost_bytes,
        )
        # The killed process has not given back its reserved space.
        local_log = LocalLog(
            self._resources, self._directory, self._config, kept, unsynced=(), may_be_reserved=True
        )
        return RecoveredLog(local_log, report)

    def _walk_valid(self, segments: Sequence[LogSegment]) -> list[WalkedSegment]:
        """The segments up to the first one that is not whole, or is followed by a hole."""
        walked: list[WalkedSegment] = []
        for ordinal, segment in enumerate(segments):
            if walked and self._has_lost(walked[-1], segment.base_offset):
                break
            if self._on_progress is not None:
                remaining_bytes = sum(later.size_bytes for later in segments[ordinal:])
                self._on_progress(LoadProgress(self._directory, len(segments) - ordinal, remaining_bytes))
            walked.append(self._walk_segment(segment))
            if ordinal + 1 < len(segments):
                require_end_below(
                    walked[-1].segment, walked[-1].end_offset, segments[ordinal + 1].base_offset
                )
            if walked[-1].lost_bytes:
                break
            require_sealed_headers(
                segment.written_seal, segment.size_bytes, walked[-1].indexes.headers.packed(), segment.path
            )
        return walked

    def _has_lost(self, before: WalkedSegment, base_offset: int) -> bool:
        """Whether batches between a segment and the next one, which begins there, were lost.

        Below the recovery point compaction has left the hole. So it has below the end of a clean, because a
        clean begins with a flush; the cleaner's checkpoint stands in for a lost recovery point. A closed log
        has lost nothing, and the recovery point of a broker's log may be missing. Nor can a hole that is
        wider than the indexes of a segment reach be a lost part of that segment.
        """
        return (
            not self._holes_are_old
            and before.end_offset != base_offset
            and base_offset > self._old_holes_offset
            and before.segment.fits(base_offset - 1)
        )

    def _walk_segment(self, segment: LogSegment) -> WalkedSegment:
        indexes = SegmentIndexes.empty(segment.base_offset)
        valid_bytes, end_offset, overflows = 0, segment.base_offset, False
        producers = self._state.producers
        # A hole may lie before the segment, also before an empty one.
        producers.update_map_end_offset(max(producers.map_end_offset, segment.base_offset))
        producers.take_snapshot(durable=False)
        with self._resources.files.use(segment.path) as file:
            for rows, noted in valid_rows(
                file, segment.size_bytes, segment.base_offset, self._state.latest_epoch
            ):
                if not self._written_by_broker:
                    require_fit(segment, rows[-1].last_offset)
                    require_no_hole(
                        segment,
                        rows,
                        end_offset,
                        recovery_point=self._recovery_point,
                        cleaned_offset=self._cleaned_offset,
                    )
                fitting = rows
                if not segment.fits(rows[-1].last_offset):
                    overflows, fitting = True, [row for row in rows if segment.fits(row.last_offset)]
                if not fitting:
                    break
                indexes.add_rows(fitting, self._config.index_interval_bytes)
                valid_bytes, end_offset = fitting[-1].end_position, fitting[-1].last_offset + 1
                self._follow(file, [located for located in noted if located.position < valid_bytes], indexes)
                # The last batches may need no following.
                producers.update_map_end_offset(end_offset)
                if overflows:
                    break
        lost_bytes = segment.size_bytes - valid_bytes
        return WalkedSegment(
            segment=segment,
            valid_bytes=valid_bytes,
            lost_bytes=lost_bytes,
            end_offset=end_offset,
            indexes=indexes,
            overflows=overflows,
        )

    def _follow(self, file: AppendFile, noted: Sequence[LocatedBatch], indexes: SegmentIndexes) -> None:
        """Let the state and the transaction index follow the batches that may change them."""
        for located in noted:
            completed = self._state.follow(read_batch(file, located))
            if completed is not None and completed.is_aborted:
                indexes.add_aborted(completed.index_entry)

    def _drop(self, segments: Sequence[LogSegment]) -> None:
        # Newest first: a crash in between leaves a beginning of these segments.
        for segment in reversed(segments):
            segment.mark_deleted()
            segment.unlink_deleted()

    def _make_durable(self, walked: Sequence[WalkedSegment]) -> None:
        """Cut, seal and sync the walked segments; the last one becomes the active one."""
        for item in walked:
            item.segment.truncate_to(item.valid_bytes)
            item.segment.discard_old_seal()
            item.segment.activate(item.indexes, item.end_offset)
            if item is not walked[-1]:
                item.segment.save_indexes()
                item.segment.seal()
            item.segment.sync(with_indexes=not item.segment.is_active)
        snapshot_files = self._state.producers.snapshot_files
        snapshot_files.sync(snapshot_files.take_unsynced())
        self._state.epochs.flush()
        self._filesystem.sync_directory(self._directory)
        self._filesystem.sync_directory(posixpath.dirname(self._directory))
