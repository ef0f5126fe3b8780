"""Loads a partition's directory: brings the files of a former process to a state that can be served.

After a clean stop the files are unchanged, and only the end of the active segment is read. After any other
stop `LogRecovery` walks the segments that may not be durable. In both cases it walks all segments from the
first one without a sound seal on, because only the batches can replace a transaction index. The segments of a
broker's log have no seals, and get them (`segment_adoption`).

The loader tidies up the directory. It finishes or takes back a swap of segments. Once it is known that the
log can be served, it finishes drops that were under way (`.deleted`) and removes index files without a log; a
refused log is left as it was. Files with other names are left alone. A segment of a broker's log whose
offsets are too far apart for its indexes is split, and recovery walks its parts and all behind them.

The state follows from the segments. Leader epochs are read from their file, or found again in the seals and
the walked batches if the file is missing, damaged, or contradicts the seals; then they are cut to the log.
Producers come from the newest snapshot of this log and the batches behind it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from stratalog.base.errors import CorruptRecordError, DataDirectoryError
from stratalog.log.checkpoint import RECOVERY_POINT_FILE
from stratalog.log.exchange.segment_swap import settle_swaps
from stratalog.log.leader_epoch_cache import LeaderEpochCache
from stratalog.log.local_log import LocalLog
from stratalog.log.log_config import LogConfig
from stratalog.log.log_state import LogState
from stratalog.log.producers.producer_snapshot_files import ProducerSnapshotFiles
from stratalog.log.producers.producer_state_manager import ProducerStateManager
from stratalog.log.recovery.cut_remains import keep_remains
from stratalog.log.recovery.known_epochs import epoch_ranges, require_epochs, settle_epochs
from stratalog.log.recovery.log_recovery import (
    LoadProgress,
    LogCheckpoints,
    LogRecovery,
    RecoveredLog,
    RecoveryReport,
)
from stratalog.log.recovery.raised_epochs import EpochRaise
from stratalog.log.recovery.segment_adoption import SegmentAdoption
from stratalog.log.recovery.segment_split import split_segment
from stratalog.log.retention.late_removal import unlink_leftover
from stratalog.record.header import MAX_OFFSET
from stratalog.segment.file_names import (
    DELETED_SUFFIX,
    LOG_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    parse_segment_name,
    segment_path,
)
from stratalog.segment.indexes.transaction_index import TransactionIndex
from stratalog.segment.log_segment import LogSegment
from stratalog.segment.segment_extent import SegmentExtent
from stratalog.segment.segment_resources import SegmentResources
from stratalog.segment.segment_seal import SegmentSeal


class LoadSettings(NamedTuple):
    """How a process loads logs."""

    producer_id_expiration_ms: int
    """A producer that is idle for so long is forgotten."""
    written_by_broker: bool = False
    """A broker wrote the log, see `LogManagerSettings`."""


class LoadedLog(NamedTuple):
    """A loaded log: its segments and its state, all durable, and its start."""

    local_log: LocalLog
    state: LogState
    log_start_offset: int
    report: RecoveryReport


class LogLoader:
    """Loads one directory, once. Used by one thread, before others can reach the log."""

    def __init__(
        self,
        resources: SegmentResources,
        directory: str,
        config: LogConfig,
        checkpoints: LogCheckpoints,
        settings: LoadSettings,
        *,
        now_ms: int,
        on_progress: Callable[[LoadProgress], None] | None = None,
    ) -> None:
        """`on_progress` is called before each segment that has to be walked."""
        self._resources = resources
        self._filesystem = resources.filesystem
        self._directory = directory
        self._config = config
        self._checkpoints = checkpoints
        self._was_clean = checkpoints.was_clean
        self._producer_id_expiration_ms = settings.producer_id_expiration_ms
        self._written_by_broker = settings.written_by_broker
        self._now_ms = now_ms
        self._on_progress = on_progress
        # Files of dropped segments, and index files without a log whose names another segment may get.
        self._leftovers: list[str] = []
        self._nameless: list[str] = []
        # Of all files in the directory.
        self._names: list[str] = []
        # Base offsets of the segments that have a transaction index.
        self._with_aborted: set[int] = set()
        self._adoption: SegmentAdoption | None = None

    def load(self, *, is_new: bool, first_offset: int) -> LoadedLog:
        """Load the log. `is_new`: the directory was just made. `first_offset`: a log without a segment begins
        there.

        Raises DataDirectoryError if fsynced bytes are damaged, CorruptRecordError, OSError.
        """
        log_start_offset = self._checkpoints.log_start_offset
        trusted_end_offset, epochs_raised_from = MAX_OFFSET, None
        while True:
            segments = self._find_segments()
            if self._written_by_broker:
                epoch_raise = EpochRaise(self._resources, self._directory, was_clean=self._was_clean)
                raised_from = epoch_raise.run(segments)
                epochs_raised_from = epochs_raised_from if raised_from is None else raised_from
            state = self._new_state()
            state.producers.snapshot_files.hold()
            if not segments:
                self._settle(state)
                if not is_new:
                    # A killed process may have just dropped segments: they must not come back.
                    self._filesystem.sync_directory(self._directory)
                local_log, report = self._begin(state, first_offset), RecoveryReport(was_clean=True)
                break
            state.producers.snapshot_files.remove_stray({segment.base_offset for segment in segments})
            loaded = self._load(state, segments, trusted_end_offset)
            if not isinstance(loaded, LogSegment):
                local_log, report = loaded
                break
            self._settle(state)
            split_segment(self._resources, self._directory, loaded)
            trusted_end_offset = loaded.base_offset
        if not self._config.remote_storage_enable:
            log_start_offset = max(log_start_offset, local_log.segments.start_offset)
        end_offset = local_log.segments.end_offset
        state.epochs.truncate_from_end(end_offset)
        if state.epochs.entries:
            # An entry above the end must not meet a batch of another epoch there.
            state.epochs.flush()
        state.epochs.truncate_from_start(min(log_start_offset, end_offset))
        report = report._replace(epochs_raised_from=epochs_raised_from)
        if self._adoption is not None:
            report = report._replace(max_producer_id=self._adoption.max_producer_id)
        return LoadedLog(local_log, state, log_start_offset, report)

    def _new_state(self) -> LogState:
        """A state with the leader epochs of the file, none if it is damaged, and without producers."""
        try:
            epochs = LeaderEpochCache.load(self._filesystem, self._directory)
        except CorruptRecordError:
            epochs = LeaderEpochCache(self._filesystem, self._directory)
        producers = ProducerStateManager(
            ProducerSnapshotFiles(self._filesystem, self._directory, self._names),
            producer_id_expiration_ms=self._producer_id_expiration_ms,
        )
        return LogState(producers, epochs)

    def _begin(self, state: LogState, first_offset: int) -> LocalLog:
        state.restart_at(first_offset)
        segment = LogSegment.create(
            self._resources,
            self._directory,
            first_offset,
            created_ms=self._now_ms,
            index_interval_bytes=self._config.index_interval_bytes,
            reserved_bytes=self._config.reserved_bytes,
        )
        # An empty log has nothing to lose: its names become durable together with its first records.
        unsynced = (self._directory, posixpath.dirname(self._directory))
        return LocalLog(
            self._resources,
            self._directory,
            self._config,
            [segment],
            unsynced=unsynced,
            may_be_reserved=self._config.preallocate,
        )

    def _load(
        self, state: LogState, segments: list[LogSegment], trusted_end_offset: int
    ) -> RecoveredLog | LogSegment:
        """Load the log, or return a segment that has to be split first."""
        trusted_count = self._trusted_count(segments, state.epochs)
        trusted_count = min(trusted_count, sum(s.base_offset < trusted_end_offset for s in segments))
        known_entries = state.epochs.entries
        is_known = settle_epochs(
            state.epochs, segments[:trusted_count], self._checkpoints.log_start_offset
        ) and bool(known_entries)
        if self._was_clean and trusted_count == len(segments) and self._activate(segments):
            self._require_closed_end(segments[-1].end_offset)
            local_log = LocalLog(
                self._resources,
                self._directory,
                self._config,
                segments,
                unsynced=(),
                may_be_reserved=False,
            )
            state.reload_producers(segments, local_log.segments.end_offset, self._now_ms)
            self._settle(state)
            return RecoveredLog(local_log, RecoveryReport(was_clean=True))
        recovery = LogRecovery(
            self._resources,
            self._directory,
            self._config,
            state,
            self._checkpoints,
            written_by_broker=self._written_by_broker,
            on_progress=self._on_progress,
        )
        found = recovery.walk(segments, trusted_count, self._now_ms)
        if isinstance(found, LogSegment):
            return found
        if self._was_clean:
            self._require_closed_end(found.walked[-1].end_offset)
        if is_known and not self._written_by_broker:
            ranges = epoch_ranges((item.indexes.headers.packed(), item.end_offset) for item in found.walked)
            known = LeaderEpochCache(self._filesystem, self._directory, known_entries)
            require_epochs(known, ranges, self._directory)
        remains = keep_remains(self._filesystem, self._resources.files, self._directory, found)
        self._settle(state)
        recovered = recovery.keep(found)
        return recovered._replace(report=recovered.report._replace(remains=tuple(remains)))

    def _settle(self, state: LogState) -> None:
        """Tidy up the directory; called once it is known that the log can be served. Raises OSError."""
        for path in self._leftovers:
            unlink_leftover(self._filesystem, path)
        for path in self._nameless:
            self._filesystem.unlink(path)
        self._leftovers.clear()
        self._nameless.clear()
        if self._adoption is not None:
            self._adoption.write()
        state.producers.snapshot_files.remove_unfinished()
        state.producers.snapshot_files.release()

    def _require_closed_end(self, end_offset: int) -> None:
        """Raise DataDirectoryError if a closed log ends above its recovery point. A missing checkpoint is
        0."""
        recovery_point = self._checkpoints.recovery_point
        if 0 < recovery_point < end_offset:
            raise DataDirectoryError(
                "a closed log ends above its recovery point, so its last batch or the checkpoint is damaged;"
                " restore them from a copy, or set the partition's offset in the checkpoint to 0",
                path=self._directory,
                checkpoint=RECOVERY_POINT_FILE,
                end_offset=end_offset,
                recovery_point=recovery_point,
            )

    def _trusted_count(self, segments: list[LogSegment], epochs: LeaderEpochCache) -> int:
        """The number of segments from the first on that match their seals, and whose offsets fit into
        indexes. A broker's segments get a seal."""
        adoption = SegmentAdoption(self._resources, epochs, may_have_newer=not self._was_clean)
        if self._written_by_broker:
            self._adoption = adoption
        for count, segment in enumerate(segments):
            if not segment.fits(segment.end_offset - 1) and self._overflows(segment):
                return count
            if self._written_by_broker:
                is_durable = (
                    segment is not segments[-1] and segment.end_offset <= self._checkpoints.recovery_point
                )
                adoption.adopt(segment, is_settled=self._was_clean or is_durable)
            elif not self._is_sealed(segment):
                return count
        return len(segments)

    def _is_sealed(self, segment: LogSegment) -> bool:
        """Whether the seal belongs to these data and to the transaction index, which the segment alone cannot
        replace."""
        seal = segment.written_seal
        if seal is None or seal.log_size_bytes != segment.size_bytes:
            return False
        if segment.base_offset in self._with_aborted or seal.has_aborted:
            path = segment_path(self._directory, segment.base_offset, TRANSACTION_INDEX_SUFFIX)
            try:
                index = self._filesystem.read_file(path)
            except FileNotFoundError:
                return False
            if TransactionIndex.seal_of(index) != seal.transaction_index:
                return False
        # The last segment has no end offset yet.
        return segment.end_offset == segment.base_offset or seal.end_offset <= segment.end_offset

    def _overflows(self, segment: LogSegment) -> bool:
        """Whether a batch is too far from the segment's base, not only the next segment."""
        try:
            return any(not segment.fits(header.last_offset) for _, header in segment.batches())
        except CorruptRecordError:
            return False

    def _find_segments(self) -> list[LogSegment]:
        """All segments in order, none of them active yet. Notes the leftovers in the directory."""
        self._names = names = settle_swaps(self._filesystem, self._directory)
        self._leftovers += [
            f"{self._directory}/{name}"
            for name in names
            if name.endswith(DELETED_SUFFIX) and parse_segment_name(name.removesuffix(DELETED_SUFFIX))
        ]
        parsed = [found for name in names if (found := parse_segment_name(name)) is not None]
        base_offsets = {base_offset for base_offset, suffix in parsed if suffix == LOG_SUFFIX}
        for base_offset, suffix in parsed:
            if base_offset not in base_offsets:
                path = segment_path(self._directory, base_offset, suffix)
                # A new segment may get the same name, unless that belonged to a dropped segment.
                is_dropped = base_offset < min(base_offsets, default=0)
                (self._leftovers if is_dropped else self._nameless).append(path)
        self._with_aborted = {base for base, suffix in parsed if suffix == TRANSACTION_INDEX_SUFFIX}
        segments = [self._segment(base_offset) for base_offset in sorted(base_offsets)]
        for segment, follower in pairwise(segments):
            segment.end_offset = follower.base_offset
        return segments

    def _segment(self, base_offset: int) -> LogSegment:
        size_bytes = self._filesystem.file_size(segment_path(self._directory, base_offset, LOG_SUFFIX))
        # A broker changes segments and leaves a seal of ours as it is.
        seal = (
            None
            if self._written_by_broker
            else SegmentSeal.read(self._filesystem, self._directory, base_offset)
        )
        return LogSegment(
            self._resources,
            self._directory,
            SegmentExtent(base_offset, base_offset, size_bytes),
            created_ms=self._now_ms,
            index_interval_bytes=self._config.index_interval_bytes,
            seal=seal,
        )

    def _activate(self, segments: list[LogSegment]) -> bool:
        """Make the last segment of a closed log active again. False, with none active, if its files do not
        agree with each other."""
        try:
            segments[-1].resume()
        except (FileNotFoundError, CorruptRecordError):
            return False
        return True
