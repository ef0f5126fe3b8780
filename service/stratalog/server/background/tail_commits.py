"""Commits the tails of a shard's logs that appends at `object` wait for, or consumers of topics with that
level.

All partitions that wait share an object. A turn makes one: it fsyncs their logs, uploads what is fsynced, and
answers the appends that the commit has made durable. A turn begins

* `interval_ms` after the begin of the one before, so that an append which comes alone does not wait,
* or as soon as `buffer_bytes` wait,
* but never sooner than the partitions that wait make more than `max_slices_per_s` slices in a second: slices
  stay in the metadata until compaction has merged them.

One turn of a shard is under way at a time. What comes meanwhile is in the next one, in larger objects then.

Where the store does not answer, turns are tried again with growing pauses. Appends wait for `timeout_ms` and
fail then. Their records stay in the log, and the turns go on until they are committed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    LogStoreError,
    NotOwnerError,
    PreconditionFailedError,
    StoppingError,
    StoreUnavailableError,
    UnknownTopicOrPartitionError,
)
from stratalog.base.scheduler import ScheduledTask, Scheduler
from stratalog.base.types import TopicIdPartition
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.shard.shard_judge import NOT_AT_TIERED_END
from stratalog.remote.tier.uploader import Uploader, UploadReport
from stratalog.server.background.pass_outcome import Backlog, PassOutcome
from stratalog.server.background.pass_registry import PassRegistry
from stratalog.server.background.scratch_space import scratch_error
from stratalog.server.background.tier_outcomes import upload_outcome
from stratalog.server.background.upload_candidate import candidate_of, may_upload
from stratalog.server.operations.operation_results import Uploaded
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.hosted_shard import HostedShard

PASS_NAME = "object-commit"
MAX_PAUSE_S = 5.0
"""The longest pause between two tries while the store does not answer."""
MAX_LOOK_MS = 1_000
"""The longest time between two looks for appends that have waited too long."""


_TOLERANCE_S = 0.001
"""A turn may begin so much too early."""


class CommitSettings(NamedTuple):
    """When tails are committed."""

    interval_ms: int
    """Time between the begins of two turns."""
    buffer_bytes: int
    """A turn begins as soon as appends of so many bytes wait."""
    max_slices_per_s: int
    """The interval is longer where so many partitions wait that they would make more slices in a second."""
    timeout_ms: int
    """An append fails that is not committed after this long."""


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
    """The commits of one shard's waiting tails. Thread-safe: `_lock` guards what waits; one turn at a
    time."""

    def __init__(
        self,
        clock: Clock,
        scheduler: Scheduler,
        shard: HostedShard,
        catalog: Catalog,
        uploader: Uploader,
        passes: PassRegistry,
        settings: Callable[[], CommitSettings],
    ) -> None:
        """`scheduler` has a thread for each turn; `settings` is asked for each."""
        self._clock = clock
        self._scheduler = scheduler
        self._shard = shard
        self._catalog = catalog
        self._uploader = uploader
        self._passes = passes
        self._settings = settings
        self._lock = threading.Lock()
        self._waiting: dict[TopicIdPartition, HostedPartition] = {}
        self._waiting_bytes = 0
        self._waiting_since_ms = -1
        self._with_appends: dict[TopicIdPartition, HostedPartition] = {}
        """Partitions with appends that wait, in the turn that is under way or for the next one."""
        self._stats = CommitStats()
        self._turn_task: ScheduledTask | None = None
        self._due_s = 0.0
        self._earliest_s = clock.monotonic_s()
        """After a failure the next turn begins then."""
        self._begin_s = self._earliest_s
        """The begin of the last turn."""
        self._is_running = self._has_look = False
        self._failure_count = 0
        self._last_error: Exception | None = None
        self._stopping: StoppingError | None = None

    @property
    def stats(self) -> CommitStats:
        with self._lock:
            return self._stats._replace(waiting_count=len(self._waiting), waiting_bytes=self._waiting_bytes)

    @property
    def backlog(self) -> Backlog:
        """The partitions that wait for the next turn."""
        with self._lock:
            return Backlog(len(self._waiting), self._waiting_bytes, oldest_ms=self._waiting_since_ms)

    def last_success_ms(self, tip: TopicIdPartition) -> int:
        """Wall time of the last commit of the partition's tail since the start; -1 if there was none."""
        return self._uploader.last_success_ms(tip)

    def follow(self, partition: HostedPartition) -> None:
        """Commit the tail of a partition whenever it is waited for; at once what is there by now."""
        partition.writer.commit_waiters.watch(partial(self._note, partition), self._note_answers)
        partition.ask_for_commit()

    def stop(self) -> None:
        """Fail the appends that wait, and those that come; for a server that stops."""
        stopping = _stopping()
        with self._lock:
            self._stopping = stopping
            partitions = [*self._with_appends.values()]
            if self._turn_task is not None:
                self._turn_task.cancel()
        _fail(partitions, stopping)

    def _note(self, partition: HostedPartition, size_bytes: int) -> None:
        """Note that appends of so many bytes begin to wait, or that consumers wait for the tail."""
        with self._lock:
            stopping = self._stopping
            if stopping is None:
                tip = partition.topic_id_partition
                if not self._waiting:
                    self._waiting_since_ms = self._clock.now_ms()
                self._waiting[tip] = partition
                self._waiting_bytes += size_bytes
                if size_bytes:
                    self._with_appends[tip] = partition
                    self._plan_look()
                self._plan_turn()
        if stopping is not None:
            partition.writer.commit_waiters.fail(stopping)

    def _note_answers(self, count: int, wait_s: float) -> None:
        with self._lock:
            stats = self._stats
            self._stats = stats._replace(
                append_count=stats.append_count + count, wait_s=stats.wait_s + wait_s
            )

    def _plan_turn(self) -> None:
        """Schedule the next turn, or move it forward. Called with the lock held."""
        if self._is_running or not self._waiting:
            return
        now_s, due_s = self._clock.monotonic_s(), self._next_s()
        if self._turn_task is not None:
            if self._due_s <= due_s:
                return
            self._turn_task.cancel()
        self._due_s = due_s
        delay_ms = max(0, round((due_s - now_s) * 1000))
        self._turn_task = self._scheduler.once("commit tails", self._take_turn, delay_ms)

    def _next_s(self) -> float:
        """The time at which the next turn may begin, for what waits now. Called with the lock held."""
        if self._failure_count:
            return self._earliest_s
        settings = self._settings()
        spacing_s = len(self._waiting) / settings.max_slices_per_s
        is_full = self._waiting_bytes >= settings.buffer_bytes
        return self._begin_s + (spacing_s if is_full else max(spacing_s, settings.interval_ms / 1000))

    def _plan_look(self) -> None:
        """Called with the lock held."""
        if not self._has_look:
            self._has_look = True
            delay_ms = max(1, min(MAX_LOOK_MS, self._settings().timeout_ms // 2))
            self._scheduler.once("look for late commits", self._look, delay_ms)

    def _look(self) -> None:
        """Fail the appends that have waited too long, as long as any wait."""
        timeout_ms = self._settings().timeout_ms
        with self._lock:
            partitions, last_error = [*self._with_appends.values()], self._last_error
        count = 0
        for partition in partitions:
            error = StoreUnavailableError(
                "the append is in the local log, but was not committed in the object store in time; it may be"
                " committed later: send it again with the same producer and sequence, and look at the store",
                waited_ms=timeout_ms,
                reason="" if last_error is None else str(last_error),
            )
            count += partition.writer.commit_waiters.fail(error, older_than_s=timeout_ms / 1000)
        with self._lock:
            self._stats = self._stats._replace(timeout_count=self._stats.timeout_count + count)
            for tip, partition in [*self._with_appends.items()]:
                if partition.writer.commit_waiters.count == 0:
                    del self._with_appends[tip]
            self._has_look = False
            if self._with_appends and self._stopping is None:
                self._plan_look()

    def _take_turn(self) -> None:
        """Commit what waits."""
        with self._lock:
            self._turn_task = None
            if self._is_running or self._stopping is not None:
                return
            if self._next_s() > self._clock.monotonic_s() + _TOLERANCE_S:
                # More partitions wait by now.
                self._plan_turn()
                return
            partitions = [*self._waiting.values()]
            self._waiting.clear()
            self._waiting_bytes = 0
            self._is_running = True
            self._begin_s = self._clock.monotonic_s()
        left: Collection[HostedPartition] = partitions
        failure: Exception | None = None
        try:
            with self._passes.turn(PASS_NAME) as turn:
                left, turn.outcome = self._commit(partitions)
        except Exception as error:  # noqa: BLE001 - `turn` has logged it, and the appends wait for the next try
            failure = error
            left = self._left_after(error, partitions)
        self._end_turn(left, failure)

    def _end_turn(self, left: Collection[HostedPartition], failure: Exception | None) -> None:
        with self._lock:
            self._is_running = False
            self._last_error = failure
            self._failure_count = 0 if failure is None else self._failure_count + 1
            pause_s = self._settings().interval_ms / 1000 * 2.0 ** min(self._failure_count, 20)
            self._earliest_s = self._clock.monotonic_s() + min(MAX_PAUSE_S, pause_s)
            if left and not self._waiting:
                self._waiting_since_ms = self._clock.now_ms()
            for partition in left:
                self._waiting.setdefault(partition.topic_id_partition, partition)
            if self._stopping is None:
                self._plan_turn()

    def _left_after(
        self, error: Exception, partitions: Sequence[HostedPartition]
    ) -> Collection[HostedPartition]:
        """The partitions to try again after a turn that failed as a whole."""
        if isinstance(error, NotOwnerError | StoppingError):
            _fail(partitions, _stopping() if isinstance(error, StoppingError) else error)
            return ()
        return partitions

    def _commit(self, partitions: Sequence[HostedPartition]) -> tuple[list[HostedPartition], PassOutcome]:
        """Fsync and upload the tails, and answer the appends; returns the partitions with more to commit.
        Raises NotOwnerError, StoreError, DataDirectoryError, StoppingError."""
        epoch = self._shard.leader_epoch()
        failures: list[LogStoreError] = []
        ready = [one for one in partitions if _flush(one, failures)]
        uploadable = [one for one in ready if may_upload(one)]
        candidates = [candidate_of(self._catalog, one, is_tail=True) for one in uploadable]
        try:
            report = self._uploader.upload(candidates, epoch=epoch, on_object=self._counter())
        except NotOwnerError:
            self._shard.refresh()
            raise
        except OSError as failure:
            raise scratch_error(failure) from failure
        self._fail_damaged(report, uploadable)
        for partition in ready:
            # Another upload may have committed it.
            partition.note_commit()
        failures += [failed.error for failed in report.failed]
        uploaded = Uploaded(report.object_count, report.slice_count, report.data_bytes)
        outcome = upload_outcome(uploaded, failures, (one.reason for one in report.refused))
        failed = {one.topic_partition for one in report.failed}
        # What the upload did not get is kept for it, so it goes on asking, also if nothing waits any more.
        left = [
            one
            for one in ready
            if one.topic_partition not in failed
            and (one.topic_partition in report.left_out or _has_more(one))
        ]
        return left, outcome

    def _counter(self) -> Callable[[UploadReport], None]:
        """Counts what a turn has committed, after each of its objects."""
        before = self._stats

        def count(report: UploadReport) -> None:
            with self._lock:
                self._stats = self._stats._replace(
                    object_count=before.object_count + report.object_count,
                    slice_count=before.slice_count + report.slice_count,
                    data_bytes=before.data_bytes + report.data_bytes,
                )

        return count

    def _fail_damaged(self, report: UploadReport, partitions: Sequence[HostedPartition]) -> None:
        """Answer the appends to partitions that cannot be committed now."""
        by_name = {partition.topic_partition: partition for partition in partitions}
        for failed in report.failed:
            by_name[failed.topic_partition].writer.commit_waiters.fail(failed.error)
        for refused in report.refused:
            if refused.reason == NOT_AT_TIERED_END:
                # A deletion of records has overtaken the object; the next turn begins at the new log start.
                continue
            partition = by_name[refused.topic_partition]
            error = PreconditionFailedError(
                "the metadata of the object store refused the records of the append: " + refused.reason,
                **refused.topic_partition.error_fields,
                object=refused.object_name,
            )
            partition.writer.commit_waiters.fail(error)


def _stopping() -> StoppingError:
    return StoppingError(
        "the server is stopping, and it is not known whether the append gets into the object store; send it"
        " again with the same producer and sequence"
    )


def commit_backlog(commits: Iterable[TailCommits]) -> Backlog:
    """The partitions that wait for their next commit, of all shards."""
    found = [one.backlog for one in commits]
    return Backlog(
        sum(one.count for one in found),
        sum(one.size_bytes for one in found),
        oldest_ms=min((one.oldest_ms for one in found if one.count), default=-1),
    )


def _flush(partition: HostedPartition, failures: list[LogStoreError]) -> bool:
    """Fsync the log; returns False if nothing of the partition can be committed, and its appends have
    failed."""
    try:
        partition.ensure_served()
        partition.log.flusher.flush()
    except NotOwnerError:
        raise
    except UnknownTopicOrPartitionError as error:
        partition.writer.commit_waiters.fail(error)
        return False
    except LogStoreError as error:
        failures.append(error)
        partition.writer.commit_waiters.fail(error)
        return False
    return True


def _has_more(partition: HostedPartition) -> bool:
    """Whether the partition is in the next turn, too. What consumers wait for while uploads are paused is
    asked for once the pause ends."""
    if partition.writer.commit_waiters.count:
        return True
    return partition.has_waiting_tail and may_upload(partition)


def _fail(partitions: Sequence[HostedPartition], error: Exception) -> None:
    for partition in partitions:
        partition.writer.commit_waiters.fail(error)
