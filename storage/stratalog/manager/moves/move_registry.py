"""The moves of partitions between log directories: one at a time for each partition.

`begin(...)` makes a move, and a thread of the caller calls its `run`, which takes as long as the copy. A call
that closes, deletes or truncates a log ends its move first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

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
from stratalog.manager.moves.move_target import MovePlan, log_is_gone
from stratalog.manager.partitions.put_away import PutAway


class MoveRegistry:
    """The wanted and the running moves of partitions. Thread-safe. A caller must not hold a lock of a log or
    of the log manager, except for methods that only read."""

    def __init__(
        self,
        clock: Clock,
        directories: DirectorySet,
        cleaner: CleanerManager,
        away: PutAway,
        is_open: Callable[[UnifiedLog], bool],
    ) -> None:
        """Settle the moves that the former process did not finish; no log may be opened before. `cleaner` is
        paused for logs that move. `away` removes copies that are not needed any more. `is_open`: see
        `MovePlan`."""
        self.throttler = Throttler(clock)
        """Limits the rate of all moves together; unlimited at first."""
        self._clock = clock
        self._directories = directories
        self._cleaner = cleaner
        self._away = away
        self._is_open = is_open
        self._lock = threading.Lock()
        self._moves: dict[TopicPartition, LogMove] = {}
        # Moves that are being accepted.
        self._beginning: dict[TopicPartition, LogMove] = {}
        # The reasons why wanted moves do not begin again.
        self._refusals: dict[TopicPartition, str] = {}
        self._wanted = settle_moves(directories, away)

    @property
    def wanted(self) -> tuple[WantedMove, ...]:
        """Moves that the former process accepted and did not finish, for the caller to begin again."""
        return self._wanted

    def is_wanted(self, partition: TopicPartition) -> bool:
        """Whether the former process accepted a move of the partition."""
        return any(wanted.partition == partition for wanted in self._wanted)

    def running(self, partition: TopicPartition) -> LogMove | None:
        """The move of the partition that runs or waits to run. Takes no lock."""
        move = self._moves.get(partition)
        return None if move is None or move.state.is_final else move

    def is_moving(self, partition: TopicPartition) -> bool:
        """Whether a move of the partition runs or waits to run. Takes no lock."""
        return self.running(partition) is not None

    def progress(self) -> tuple[MoveProgress, ...]:
        """The last move of each partition that had one in this process, and moves that are wanted and have
        not begun again, in order."""
        found = {wanted.partition: self._waiting(wanted) for wanted in self._wanted}
        found |= {partition: move.progress for partition, move in dict(self._moves).items()}
        return tuple(found[partition] for partition in sorted(found))

    def _waiting(self, wanted: WantedMove) -> MoveProgress:
        """The progress of a wanted move; the copy of the former process still takes its space."""
        filesystem, holder = self._directories.filesystem, self._directories.holder(wanted.partition)
        path, copied_bytes = f"{wanted.target_path}/{wanted.partition}", 0
        with suppress(OSError):
            copied_bytes = sum(
                filesystem.file_size(f"{path}/{name}") for name in filesystem.list_directory(path)
            )
        return MoveProgress(
            partition=wanted.partition,
            source_path="" if holder is None else holder.path,
            target_path=wanted.target_path,
            state=MoveState.WAITING,
            copied_bytes=copied_bytes,
            remaining_bytes=0,
            reason=self._refusals.get(wanted.partition, "it has not begun again yet"),
        )

    def note_refusal(self, partition: TopicPartition, reason: str) -> None:
        """Note why the partition's wanted move does not begin again. It stays wanted."""
        self._refusals[partition] = reason

    def give_up(self, partition: TopicPartition) -> bool:
        """Give up the partition's move that the former process began, and remove its copy; False if there is
        no such move."""
        is_wanted = self.is_wanted(partition)
        self._discard(partition)
        return is_wanted

    def begin(self, log: UnifiedLog, target_path: str) -> LogMove:
        """A move of the log to that log directory; the caller calls `run`. Removes copies of earlier moves.

        The move is durably accepted when this returns: the next process begins it again if this one does not
        end it. Raises InvalidRequestError if the move is impossible, or there is no such directory;
        DataDirectoryError if a directory is offline, full or silent; UnknownTopicOrPartitionError if the log
        is deleted or closed meanwhile.
        """
        partition = log.topic_partition
        target = self._directories.at(target_path)
        with self._lock:
            source = self._directories.of(log)
            if self.running(partition) is not None or partition in self._beginning:
                raise InvalidRequestError(
                    "the partition is moving already; wait for that move or cancel it",
                    **partition.error_fields,
                )
            for directory in (source, target):
                directory.require_online()
            move = LogMove(
                filesystem=self._directories.filesystem,
                clock=self._clock,
                plan=MovePlan(log, source, target, self._directories.guard, self._is_open),
                cleaner=self._cleaner,
                throttler=self.throttler,
                away=self._away,
            )
            self._beginning[partition] = move
        # Not under the lock, because a disk may hang.
        try:
            self._on_disk(target, partial(self._require_possible, log, source, target))
            self._discard(partition, but_in=target.path)
            self._on_disk(target, partial(self._accept, move))
        except DataDirectoryError:
            if not self._end_acceptance(move):
                raise
        finally:
            self._end_acceptance(move)
        return move

    def _end_acceptance(self, move: LogMove) -> bool:
        """Accept a late answer of the disk no more; returns whether the move is accepted."""
        with self._lock:
            self._beginning.pop(move.partition, None)
            return self._moves.get(move.partition) is move

    def _on_disk(self, directory: LogDirectory, work: Callable[[], None]) -> None:
        """Do work in a log directory. Also raises DataDirectoryError if its disk does not answer."""
        self._directories.disk_calls.run(directory.path, work)

    def _accept(self, move: LogMove) -> None:
        """Make the move durable, and one of those that run or wait. Raises DataDirectoryError,
        UnknownTopicOrPartitionError."""
        move.record()
        with self._lock:
            # A log that is taken out later takes the move along, see `forget`.
            is_accepted = self._beginning.get(move.partition) is move and move.is_of_open_log
            if is_accepted:
                self._moves[move.partition] = move
                self._forget_wanted(move.partition)
            is_left = not is_accepted and not self.is_wanted(move.partition)
        if is_left:
            move.withdraw()
        if not is_accepted:
            raise log_is_gone(move.partition)

    def _require_possible(self, log: UnifiedLog, source: LogDirectory, target: LogDirectory) -> None:
        partition = log.topic_partition
        if source is target:
            raise InvalidRequestError(
                "the partition is in this log directory already; name another one",
                **partition.error_fields,
                path=target.path,
            )
        if target.is_cordoned:
            raise InvalidRequestError(
                "the log directory takes nothing new; uncordon it or name another one",
                **partition.error_fields,
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
        # Space that other moves still have to write is not free.
        promised_bytes = sum(
            move.progress.remaining_bytes
            for move in (*tuple(self._moves.values()), *tuple(self._beginning.values()))
            if move.target_path == target.path and not move.state.is_final and move.partition != partition
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
        """Forget the partition's moves that were cut off, and remove their copies, except one to the log
        directory `but_in`, which a new move replaces."""
        with self._lock:
            found = [one for one in self._wanted if one.partition == partition and one.target_path != but_in]
            self._wanted = tuple(one for one in self._wanted if one not in found)
            if found:
                self._refusals.pop(partition, None)
            targets = [self._directories.at(wanted.target_path) for wanted in found]
            noted = [(target, target.entry(partition)) for target in targets]
        for target, entry in noted:
            if entry is not None and entry.state is PartitionState.INCOMING:
                self._away.withdraw_copy(target, partition, entry)

    def _forget_wanted(self, partition: TopicPartition) -> None:
        """Forget the wishes for moves of the partition. Under the lock."""
        self._wanted = tuple(one for one in self._wanted if one.partition != partition)
        self._refusals.pop(partition, None)

    def end(self, partition: TopicPartition) -> None:
        """End the partition's move, if it has one: its log is about to be truncated or closed. Waits until
        the move no longer uses the log; the move may be complete by then."""
        move = self._moves.get(partition)
        if move is not None:
            move.cancel("the log was truncated, closed or deleted")

    def forget(self, partition: TopicPartition) -> None:
        """End and forget the moves of a partition that is about to be deleted, also one that is being
        accepted. A move can be accepted until the partition has lost its log, so call it again then."""
        with self._lock:
            self._beginning.pop(partition, None)
        self.end(partition)
        with self._lock:
            self._moves.pop(partition, None)
        self._discard(partition)

    def close(self) -> None:
        """End all moves, so that the next process begins them again."""
        for move in tuple(self._moves.values()):
            move.cancel("the process stops", is_still_wanted=True)
