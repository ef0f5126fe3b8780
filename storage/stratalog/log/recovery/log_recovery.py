"""Recovery: what a process finds that follows one which did not close its log.

Below the recovery point everything was fsynced, so it is complete; from the segment that holds the recovery
point on nothing is certain, and this is done:

1. Walk every batch, in order, with its checksum. The first one that is torn, nonsense, out of order or
   altered ends the log; so does a segment that does not begin where the one before it ends, if what lay
   between may have been lost. The file is cut there, and later segments are removed: their offsets would
   leave a hole.
2. Make the indexes of these segments again; what is in their files is not looked at. Leader epochs and
   producers follow the walk, from what is known of them at its beginning.
3. Sync everything that is kept, with its names, and only then serve it: what has been read once must not
   vanish at the next crash.

If the end so found lies below the recovery point, bytes that were fsynced have been damaged since; so they
have where a sound batch is not in its place (`batch_place`). That is not what a crash does, so nothing is cut
and a human decides: until the end is known nothing in the directory is changed.
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
from stratalog.log.recovery.batch_place import require_end_below, require_place
from stratalog.segment.batch_walk import LocatedBatch, valid_rows
from stratalog.segment.indexes.segment_indexes import SegmentIndexes
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.old_messages import require_no_old_message
from stratalog.segment.segment_resources import SegmentResources


class RecoveryReport(NamedTuple):
    """What loading found and did, for the log of the server and for tests."""

    was_clean: bool
    recovered_bytes: int = 0
    truncated_bytes: int = 0
    remains: tuple[str, ...] = ()
    """Files in which what was cut off is kept: see `cut_remains`."""
    lost_end_offset: int | None = None
    """Where the log ended, below its start: it begins anew there, empty."""
    epochs_raised_from: int | None = None
    """Where leader epochs went back in a broker's log: see `raised_epochs`."""


class LoadProgress(NamedTuple):
    """How much of a log has not been walked yet."""

    directory: str
    remaining_segment_count: int
    remaining_bytes: int


class RecoveredLog(NamedTuple):
    """The segments, all of them durable, the last one active."""

    local_log: LocalLog
    report: RecoveryReport


class WalkedSegment(NamedTuple):
    """A segment as far as it is valid."""

    segment: LogSegment
    valid_bytes: int
    lost_bytes: int
    end_offset: int
    indexes: SegmentIndexes
    overflows: bool = False
    """The walk ended at a batch that is valid, and too far from the segment's base, in a broker's log."""


class WalkedLog(NamedTuple):
    """The segments of a log, in order, as recovery has found them."""

    durable: Sequence[LogSegment]
    walked: Sequence[WalkedSegment]
    """At least one."""
    invalid: Sequence[LogSegment]


class LogRecovery:
    """Recovers one log: `walk`, then `keep`, once. Used by one thread, before anybody else knows the log."""

    def __init__(
        self,
        resources: SegmentResources,
        directory: str,
        config: LogConfig,
        state: LogState,
        *,
        recovery_point: int,
        cleaned_offset: int = 0,
        written_by_broker: bool = False,
        was_clean: bool = False,
        on_progress: Callable[[LoadProgress], None] | None = None,
    ) -> None:
        """`state`: with the leader epochs that are in their file, and its snapshots held back.
        `cleaned_offset`: below it holes are no loss. `written_by_broker`: see LogManagerSettings.
        `was_clean`: the former process closed the log."""
        self._resources = resources
        self._filesystem = resources.filesystem
        self._directory = directory
        self._config = config
        self._state = state
        self._recovery_point = recovery_point
        self._cleaned_offset = cleaned_offset
        self._old_holes_offset = max(recovery_point, cleaned_offset)
        self._written_by_broker = written_by_broker
        self._holes_are_old = was_clean or written_by_broker
        self._on_progress = on_progress

    def walk(self, segments: Sequence[LogSegment], trusted_count: int, now_ms: int) -> WalkedLog | LogSegment:
        """Find what is durable and what is valid behind it. Nothing in the directory is changed.

        `trusted_count`: so many of the first segments need no look at them if they are durable. What is
        returned instead is a segment of a broker's log that has to be split before. Raises DataDirectoryError
        where fsynced bytes are damaged or a batch has lost its place, UnsupportedOperationError where a
        broker's log goes on in an older format, CorruptRecordError, OSError.
        """
        durable_count = sum(segment.end_offset <= self._recovery_point for segment in segments[:-1])
        durable_count = min(durable_count, trusted_count)
        suspects = segments[durable_count:]
        if self._written_by_broker or not self._state.epochs.entries:
            self._state.learn_epochs(segments[:durable_count])
        self._state.epochs.truncate_from_end(suspects[0].base_offset)
        self._state.reload_producers(segments[:durable_count], suspects[0].base_offset, now_ms)
        walked = self._walk_valid(suspects)
        last = walked[-1]
        if last.overflows:
            return last.segment
        if self._written_by_broker:
            with self._resources.files.use(last.segment.path) as file:
                require_no_old_message(file, last.valid_bytes, last.segment.size_bytes, last.end_offset)
        if last.end_offset < self._recovery_point:
            raise DataDirectoryError(
                "log bytes that had been fsynced are damaged or missing; to go on without the partition's "
                "directory move it away and make an empty one in its place, or, to accept it, set its offset "
                "in the recovery point checkpoint to 0",
                path=self._directory,
                end_offset=last.end_offset,
                recovery_point=self._recovery_point,
            )
        return WalkedLog(segments[:durable_count], walked, suspects[len(walked) :])

    def keep(self, found: WalkedLog) -> RecoveredLog:
        """Drop what is not valid, and sync the rest, with the state that was found beside it. Raises
        CorruptRecordError, OSError."""
        self._drop(found.invalid)
        self._make_durable(found.walked)
        kept = [*found.durable, *(item.segment for item in found.walked)]
        lost_bytes = sum(item.size_bytes for item in found.invalid) + found.walked[-1].lost_bytes
        report = RecoveryReport(
            was_clean=False,
            recovered_bytes=sum(item.valid_bytes for item in found.walked),
            truncated_bytes=lost_bytes,
        )
        # Nobody has given back what the process that was killed had reserved.
        local_log = LocalLog(
            self._resources, self._directory, self._config, kept, unsynced=(), may_be_reserved=True
        )
        return RecoveredLog(local_log, report)

    def _walk_valid(self, segments: Sequence[LogSegment]) -> list[WalkedSegment]:
        """The segments up to the first that is not whole, or that another one does not follow without a
        hole."""
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
        return walked

    def _has_lost(self, before: WalkedSegment, base_offset: int) -> bool:
        """What lay between a segment and the one that begins there is lost, and not a hole of old.

        Below the recovery point nothing was lost: there, compaction has left the hole. Nor was it below the
        end of a clean, which made everything durable that it had read: a checkpoint of the one stands for the
        other that is lost. So it is wherever a process closed the log, and anywhere in a broker's, whose
        recovery point may not have come with it.
        Nor can a segment have reached over a distance that its indexes do not take.
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
        # Before it there may be a hole, also where it is empty.
        producers.update_map_end_offset(max(producers.map_end_offset, segment.base_offset))
        producers.take_snapshot(durable=False)
        with self._resources.files.use(segment.path) as file:
            for rows, noted in valid_rows(
                file, segment.size_bytes, segment.base_offset, self._state.latest_epoch
            ):
                if not self._written_by_broker:
                    require_place(
                        file,
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
                # Batches that nobody has to follow lie behind the last that was.
                producers.update_map_end_offset(end_offset)
                if overflows:
                    break
        lost_bytes = segment.size_bytes - valid_bytes
        return WalkedSegment(segment, valid_bytes, lost_bytes, end_offset, indexes, overflows)

    def _follow(self, file: AppendFile, noted: Sequence[LocatedBatch], indexes: SegmentIndexes) -> None:
        """Let the state and the transaction index follow batches that say more than an index asks."""
        for located in noted:
            completed = self._state.follow(read_batch(file, located))
            if completed is not None and completed.is_aborted:
                indexes.add_aborted(completed.index_entry)

    def _drop(self, segments: Sequence[LogSegment]) -> None:
        # Newest first: a crash in between leaves a beginning of what is there now.
        for segment in reversed(segments):
            segment.mark_deleted()
            segment.unlink_deleted()

    def _make_durable(self, walked: Sequence[WalkedSegment]) -> None:
        """Cut, seal and sync the segments that were walked, the last of which becomes the active one."""
        for item in walked:
            item.segment.truncate_to(item.valid_bytes)
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
