"""The moves of partitions between log directories: one at a time for each partition.

A move is begun here and run by a thread of the caller, as long as it takes: `begin(...).run()`. Whatever is
about to close, delete or truncate a log ends its move first.
"""

from __future__ import annotations

import threading
from contextlib import suppress

from stratalog.base.clock import Clock
from stratalog.base.errors import DataDirectoryError, InvalidRequestError
from stratalog.base.types import TopicPartition
from stratalog.cleaner.cleaner_manager import CleanerManager
from stratalog.cleaner.throttler import Throttler
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.directory_set import DirectorySet
from stratalog.manager.directories.log_directory import LogDirectory
from stratalog.manager.directories.manifest import PartitionState
from stratalog.manager.moves.cut_off_moves import WantedMove, settle_moves
from stratalog.manager.moves.log_move import LogMove, MoveProgress, MoveState
from stratalog.manager.moves.move_target import MovePlan
from stratalog.manager.partitions.put_away import PutAway


class MoveRegistry:
    """Thread-safe. Nobody who holds a lock of a log or of the log manager may call it, but for what only
    looks."""

    def __init__(
        self,
        clock: Clock,
        directories: DirectorySet,
        cleaner: CleanerManager,
        away: PutAway,
    ) -> None:
        """Settles the moves that the former process has not finished; before that no log may be opened.
        `cleaner`: kept away from logs that move. `away` removes copies that are not needed any more."""
        self.throttler = Throttler(clock)
        """What all moves together may copy; unlimited until somebody says otherwise."""
        self._clock = clock
        self._directories = directories
        self._cleaner = cleaner
        self._away = away
        self._lock = threading.Lock()
        self._moves: dict[TopicPartition, LogMove] = {}
        # Why a move that is wanted does not begin again.
        self._refusals: dict[TopicPartition, str] = {}
        self._wanted = settle_moves(directories, away)

    @property
    def wanted(self) -> tuple[WantedMove, ...]:
        """What the former process had begun and not finished, for the caller to begin again."""
        return self._wanted

    def is_wanted(self, partition: TopicPartition) -> bool:
        """The former process had begun to move the partition."""
        return any(wanted.partition == partition for wanted in self._wanted)

    def is_moving(self, partition: TopicPartition) -> bool:
        """A move of the partition is under way, or about to begin. No lock is taken."""
        move = self._moves.get(partition)
        return move is not None and not move.state.is_final

    def progress(self) -> tuple[MoveProgress, ...]:
        """Of the last move of each partition that had one in this process, and of those that are wanted and
        have not begun again, in order."""
        found = {wanted.partition: self._waiting(wanted) for wanted in self._wanted}
        found |= {partition: move.progress for partition, move in dict(self._moves).items()}
        return tuple(found[partition] for partition in sorted(found))

    def _waiting(self, wanted: WantedMove) -> MoveProgress:
        """Of a move that takes the space of what the former process has copied."""
        filesystem, holder = self._directories.filesystem, self._directories.holder(wanted.partition)
        path, copied_bytes = f"{wanted.target_path}/{wanted.partition}", 0
        with suppress(OSError):
            copied_bytes = sum(
                filesystem.file_size(f"{path}/{name}") for name in filesystem.list_directory(path)
            )
        return MoveProgress(
            wanted.partition,
            "" if holder is None else holder.path,
            wanted.target_path,
            MoveState.WAITING,
            copied_bytes,
            0,
            self._refusals.get(wanted.partition, "it has not begun again yet"),
        )

    def note_refusal(self, partition: TopicPartition, reason: str) -> None:
        """Why the partition's move, which is wanted, does not begin again. It stays wanted."""
        self._refusals[partition] = reason

    def give_up(self, partition: TopicPartition) -> bool:
        """Nobody wants the partition's move any more that the former process had begun; False where there is
        none. What was copied is removed."""
        with self._lock:
            is_wanted = self.is_wanted(partition)
            self._discard(partition)
            return is_wanted

    def begin(self, log: UnifiedLog, target_path: str) -> LogMove:
        """A move of the log to that log directory; the caller has `run` called. What was there of earlier
        moves is removed.

        Raises InvalidRequestError where it cannot be, DataDirectoryError where a directory is not there, is
        offline or has no room.
        """
        partition = log.topic_partition
        target = self._directories.at(target_path)
        with self._lock:
            source = self._directories.of(log)
            former = self._moves.get(partition)
            if former is not None and not former.state.is_final:
                raise InvalidRequestError(
                    "the partition is moving already; wait for that move or cancel it",
                    partition=partition,
                    target_path=former.target_path,
                )
            self._require_possible(log, source, target)
            self._discard(partition, but_in=target.path)
            plan = MovePlan(log, source, target, self._directories.guard)
            move = LogMove(
                self._directories.filesystem,
                self._clock,
                plan,
                self._cleaner,
                self.throttler,
                self._away,
            )
            self._moves[partition] = move
            return move

    def _require_possible(self, log: UnifiedLog, source: LogDirectory, target: LogDirectory) -> None:
        for directory in (source, target):
            directory.require_online()
        partition = log.topic_partition
        if source is target:
            raise InvalidRequestError(
                "the partition is in this log directory already; name another one",
                partition=partition,
                path=target.path,
            )
        if target.is_cordoned:
            raise InvalidRequestError(
                "the log directory takes nothing new; uncordon it or name another one",
                partition=partition,
                path=target.path,
            )
        try:
            entry = target.manifest.entry(partition)
            is_copy = entry is not None and entry.state is PartitionState.INCOMING
            if not is_copy and self._directories.filesystem.exists(target.partition_path(partition)):
                raise DataDirectoryError(
                    "the log directory holds a directory of this partition already; move it away",
                    path=target.partition_path(partition),
                )
            free_bytes = self._directories.filesystem.free_bytes(target.path)
        except OSError as failure:
            raise DataDirectoryError(
                "the log directory cannot be read; repair its disk", path=target.path, reason=str(failure)
            ) from failure
        # What other moves have still to write there is not free.
        promised_bytes = sum(
            move.progress.remaining_bytes
            for move in self._moves.values()
            if move.target_path == target.path and not move.state.is_final
        )
        if free_bytes < promised_bytes + log.local_log.segments.size_bytes:
            raise DataDirectoryError(
                "the log directory has less free space than the partition and the moves to there still take;"
                " free some or name another",
                path=target.path,
                free_bytes=free_bytes,
                size_bytes=log.local_log.segments.size_bytes,
                moving_bytes=promised_bytes,
            )

    def _discard(self, partition: TopicPartition, but_in: str = "") -> None:
        """The partition's moves that were cut off are not wanted any more. Their copies go, but for one in
        that log directory, which gives way to a new one."""
        for wanted in self._wanted:
            if wanted.partition == partition and wanted.target_path != but_in:
                with suppress(DataDirectoryError):
                    self._away.discard_copy(self._directories.at(wanted.target_path), partition)
        self._wanted = tuple(wanted for wanted in self._wanted if wanted.partition != partition)
        self._refusals.pop(partition, None)

    def end(self, partition: TopicPartition) -> None:
        """End the partition's move, if there is one, because its log is about to be cut or closed. Waits
        until nothing of it touches the log any more; it may be done by then."""
        move = self._moves.get(partition)
        if move is not None:
            move.cancel("the log was truncated, closed or deleted")

    def forget(self, partition: TopicPartition) -> None:
        """The same, for a partition that is about to go."""
        self.end(partition)
        with self._lock:
            self._moves.pop(partition, None)
            self._discard(partition)

    def close(self) -> None:
        """End all moves; the next process finds that they are wanted."""
        for move in tuple(self._moves.values()):
            move.cancel("the process stops", is_still_wanted=True)
