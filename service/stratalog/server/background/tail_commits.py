"""Commits the tails of a shard's logs that appends at `object` wait for, or consumers of topics with that
level.

All partitions that wait share an object. `WaitingTails` says when a turn is due. A turn fsyncs the logs that
wait, several at a time, and hands them to the upload, which sends what is fsynced and answers the appends
that each commit has made durable.

The next turn fsyncs while the upload is under way, and the upload takes its logs once they are fsynced. So
the disk, the requests to the store and the commits of a busy shard run beside each other, and commits stay
in order. One turn at a time fsyncs, and waits until the upload has taken its logs: what comes meanwhile is
in the one after it, in larger objects then. A turn waits for slow disks for `FLUSH_WAIT_MS`: a log that is
fsynced later joins an upload then, and is in no other turn before. An upload ends about `MAX_UPLOAD_S` after
its begin, so that the shard's other uploader gets its partitions.

Where the store does not answer, uploads are tried again with growing pauses. Appends wait for `timeout_ms`
and fail then (`LateAppends`). Their records stay in the log, and the turns go on until they are committed. A
partition that fails by itself holds up no other one.

A server that stops commits what waits (`hurry`), as long as its grace lasts, and fails the rest (`stop`).
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    LogStoreError,
    NotOwnerError,
    StoppingError,
    StoreUnavailableError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.scheduler import ScheduledTask, Scheduler
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition, TopicPartition
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.tier.partition_upload import UploadCandidate
from stratalog.remote.tier.upload_report import UploadReport
from stratalog.remote.tier.uploader import Uploader
from stratalog.server.append.late_appends import LateAppends
from stratalog.server.background.pass_outcome import Backlog, PassOutcome
from stratalog.server.background.pass_registry import PassRegistry
from stratalog.server.background.tier_outcomes import refused_append, upload_outcome
from stratalog.server.background.turn_timer import TurnTimer
from stratalog.server.background.upload_candidate import candidate_of, may_upload
from stratalog.server.background.waiting_tails import CommitSettings, WaitingTails
from stratalog.server.operations.operation_results import Uploaded
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.hosted_shard import HostedShard
from stratalog.server.partitions.scratch_space import scratch_error

logger = logging.getLogger(__name__)

PASS_NAME = "object-commit"
MAX_PAUSE_S = 5.0
"""The longest pause between two tries while the store does not answer."""
MAX_UPLOAD_S = 2.0
"""An upload takes no more logs after this time, and ends with the objects that are on their way."""

FLUSH_WAIT_MS = 1000
"""A turn goes on without the logs that are not fsynced after this time."""

_TOLERANCE_S = 0.001
"""A turn may begin so much too early."""

RunOnDisk = Callable[[HostedPartition, Callable[[], None]], object]
"""Runs a task on a thread of the partition's log directory, without waiting for it, or at once. Raises
StoppingError."""


class CommitThreads(NamedTuple):
    """The threads of commits."""

    scheduler: Scheduler
    """Has a thread for each upload."""
    run_on_disk: RunOnDisk
    """Runs fsyncs."""
    stop: StopSignal
    """Ends the uploads."""


class CommitStats(NamedTuple):
    """The commits of a shard since the start, and its waiting appends."""

    object_count: int = 0
    slice_count: int = 0
    data_bytes: int = 0
    append_count: int = 0
    """Acknowledged appends at `object`."""
    wait_s: float = 0.0
    """The seconds that they have waited together."""
    timeout_count: int = 0
    """Appends that were not committed in time."""
    waiting_count: int = 0
    """Partitions that wait for the next turn."""
    waiting_bytes: int = 0
    """Appends that wait for it."""


class TailCommits:
    """The commits of one shard's waiting tails. Thread-safe: `_lock` guards what waits; one turn fsyncs at a
    time, and one upload is under way."""

    def __init__(
        self,
        clock: Clock,
        threads: CommitThreads,
        shard: HostedShard,
        catalog: Catalog,
        uploader: Uploader,
        passes: PassRegistry,
        settings: Callable[[], CommitSettings],
    ) -> None:
        """`settings` is asked for each turn."""
        self._clock = clock
        self._scheduler = threads.scheduler
        self._run_on_disk = threads.run_on_disk
        self._stop = threads.stop
        self._shard = shard
        self._catalog = catalog
        self._uploader = uploader
        self._passes = passes
        self._settings = settings
        self._lock = threading.Lock()
        self._waiting = WaitingTails(clock)
        self._timer = TurnTimer(clock, threads.scheduler, "commit tails", self._begin_turn)
        self._late = LateAppends(threads.scheduler, lambda: settings().timeout_ms)
        self._flushing: dict[TopicIdPartition, float] = {}
        """Partitions whose logs are being fsynced, of this turn and earlier ones, with the monotonic time at
        which their disk was asked."""
        self._awaited: set[TopicIdPartition] = set()
        """Those that the turn waits for."""
        self._patience: ScheduledTask | None = None
        """Ends the turn's wait for them."""
        self._flushed: dict[TopicIdPartition, HostedPartition] = {}
        """Partitions whose logs are fsynced, for the upload."""
        self._failures: list[LogStoreError] = []
        """Failures of single partitions, for the outcome of the upload."""
        self._stats = CommitStats()
        self._is_uploading = self._is_hurried = self._is_stopped = False
        self._store_failure: _StoreFailure | None = None

    @property
    def stats(self) -> CommitStats:
        with self._lock:
            backlog = self._waiting.backlog
            return self._stats._replace(
                timeout_count=self._late.count,
                waiting_count=backlog.count,
                waiting_bytes=backlog.size_bytes,
            )

    @property
    def backlog(self) -> Backlog:
        """The partitions that wait for the next turn."""
        with self._lock:
            return self._waiting.backlog

    def last_success_ms(self, tip: TopicIdPartition) -> int:
        """Wall time of the last commit of the partition's tail since the start; -1 if there was none."""
        return self._uploader.last_success_ms(tip)

    def failure_of(self, tip: TopicIdPartition) -> LogStoreError | None:
        """Why the last try to commit the partition's tail failed; None if it did not."""
        return self._uploader.failure_of(tip)

    def follow(self, partition: HostedPartition) -> None:
        """Commit the tail of a partition whenever it is waited for; at once what is there by now."""
        partition.writer.commit_waiters.watch(partial(self._note, partition), self._note_answers)
        partition.ask_for_commit()

    def hurry(self) -> None:
        """Begin each turn as soon as it may; for a server that stops."""
        with self._lock:
            self._is_hurried = True
            self._plan()

    def stop(self) -> None:
        """End the upload, and fail the appends that wait and those that come; for a server that stops."""
        self._stop.set()
        with self._lock:
            self._is_stopped = True
            self._timer.cancel()
        for waiters in self._late.stop():
            waiters.fail(_stopping())

    def _note(self, partition: HostedPartition, size_bytes: int) -> None:
        """Note that appends of so many bytes begin to wait, or that consumers wait for the tail."""
        waiters = partition.writer.commit_waiters
        if size_bytes and not self._late.watch(waiters, partial(self._late_error, partition)):
            waiters.fail(_stopping())
            return
        with self._lock:
            self._waiting.add(partition, size_bytes)
            self._plan()

    def _note_answers(self, count: int, wait_s: float) -> None:
        with self._lock:
            stats = self._stats
            self._stats = stats._replace(
                append_count=stats.append_count + count, wait_s=stats.wait_s + wait_s
            )

    def _late_error(self, partition: HostedPartition, waited_ms: int) -> LogStoreError:
        """The error of appends that were not committed in time: their disk does not answer, or the store."""
        with self._lock:
            asked_s = self._flushing.get(partition.topic_id_partition)
            failure = self._store_failure
        fields = partition.topic_partition.error_fields
        unanswered_s = 0.0 if asked_s is None else self._clock.monotonic_s() - asked_s
        if unanswered_s * 1000 > FLUSH_WAIT_MS:
            return StoreUnavailableError(
                "the append is in the local log, but the disk of its log directory has not answered an fsync"
                " since it was asked, and nothing is committed before; it may be committed later: send it"
                " again with the same producer and sequence, and look at that disk",
                **fields,
                waited_ms=waited_ms,
                fsync_unanswered_s=round(unanswered_s),
                fsync_since_ms=self._clock.now_ms() - round(unanswered_s * 1000),
                path=partition.log.local_log.log_dir,
            )
        return StoreUnavailableError(
            "the append is in the local log, but was not committed in the object store in time; it may be"
            " committed later: send it again with the same producer and sequence, and look at the store",
            **fields,
            waited_ms=waited_ms,
            reason="" if failure is None else str(failure.error),
        )

    # --- turns ----------------------------------------------------------------------------------------------

    def _plan(self) -> None:
        """Plan the next turn, unless one is under way. Called with the lock held."""
        if not self._awaited and not self._flushed and not self._is_stopped:
            self._timer.plan(self._due_s())

    def _due_s(self) -> float:
        """The time at which the next turn may begin, for what waits now. Called with the lock held."""
        due_s = self._waiting.due_s(
            self._settings(), is_hurried=self._is_hurried, is_uploading=self._is_uploading
        )
        failure = self._store_failure
        return due_s if failure is None or due_s == math.inf else failure.retry_at_s

    def _begin_turn(self) -> None:
        """Fsync what waits, each log on a thread of its disk, and let it be uploaded."""
        with self._lock:
            self._timer.fired()
            if self._awaited or self._flushed or self._is_stopped:
                return
            if self._due_s() > self._clock.monotonic_s() + _TOLERANCE_S:
                # More partitions wait by now.
                self._plan()
                return
            # Those that are being fsynced wait again after their upload.
            partitions = [one for one in self._waiting.take() if one.topic_id_partition not in self._flushing]
            self._awaited = {partition.topic_id_partition for partition in partitions}
            self._flushing |= dict.fromkeys(self._awaited, self._clock.monotonic_s())
            if partitions:
                self._patience = self._scheduler.once("commit tails", self._go_on, FLUSH_WAIT_MS)
        for partition in partitions:
            try:
                self._run_on_disk(partition, partial(self._flush, partition))
            except Exception as error:  # noqa: BLE001 - no thread could be had for it
                self._end_flush(partition, error)

    def _flush(self, partition: HostedPartition) -> None:
        """Fsync a log for the upload. If that fails, so do the appends of the partition, and nothing else."""
        failure: Exception | None = None
        try:
            partition.ensure_served()
            partition.log.flusher.flush()
        except Exception as error:  # noqa: BLE001 - the appends of the partition have it
            failure = error
        self._end_flush(partition, failure)

    def _end_flush(self, partition: HostedPartition, failure: Exception | None) -> None:
        if failure is not None:
            self._fail(partition, failure)
        tip = partition.topic_id_partition
        with self._lock:
            self._flushing.pop(tip, None)
            self._awaited.discard(tip)
            if failure is None:
                self._flushed[tip] = partition
            if not self._awaited:
                self._hand_over()

    def _go_on(self) -> None:
        """Let the turn wait no longer for slow disks."""
        with self._lock:
            self._awaited.clear()
            self._hand_over()

    def _hand_over(self) -> None:
        """Let what is fsynced be uploaded. Called with the lock held."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        if self._is_uploading:
            self._uploader.note_more()
        else:
            self._is_uploading = True
            # On a thread of its own: those of the disk have other logs to fsync.
            self._scheduler.once("commit tails", self._upload_all)
        self._plan()

    def _fail(self, partition: HostedPartition, error: Exception) -> None:
        """Fail the appends of one partition, which is tried again later unless it or its disk is gone."""
        cause = error if isinstance(error, LogStoreError) else _defect(partition, error)
        partition.writer.commit_waiters.fail(cause)
        if isinstance(cause, NotOwnerError | UnknownTopicOrPartitionError):
            return
        is_offline = partition.offline() is not None
        with self._lock:
            self._failures.append(cause)
            if not is_offline:
                self._waiting.put_off(partition)

    def _take_flushed(self) -> list[HostedPartition]:
        """The partitions for the upload; the next turn may begin then."""
        with self._lock:
            flushed, self._flushed = [*self._flushed.values()], {}
            self._plan()
            return flushed

    def _upload_all(self) -> None:
        """Upload what is fsynced until nothing is left of it, or the store fails."""
        while True:
            upload = _Upload(self._clock.monotonic_s() + MAX_UPLOAD_S)
            failure: Exception | None = None
            try:
                with self._passes.turn(PASS_NAME) as turn:
                    turn.outcome = self._upload(upload)
            except Exception as error:  # noqa: BLE001 - `turn` has logged it, and the appends wait for the next try
                failure = error
            if not self._end_upload(upload, failure):
                return

    def _upload(self, upload: _Upload) -> PassOutcome:
        """Upload the tails, and answer the appends. Raises NotOwnerError, StoreError, DataDirectoryError,
        StoppingError."""
        first = self._candidates(upload)
        try:
            report = self._uploader.upload(
                first,
                epoch=self._shard.leader_epoch(),
                on_object=self._counter(),
                more=lambda: self._candidates(upload) if self._clock.monotonic_s() < upload.end_s else (),
            )
        except NotOwnerError:
            self._shard.refresh()
            raise
        except OSError as failure:
            raise scratch_error(failure) from failure
        by_name = {one.topic_partition: one for one in upload.partitions.values()}
        for failed in report.failed:
            self._fail(by_name[failed.topic_partition], failed.error)
        for refused in report.refused:
            error = refused_append(refused)
            if error is not None:
                by_name[refused.topic_partition].writer.commit_waiters.fail(error)
        for partition in upload.partitions.values():
            # Another upload may have committed it.
            partition.note_commit()
        upload.left_out = report.left_out
        upload.failed = {one.topic_partition for one in report.failed}
        with self._lock:
            failures, self._failures = self._failures, []
        uploaded = Uploaded(report.object_count, report.slice_count, report.data_bytes)
        return upload_outcome(uploaded, failures, (one.reason for one in report.refused))

    def _candidates(self, upload: _Upload) -> list[UploadCandidate]:
        """The candidates for the upload: logs that are fsynced by now."""
        found: list[UploadCandidate] = []
        for partition in self._take_flushed():
            upload.partitions[partition.topic_id_partition] = partition
            try:
                if may_upload(partition):
                    found.append(candidate_of(self._catalog, partition, is_tail=True))
            except Exception as error:  # noqa: BLE001 - the appends of the partition have it
                del upload.partitions[partition.topic_id_partition]
                self._fail(partition, error)
        return found

    def _end_upload(self, upload: _Upload, failure: Exception | None) -> bool:
        """Let the partitions wait again of which something is left, after a failure all of them. Returns
        whether another upload follows at once."""
        done = [one for one in upload.partitions.values() if one.topic_partition not in upload.failed]
        left = done if failure is not None else [one for one in done if upload.is_left(one)]
        with self._lock:
            if failure is not None:
                # A try of these alone would not wait for the store.
                left = [*left, *self._flushed.values()]
                self._flushed = {}
            self._store_failure = self._next_failure(failure)
            if failure is None:
                self._waiting.note_success(done)
            is_over = isinstance(failure, NotOwnerError | StoppingError)
            for partition in () if is_over else left:
                self._waiting.add(partition)
            self._is_uploading = has_more = bool(self._flushed)
            self._plan()
        if failure is not None and is_over:
            error = _stopping() if isinstance(failure, StoppingError) else failure
            for partition in left:
                partition.writer.commit_waiters.fail(error)
        return has_more

    def _next_failure(self, error: Exception | None) -> _StoreFailure | None:
        if error is None:
            return None
        count = 1 + (0 if self._store_failure is None else self._store_failure.failure_count)
        pause_s = min(MAX_PAUSE_S, self._settings().interval_ms / 1000 * 2.0 ** min(count, 20))
        return _StoreFailure(error, count, self._clock.monotonic_s() + pause_s)

    def _counter(self) -> Callable[[UploadReport], None]:
        """Counts what an upload has committed, after each of its objects."""
        before = self._stats

        def count(report: UploadReport) -> None:
            with self._lock:
                self._stats = self._stats._replace(
                    object_count=before.object_count + report.object_count,
                    slice_count=before.slice_count + report.slice_count,
                    data_bytes=before.data_bytes + report.data_bytes,
                )

        return count


class _StoreFailure(NamedTuple):
    """The last of failed uploads in a row."""

    error: Exception
    failure_count: int
    retry_at_s: float
    """Monotonic time before which no turn begins."""


class _Upload:
    """An upload under way. Belongs to its thread."""

    def __init__(self, end_s: float) -> None:
        self.end_s = end_s
        """Monotonic time after which it takes no more logs."""
        self.partitions: dict[TopicIdPartition, HostedPartition] = {}
        self.left_out: Collection[TopicPartition] = ()
        """Those that the other uploader has. What the upload did not get is kept for it, so it goes on
        asking, also if nothing waits any more."""
        self.failed: Collection[TopicPartition] = ()

    def is_left(self, partition: HostedPartition) -> bool:
        """Whether the partition is in the next turn, too. What consumers wait for while uploads are paused is
        asked for once the pause ends."""
        if partition.topic_partition in self.left_out or partition.writer.commit_waiters.count:
            return True
        return partition.has_waiting_tail and may_upload(partition)


def commit_backlog(commits: Iterable[TailCommits]) -> Backlog:
    """The partitions that wait for their next commit, of all shards."""
    found = [one.backlog for one in commits]
    return Backlog(
        sum(one.count for one in found),
        sum(one.size_bytes for one in found),
        oldest_ms=min((one.oldest_ms for one in found if one.count), default=-1),
    )


def _stopping() -> StoppingError:
    return StoppingError(
        "the server is stopping, and it is not known whether the append gets into the object store; send it"
        " again with the same producer and sequence"
    )


def _defect(partition: HostedPartition, error: Exception) -> LogStoreError:
    """The error of appends that a defect of the server has failed; the log has its traceback."""
    logger.error("the commit of %s failed unexpectedly", partition.topic_partition, exc_info=error)
    return LogStoreError(
        "the server failed to commit the append, which is in the local log; report the traceback in the"
        " server's log, and send it again with the same producer and sequence",
        **partition.topic_partition.error_fields,
        reason=repr(error),
    )
