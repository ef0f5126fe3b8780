"""The log directories for operators: their states, cordons, missing directories and moves between them."""

from __future__ import annotations

import logging
import os
import posixpath
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from stratalog.base.errors import InvalidConfigError, InvalidRequestError, LogStoreError
from stratalog.base.types import TopicPartition
from stratalog.manager.directories.log_directory import LogDirectoryStatus
from stratalog.manager.log_manager import LogManager
from stratalog.manager.moves.cut_off_moves import WantedMove
from stratalog.manager.moves.log_move import LogMove, MoveProgress, MoveState
from stratalog.server.configuration.broker_config import CORDONED, BrokerConfig
from stratalog.server.configuration.runtime_config import RuntimeConfig
from stratalog.server.log_identity import require_topic_id
from stratalog.server.operations.operation import Operation, OperationKind, OperationProgress
from stratalog.server.operations.operation_registry import OperationRegistry
from stratalog.server.operations.operation_results import MoveResult
from stratalog.server.partitions.partition_registry import PartitionRegistry

logger = logging.getLogger(__name__)


DOES_NOT_ANSWER = "its disk does not answer; find out why, or restart the server without it"
"""The fault of a directory that works as far as is known."""


class DescribedDirectory(NamedTuple):
    """A log directory as an operator sees it."""

    status: LogDirectoryStatus
    size_bytes: int
    """Size of the open logs in it."""
    set_aside: Sequence[str] = ()
    """Paths of directories in it that belong to no topic, or were set aside."""


class DescribedMove(NamedTuple):
    """The last move of a partition, and its operation."""

    progress: MoveProgress
    operation_id: str
    """Empty if the server has forgotten it."""


class DirectoryAdmin:
    """Describes and cordons the log directories, and moves partitions between them. Thread-safe: it has no
    state but the held moves, a dictionary with single writes. Implements `Reconfigurable`."""

    def __init__(
        self,
        operations: OperationRegistry,
        logs: LogManager,
        registry: PartitionRegistry,
        runtime: RuntimeConfig,
    ) -> None:
        """Apply the configuration to `logs`, of which no log is open yet. Each move is one of the
        `operations`."""
        self._operations = operations
        # The moves of the former process that cannot go on for now.
        self._held: dict[TopicPartition, Operation] = {}
        self._logs = logs
        self._registry = registry
        self._runtime = runtime
        self.apply(runtime.current)
        _tell_of_unused_cordons(runtime.current, logs.data_dirs)

    def require_applicable(self, config: BrokerConfig) -> None:
        if config.cordoned_log_dirs == self._runtime.current.cordoned_log_dirs:
            # The start may have been given other paths, see `_tell_of_unused_cordons`.
            return
        for path in config.cordoned_log_dirs:
            if path not in self._logs.data_dirs:
                raise InvalidConfigError(
                    f"{CORDONED} names a directory that is not a log directory of this server",
                    name=CORDONED,
                    value=path,
                    allowed="the paths that `stratalog log-dirs describe` shows",
                )

    def apply(self, config: BrokerConfig) -> None:
        self._logs.set_producer_id_expiration_ms(config.producer_expiration_ms)
        self._logs.file_delete_delay_ms = config.topic_defaults.file_delete_delay_ms
        self._logs.leave_free(config.min_free_bytes)
        self._logs.moves.throttler.set_max_bytes_per_s(config.max_moved_bytes_per_s)

    def set_aside(self) -> Mapping[str, Sequence[str]]:
        """The paths for an operator to look at, by log directory that works; none of one that cannot be read
        now. Leaves out a directory whose disk does not answer."""
        paths, found = self._logs.tasks.paths(), self._logs.found
        looks = {path: partial(found.set_aside_in, path) for path in paths}
        answers = self._logs.directories.disk_calls.run_each(looks, even_alone=True)
        return {path: aside or () for path, aside in answers.results.items()}

    def describe(
        self, set_aside: Mapping[str, Sequence[str]]
    ) -> tuple[Sequence[DescribedDirectory], Sequence[DescribedMove]]:
        """Describe each directory, missing ones last, and the last move of each partition. `set_aside`: the
        result of `set_aside`; a directory that works and is not among them has not answered.

        A partition without a move in this process has one if the former process had begun it.
        """
        size_bytes: Counter[str] = Counter()
        for log in self._logs.logs():
            if not log.availability.is_offline:
                size_bytes[log.local_log.log_dir] += log.local_log.segments.size_bytes
        statuses = [
            one._replace(reason=one.reason or (DOES_NOT_ANSWER if one.path not in set_aside else ""))
            for one in self._logs.directories.statuses()
        ]
        missing = [DescribedDirectory(status, 0) for status in self._logs.directories.missing()]
        return (
            [
                *(
                    DescribedDirectory(status, size_bytes[status.path], set_aside.get(status.path, ()))
                    for status in statuses
                ),
                *missing,
            ],
            self._described_moves(),
        )

    def _described_moves(self) -> list[DescribedMove]:
        newest: dict[TopicPartition, str] = {}
        for operation in self._operations.operations():
            view = operation.view
            if isinstance(view.result, MoveResult):
                newest.setdefault(view.result.topic_partition, str(view.operation_id))
        return [DescribedMove(one, newest.get(one.partition, "")) for one in self._logs.moves.progress()]

    def cordon(self, path: str, *, is_cordoned: bool) -> str:
        """Keep new partitions away from a log directory, or admit them again; returns its path.

        Raises InvalidRequestError if there is no such directory, or a directory to uncordon is not cordoned;
        DataDirectoryError if its manifest cannot be written, with the former state in force.
        """
        path = self._logs.directories.at(_normalized(path)).path

        def change(cordoned: tuple[str, ...]) -> tuple[str, ...]:
            if not is_cordoned and path not in cordoned:
                raise InvalidRequestError(
                    "the log directory is not cordoned; `stratalog log-dirs describe` shows which are",
                    path=path,
                )
            others = [one for one in self._logs.data_dirs if one in cordoned and one != path]
            return (*others, path) if is_cordoned else tuple(others)

        self._runtime.alter_cordons(change)
        return path

    def forget(self, directory_id: str) -> str:
        """Give up a missing directory for good: partitions that are nowhere else begin anew at the next
        start. Returns its last path. Raises InvalidRequestError, DataDirectoryError.
        """
        path = self._logs.directories.forget(directory_id)
        logger.warning(
            "a missing log directory was given up: partitions that are nowhere else begin anew at the next"
            " start, directory_id=`%s` last_path=`%s`",
            directory_id,
            path,
        )
        return path

    def move(self, topic: str, partition: int, target_path: str, topic_id: str = "") -> Operation:
        """Start to move a partition, which stays served, to another log directory. `topic_id` is the topic's
        id, or empty. Raises UnknownTopicOrPartitionError, InconsistentTopicIdError, InvalidRequestError,
        DataDirectoryError.
        """
        hosted = self._registry.partition(topic, partition, topic_id)
        log = self._logs.log(hosted.topic_partition)
        # Another topic may have taken the name since the partition was looked up.
        require_topic_id(topic, topic_id, str(log.topic_id))
        operation = self._start(self._logs.moves.begin(log, _normalized(target_path)))
        held = self._held.pop(hosted.topic_partition, None)
        if held is not None:
            self._operations.release(
                held,
                InvalidRequestError(
                    "another move of the partition was started",
                    **hosted.topic_partition.error_fields,
                    operation_id=operation.view.operation_id,
                ),
            )
        return operation

    def resume_moves(self) -> None:
        """Start again the moves that the former process did not finish. One that cannot go on for now is an
        operation, too: a cancellation gives it up."""
        for wanted in self._logs.moves.wanted:
            try:
                self._start(self._logs.begin_move(wanted.partition, wanted.target_path))
                logger.info("%s goes on moving to %s", wanted.partition, wanted.target_path)
            except LogStoreError as error:
                self._hold(wanted, error)
                logger.warning(
                    "the move of %s does not go on; begin it again, or cancel it: %s", wanted.partition, error
                )

    def _hold(self, wanted: WantedMove, error: LogStoreError) -> None:
        reason = f"it does not go on: {error}"
        self._logs.moves.note_refusal(wanted.partition, reason)

        def give_up() -> None:
            self._held.pop(wanted.partition, None)
            self._logs.moves.give_up(wanted.partition)

        self._held[wanted.partition] = self._operations.hold(
            OperationKind.MOVE,
            [wanted.partition.topic],
            reason,
            MoveResult(wanted.partition, "", wanted.target_path),
            give_up,
        )

    def _start(self, move: LogMove) -> Operation:
        return self._operations.start(
            OperationKind.MOVE,
            [move.partition.topic],
            lambda operation: _run(move, operation),
            lane=(OperationKind.MOVE, move.partition),
            result=MoveResult(move.partition, move.source_path, move.target_path),
            on_cancel=lambda: move.ask_to_end("an operator has cancelled it"),
        )


def _normalized(path: str) -> str:
    """The path as a log directory of this server would have it. Raises InvalidRequestError for a path that is
    not absolute: a client does not know where the server was started."""
    if not posixpath.isabs(path):
        raise InvalidRequestError("the path of a log directory is absolute; correct it", path=path)
    return os.path.abspath(path)


def _run(move: LogMove, operation: Operation) -> None:
    """Move the partition. Raises StoppingError if the operation or the server stopped it, and the error of a
    move that failed."""

    def report() -> None:
        progress = move.progress
        operation.report(
            OperationProgress(
                phase=progress.state.value,
                done_count=int(progress.state is MoveState.DONE),
                total_count=1,
                done_bytes=progress.copied_bytes,
                total_bytes=progress.copied_bytes + progress.remaining_bytes,
            )
        )

    state = move.run(report)
    report()
    if state is MoveState.DONE:
        return
    if state is MoveState.CANCELLED:
        operation.stop.check()
    raise move.failure or InvalidRequestError(
        "the move was ended; begin it again if the partition still exists",
        **move.partition.error_fields,
        reason=move.progress.reason,
    )


def _tell_of_unused_cordons(config: BrokerConfig, paths: Sequence[str]) -> None:
    """Warn about cordoned paths that are not log directories of this start."""
    unused = [path for path in config.cordoned_log_dirs if path not in paths]
    if unused:
        logger.warning(
            "%s names directories that are not log directories of this start, and ignores them: %s. Correct a"
            " wrong path, as in %s; leave a directory that comes back; otherwise remove it from the start's"
            " options",
            CORDONED,
            ", ".join(unused),
            ", ".join(paths),
        )
