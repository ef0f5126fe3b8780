"""Opens partitions: loads their logs, compares them with the bucket, and gives each a writer and a signal.

Many logs open at once: after a crash each log has a tail to read, and a disk serves many readers faster than
one after another.

A start opens every log that it can: a partition with a damaged or unreadable log stays offline alone. The
partitions of a new topic, or new partitions of a topic, open together or not at all: the first failure keeps
the others from beginning. Logs that are open by then stay open, and the next try uses them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from typing import Generic, NamedTuple, TypeVar

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    CorruptRecordError,
    DataDirectoryError,
    LogStoreError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.filesystem import NO_SPACE
from stratalog.base.scheduler import RunBeside
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.log.log_config import LogConfig
from stratalog.log.unified_log import UnifiedLog
from stratalog.manager.directories.silent_disks import SilentDisks
from stratalog.manager.log_manager import LogManager
from stratalog.manager.log_opener import SoughtPartition
from stratalog.remote.metadata.ownership.ownership import reconcile_log
from stratalog.remote.read.remote_reader import RemoteReader
from stratalog.remote.tier.log_restore import restore_log
from stratalog.server.append.commit_waiters import CommitWaiters
from stratalog.server.append.partition_writer import (
    AppendThreads,
    LoopCalls,
    PartitionWriter,
    WriterChecks,
    WriterShared,
    WriterThreads,
)
from stratalog.server.fetch.partition_signal import PartitionSignal
from stratalog.server.partitions.followed_partition import FollowedPartition
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.hosted_shard import HostedShard
from stratalog.server.partitions.offline_partition import OfflinePartition
from stratalog.server.partitions.opening.opening_progress import OpeningProgress
from stratalog.server.partitions.shard_set import ShardSet

logger = logging.getLogger(__name__)

T = TypeVar("T")

Host = Callable[[UnifiedLog, HostedShard], HostedPartition]
"""Makes a hosted partition of a log."""


class DirectoryThreads(NamedTuple):
    """The threads of a log directory, by its path."""

    append: Callable[[str], AppendThreads]
    flush: Callable[[str], Executor]
    validate: Callable[[str], AppendThreads]
    """For appends whose validation takes long."""


class PartitionHost:
    """Makes hosted partitions, with writers that answer on `loop`, by `calls` of it. Thread-safe."""

    def __init__(
        self,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        calls: LoopCalls,
        threads: DirectoryThreads,
        shared: WriterShared | None = None,
    ) -> None:
        self._clock = clock
        self._loop = loop
        self._calls = calls
        self._threads = threads
        self._shared = shared

    def host(
        self,
        log: UnifiedLog,
        shard: HostedShard,
        reader: RemoteReader,
        fencing_token: Callable[[], str] = lambda: "",
        ensure_room: Callable[[UnifiedLog], None] = lambda _: None,
    ) -> HostedPartition:
        """A partition that is ready to serve; a log that begins at the tiered end first gets the state of the
        tiered data below. `fencing_token` returns the partition's. `ensure_room`: see `HostedPartition`.
        Touches disk and network. Raises StoreError, DataDirectoryError.
        """
        if not shard.is_followed:
            restore_log(log, reader)
        local, signal = log.local_log, PartitionSignal(self._loop)

        def ensure_heard() -> None:
            # A topic that is not tiered has all its data on the local disk, through any takeover.
            if log.local_log.config.remote_storage_enable:
                shard.contact.ensure_heard()

        tip = TopicIdPartition(log.topic_id, log.topic_partition.partition)

        def is_lost(first_offset: int, last_offset: int) -> bool:
            state = shard.metadata.state().partition(tip)
            is_passed = first_offset < state.log_start_offset
            return is_passed or state.has_gap_in(first_offset, last_offset + 1)

        writer = PartitionWriter(
            calls=self._calls,
            threads=WriterThreads(
                lambda: self._threads.append(local.log_dir),
                lambda: self._threads.flush(local.log_dir),
                lambda: self._threads.validate(local.log_dir),
            ),
            log=log,
            checks=WriterChecks(shard.leader_epoch, ensure_heard, fencing_token),
            commit_waiters=CommitWaiters(self._clock, self._loop, is_lost),
            on_advance=signal.notify,
            shared=self._shared,
        )
        make = FollowedPartition if shard.is_followed else HostedPartition
        return make(log, shard, reader, writer, signal, ensure_room)


class WantedPartition(NamedTuple):
    """A partition to open, and the configuration that its log goes by."""

    topic_partition: TopicPartition
    topic_id_partition: TopicIdPartition
    config: LogConfig
    is_new: bool = False
    """The partition has never had a log."""


OPENED_TOGETHER = 32
"""Partitions of one topic that wait for threads at a time, once the server has started."""
LOOK_COUNT = 6
"""A disk is given up after so many looks in a row without an answer."""
_UNPLACED = "unplaced"
"""The threads for partitions that are in no log directory yet."""

OnSilence = Callable[[WantedPartition, DataDirectoryError], T]
"""The result for a partition whose log directory has gone offline while it was opened."""


class _Opening(NamedTuple, Generic[T]):
    """The opening of a partition, which a thread runs, or will run."""

    wanted: WantedPartition
    running: Future[T]

    @property
    def partition(self) -> TopicPartition:
        return self.wanted.topic_partition

    def cancel(self, progress: OpeningProgress) -> bool:
        """End it if it has not begun; returns whether it had not."""
        return not self.running.cancelled() and self.running.cancel() and progress.end(self.partition)


class PartitionOpener:
    """Opens the partitions of a topic. Thread-safe: it keeps nothing between calls. One caller opens a
    partition at a time, and not on a thread of the executor.
    """

    def __init__(
        self,
        clock: Clock,
        shards: ShardSet,
        logs: LogManager,
        host: Host,
        executor_of: Callable[[str], Executor],
        run_beside: RunBeside,
        patience_s: float,
    ) -> None:
        """`executor_of` returns the threads that open the logs of a log directory. `run_beside` runs work on
        another thread, which a disk may keep. A start waits for a disk that does nothing for `patience_s`."""
        self._clock = clock
        self._shards = shards
        self._logs = logs
        self._host = host
        self._executor_of = executor_of
        self._run_beside = run_beside
        self._look_period_s = patience_s / LOOK_COUNT

    def open(self, wanted: Sequence[WantedPartition]) -> list[HostedPartition]:
        """Open all of them; returns them in the same order. Takes disk and network for as long as recovery
        needs, and logs its progress. Raises DataDirectoryError with the path; further failures are logged.
        """
        self._create([one for one in wanted if self._log_of(one) is None])
        opened: list[HostedPartition] = []
        for first in range(0, len(wanted), OPENED_TOGETHER):
            # The threads take turns: a large topic does not keep the others from them.
            opened += self._open_beside_each_other(wanted[first : first + OPENED_TOGETHER], self._open)
        return opened

    def open_what_can_be(self, wanted: Sequence[WantedPartition]) -> list[HostedPartition | OfflinePartition]:
        """Open all of them like `open`, but return a partition that cannot be opened as offline. Where there
        are several log directories, one goes offline whose disk does not answer any more, and its threads are
        left to it. Raises DataDirectoryError if the disk, not being full, refuses all of them.
        """
        # A crash may have come right behind the commit of a topic.
        with suppress(DataDirectoryError):
            # A partition that cannot be created reports that when it is opened.
            self._create([one for one in wanted if self._logs.directory_of(one.topic_partition) is None])
        opened = self._open_beside_each_other(wanted, self._open_or_leave, self._offline)
        offline = [one for one in opened if isinstance(one, OfflinePartition)]
        if offline and len(offline) == len(opened) and all(map(_is_refused_by_disk, offline)):
            raise offline[0].failure
        return opened

    def _create(self, unopened: Sequence[WantedPartition]) -> None:
        """Create those that have no directory, together. Raises DataDirectoryError."""
        self._logs.create_logs(
            [
                SoughtPartition(one.topic_partition, one.topic_id_partition.topic_id, one.is_new)
                for one in unopened
            ]
        )

    def leave(
        self, topic_partition: TopicPartition, topic_id_partition: TopicIdPartition, failure: LogStoreError
    ) -> OfflinePartition:
        path = self._logs.path_of(topic_partition)
        if self._logs.directory_of(topic_partition) is None:
            # The log may be on a disk that cannot be read; the failure has its path.
            path = str(failure.fields.get("path", path))
        shard = self._shards.of(topic_id_partition)
        return OfflinePartition(topic_partition, topic_id_partition, shard, path, failure)

    def _open_beside_each_other(
        self,
        wanted: Sequence[WantedPartition],
        work: Callable[[WantedPartition, OpeningProgress], T],
        on_silence: OnSilence[T] | None = None,
    ) -> list[T]:
        """The results of `work` for each of them. With `on_silence`, a log directory whose disk does not
        answer is given up, if there are others. Raises the first failure."""
        place_of = self._logs.directories.place_of
        progress = OpeningProgress(self._clock, [one.topic_partition for one in wanted], place_of)
        openings = [
            _Opening(one, self._threads_of(one).submit(self._run, work, one, progress)) for one in wanted
        ]
        left = self._wait(openings, progress, on_silence)
        ended = [one for one in openings if one.partition not in left]
        _raise_first(ended)
        results = left | {one.partition: one.running.result() for one in ended}
        return [results[one.partition] for one in openings]

    def _threads_of(self, wanted: WantedPartition) -> Executor:
        return self._executor_of(self._logs.directories.place_of(wanted.topic_partition) or _UNPLACED)

    def _run(
        self,
        work: Callable[[WantedPartition, OpeningProgress], T],
        wanted: WantedPartition,
        progress: OpeningProgress,
    ) -> T:
        """Do the work for a partition. What was given up meanwhile is let go again."""
        partition = wanted.topic_partition
        try:
            opened = work(wanted, progress)
        except BaseException:
            if not progress.end(partition, has_failed=True):
                self._logs.end_left(partition)
            raise
        if not progress.end(partition):
            if isinstance(opened, HostedPartition):
                opened.withdraw()
            self._logs.end_left(partition)
        return opened

    def _wait(
        self,
        openings: Sequence[_Opening[T]],
        progress: OpeningProgress,
        on_silence: OnSilence[T] | None,
    ) -> dict[TopicPartition, T]:
        """Wait for openings, log how far they are, and give up those on disks that do not answer; returns the
        results of these. After a failure none begins, because the caller may close the logs."""
        left: dict[TopicPartition, T] = {}
        disks = SilentDisks(self._logs.directories, self._run_beside)
        silent_counts = _looked(disks, progress) if on_silence else {}
        look_s = self._clock.monotonic_s() + self._look_period_s
        while progress.wait(look_s):
            if progress.has_failed:
                for one in openings:
                    one.cancel(progress)
            now_s = self._clock.monotonic_s()
            if now_s < look_s:
                continue
            look_s = now_s + self._look_period_s
            if on_silence is not None:
                silent_counts = _looked(disks, progress)
            silences_s = {path: count * self._look_period_s for path, count in silent_counts.items()}
            # At the first look without an answer the disk was asked nothing, perhaps.
            is_told = progress.tell({path: s for path, s in silences_s.items() if silent_counts[path] > 1})
            silent = [path for path, count in silent_counts.items() if count >= LOOK_COUNT]
            if on_silence is not None and len(self._logs.data_dirs) > 1:
                for path in silent:
                    self._logs.directories.give_up(path, f"{silences_s[path]:.0f}")
                    left |= self._give_up(path, openings, progress, on_silence)
            elif silent and is_told:
                logger.warning(
                    "the start waits for the only log directory, whose disk does not answer; find out why,"
                    " path=`%s`",
                    silent[0],
                )
        return left

    def _give_up(
        self,
        path: str,
        openings: Sequence[_Opening[T]],
        progress: OpeningProgress,
        on_silence: OnSilence[T],
    ) -> dict[TopicPartition, T]:
        """Give up the openings in a log directory that is offline by now; returns their results. Those that
        have begun are left to their threads."""
        refusal = self._logs.directories.at(path).health.refusal()
        assert refusal is not None, "it is offline"
        place_of = self._logs.directories.place_of
        left: dict[TopicPartition, T] = {}
        for one in openings:
            if place_of(one.partition) == path and (
                one.cancel(progress) or progress.give_up(one.partition, self._logs.leave)
            ):
                left[one.partition] = on_silence(one.wanted, refusal)
        return left

    def _open_or_leave(
        self, wanted: WantedPartition, progress: OpeningProgress
    ) -> HostedPartition | OfflinePartition:
        try:
            return self._open(wanted, progress)
        except (DataDirectoryError, CorruptRecordError) as failure:
            return self._left(wanted, progress, failure)
        except (LogStoreError, OSError):
            raise
        except Exception as failure:  # noqa: BLE001 - one log must not keep the others from being served
            fault = DataDirectoryError(
                "a defect of this server keeps the log from being opened; report it with the traceback in the"
                " server's log",
                path=self._logs.path_of(wanted.topic_partition),
                reason=repr(failure),
            )
            return self._left(wanted, progress, fault, unexpected=failure)

    def _left(
        self,
        wanted: WantedPartition,
        progress: OpeningProgress,
        failure: DataDirectoryError | CorruptRecordError,
        unexpected: Exception | None = None,
    ) -> OfflinePartition:
        """The partition, offline because of this. `unexpected` is a defect, logged with its traceback."""
        self._logs.let_go(wanted.topic_partition)
        if progress.is_given_up(wanted.topic_partition):
            # That was logged.
            return self.leave(wanted.topic_partition, wanted.topic_id_partition, failure)
        return self._offline(wanted, failure, unexpected)

    def _offline(
        self,
        wanted: WantedPartition,
        failure: DataDirectoryError | CorruptRecordError,
        unexpected: Exception | None = None,
    ) -> OfflinePartition:
        offline = self.leave(wanted.topic_partition, wanted.topic_id_partition, failure)
        logger.error(
            "%s stays offline, its local log cannot be opened, path=`%s`: %s",
            wanted.topic_partition,
            offline.path,
            failure,
            exc_info=unexpected,
        )
        return offline

    def _open(self, wanted: WantedPartition, progress: OpeningProgress) -> HostedPartition:
        shard = self._shards.owned(wanted.topic_id_partition)
        log = self._open_log(wanted, shard, progress)
        reconciled = reconcile_log(self._logs, log, shard.metadata, shard.claimed)
        if reconciled.set_aside_path is not None:
            logger.warning(
                "the local log of %s does not fit the object store and was set aside, path=`%s`: %s",
                wanted.topic_partition,
                reconciled.set_aside_path,
                reconciled.reason,
            )
        return self._host(reconciled.log, shard)

    def _open_log(self, wanted: WantedPartition, shard: HostedShard, progress: OpeningProgress) -> UnifiedLog:
        """Open the log, unless an earlier try that failed at another partition left it open."""
        topic_id = wanted.topic_id_partition.topic_id
        log = self._log_of(wanted)
        if log is not None:
            # It may have an earlier configuration.
            log.reconfigure(wanted.config)
            return log
        log = self._logs.open_log(
            wanted.topic_partition,
            topic_id,
            wanted.config,
            start_offset=shard.metadata.state().partition(wanted.topic_id_partition).tiered_end_offset,
            is_first_opening=wanted.is_new,
            on_progress=partial(progress.walked, wanted.topic_partition),
        )
        _tell(log)
        return log

    def _log_of(self, wanted: WantedPartition) -> UnifiedLog | None:
        """The log if it is open. The open log of a deleted topic of this name is closed; opening the new one
        sets its files aside."""
        try:
            log = self._logs.log(wanted.topic_partition)
        except UnknownTopicOrPartitionError:
            return None
        if log.topic_id == wanted.topic_id_partition.topic_id:
            return log
        logger.warning(
            "closing the log of a deleted topic, because another topic has its name, path=`%s`",
            log.local_log.directory,
        )
        self._logs.let_go(wanted.topic_partition)
        return None


def _tell(log: UnifiedLog) -> None:
    """Log the findings of the recovery that an operator should know."""
    report = log.recovery_report
    if report.remains:
        logger.warning(
            "the recovery of %s cut off damage with sound batches behind it, end_offset=`%d`, and kept the "
            "cut part for inspection: %s",
            log.topic_partition,
            log.offsets.log_end_offset,
            ", ".join(report.remains),
        )
    elif report.truncated_bytes:
        logger.info("the recovery of %s cut off %d bytes", log.topic_partition, report.truncated_bytes)
    if report.lost_end_offset is not None:
        logger.warning(
            "the log of %s ended at offset %d, below its start; it begins anew at %d, empty",
            log.topic_partition,
            report.lost_end_offset,
            log.offsets.log_start_offset,
        )


def _is_refused_by_disk(offline: OfflinePartition) -> bool:
    """Whether the directory cannot be read. A full disk does not count: an operator needs a running server
    to delete topics."""
    cause = offline.failure.__cause__
    return isinstance(cause, OSError) and cause.errno not in NO_SPACE


def _looked(disks: SilentDisks, progress: OpeningProgress) -> dict[str, int]:
    """Look at the log directories of the openings that remain: the looks in a row without an answer."""
    return {path: disks.look(path) for path in sorted(progress.places())}


def _raise_first(openings: Sequence[_Opening[T]]) -> None:
    failures = [
        (one, error)
        for one in openings
        if not one.running.cancelled() and (error := one.running.exception()) is not None
    ]
    for one, error in failures[1:]:
        logger.error("%s cannot be opened either: %s", one.partition, error)
    for _, error in failures:
        raise error
