"""The uploader: copies rolled segments of many partitions into object files and commits them.

One pass:

1. Put on record what only the local disks know (`local_beginnings`). This is the only place that does so:
   nothing is on its way, and the outcome of each commit is known, so no gap overtakes an object.
   Then read the end of each partition's tiered part from the shard's state, and from the log the segments
   behind it that are rolled and fsynced. The log keeps them until the pass ends. A pass needs nothing of the
   one before, so nothing can be forgotten.
2. Plan the next object (`upload_plan`): partitions take turns, so that no backlog starves the others. An
   object waits until it would be full or its oldest records have waited long enough.
3. Prove the headers of each segment by its seal. Copy batches, each proved by its checksum, into the object.
   Its slices ascend.
4. PUT it under a fresh name, beside a few others. After an unknown outcome, send the same bytes under the
   same name again. After a few attempts the name is given up for ever; the object, if it landed, is an
   orphan.
5. Commit the objects in the order in which they were built, all that are stored by then at once. The commit
   judges each slice; only accepted slices count as tiered.
6. Tell the logs their new tiered end, so that local retention may delete segments.

The order of the commits is what allows a partition in several objects on their way: each slice begins where
the one before it ends. If an object fails, those behind it that have a partition in common with it are given
up with it, and nothing more is built.

While the last pass is one that the store has failed, the next one first reads the head, and builds nothing
before the store answers. Then it sends one object alone, until the first commit: a store that answers reads
may still refuse to be written to.

A crash before 5 leaves orphans. After 5 everything is committed, and the next pass begins behind it.

A shard has two uploaders: one for rolled segments, the other for the tails of logs that callers wait for.
They share `UploadTurns`, so a partition is with one of them at a time. Of tails only the producers at the
tiered end are remembered, as a short cut.

A pass over tails goes on with what is fsynced while its objects are on their way (`more`), also while it
waits for one of them (`note_more`): the store gets several at once then. A partition may come again: its next
slice begins where the last one ends, whether that is committed yet or not.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TypeVar

from stratalog.base.clock import Clock
from stratalog.base.disk_calls import DIRECT_DISK_CALLS, DiskCalls
from stratalog.base.errors import (
    DataDirectoryError,
    LogStoreError,
    OverloadedError,
    StoreError,
    StoreUnavailableError,
)
from stratalog.base.scheduler import RunBeside
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.log.unified_log import UnifiedLog
from stratalog.objectstore.protocol import ObjectStore
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.object_writer import FinishedObject, ObjectWriter, ObjectWriterSettings
from stratalog.remote.objects.repeated_put import PutAttempts
from stratalog.remote.tier.followed_producers import FollowedProducers
from stratalog.remote.tier.local_beginnings import commit_local_beginnings
from stratalog.remote.tier.object_builder import BrokenCopyError, ObjectBuilder, ObjectRoom
from stratalog.remote.tier.object_put import ObjectPut, PutSettings
from stratalog.remote.tier.partition_upload import (
    PartitionUpload,
    UploadCandidate,
    in_log,
    upload_error,
)
from stratalog.remote.tier.upload_budget import UploadBudget
from stratalog.remote.tier.upload_history import UploadHistory
from stratalog.remote.tier.upload_pass import UploadPass, log_directory
from stratalog.remote.tier.upload_plan import (
    is_object_due,
    plan_object,
    pressed_directories,
)
from stratalog.remote.tier.upload_report import FailedUpload, RefusedUpload, UploadReport
from stratalog.remote.tier.upload_turns import UploadTurns
from stratalog.remote.tier.uploader_settings import UploaderSettings

Result = TypeVar("Result")

_LOOK_S = 0.5
"""Time between two looks for memory that uploads of other shards have on a full disk."""
SETTLE_TRY_COUNT = 4
"""Looks at the head after a commit of unknown outcome, before its partitions wait for the next pass."""
FIRST_COMMIT_RETRY_S = 20.0
"""The wait of passes after the second commit in a row that failed; it doubles with each."""
MAX_COMMIT_RETRY_S = 300.0


@dataclasses.dataclass(frozen=True, slots=True)
class UploadedShard:
    """The shard of an uploader, and its part of the shard's uploads. Immutable."""

    metadata: MetadataLog
    turns: UploadTurns
    """Shared with the other uploader of the shard."""
    budget: UploadBudget
    """Shared with the other shards. The one of segments owes what tails send."""
    has_precedence: bool = False
    """The other one gives way."""
    disk: DiskCalls = DIRECT_DISK_CALLS
    """Reads the logs, so that a disk that hangs ends the uploads of its own logs only."""


class Uploader:
    """Uploads sealed segments, or tails, of a shard's partitions. Thread-safe: `_lock` admits one pass at a
    time; logs, metadata and turns have locks of their own."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        run_beside: RunBeside,
        stop: StopSignal,
        shard: UploadedShard,
        builder: ObjectBuilder,
        settings: Callable[[], UploaderSettings],
    ) -> None:
        """`run_beside` runs the sending of objects. `stop` ends a pass before its next read of a log; `store`
        may look at it, too. `settings` is asked by each pass."""
        self._run_beside = run_beside
        self._store = store
        self._clock = clock
        self._metadata = shard.metadata
        self._turns = shard.turns
        self._has_precedence = shard.has_precedence
        self._disk = shard.disk
        self._stop = stop
        self._builder = builder
        self._settings = settings
        self._lock = threading.Lock()
        self._is_settled = True
        self._store_failure: StoreError | None = None
        """The error of the last pass if the store has failed it, and nothing was committed since."""
        self._retry_delay_s = 0.0
        """The wait of passes after the next commit that fails; none behind a success."""
        self._retry_at_s = 0.0
        """The monotonic time at which the next pass by itself is due."""
        self._uploading: list[UnifiedLog] = []
        """Logs with uploads of which a commit may come."""
        self._taken: set[TopicIdPartition] = set()
        """The partitions that no other uploader may have."""
        self._followed = FollowedProducers()
        self._budget = shard.budget
        self._history = UploadHistory(clock)
        self._places: dict[int, ObjectPut] = {}
        """The objects that exist, by the place of their spool."""
        self._awaited: ObjectPut | None = None
        """The object that the pass waits for."""
        self._has_more = False
        """`more` has not been called since `note_more`."""

    def upload(
        self,
        candidates: Sequence[UploadCandidate],
        *,
        epoch: int,
        idle_logs: Sequence[UnifiedLog] = (),
        stop: StopSignal | None = None,
        on_object: Callable[[UploadReport], None] = lambda _: None,
        more: Callable[[], Sequence[UploadCandidate]] = tuple,
        is_urgent: bool = True,
    ) -> UploadReport:
        """Upload what is ready, under the epoch that this process has claimed. Calls `on_object` after each
        commit, with the report up to then. Of `idle_logs` nothing is uploaded, but what their disks have lost
        is put on record, too. `more` is called between two objects, and after `note_more`, and returns
        candidates that have become ready meanwhile, or have more by now.

        If it `is_urgent`, everything that is ready is uploaded, and partitions that the shard's other
        uploader has are waited for. Otherwise data waits for others to fill an object, partitions that failed
        are left alone for a while, and so are those with the other uploader, and the pass is bounded. An
        uploader with precedence waits for none: the report says what it did not get. The other one ends its
        pass for it, with `has_more`.

        When it returns, everything that the report counts is committed and the logs know it. A partition
        that cannot be read is reported and does not hold up the others. Raises NotOwnerError if the shard
        has another owner, StoreError (a later pass goes on where this one stopped), OSError if the
        spool's disk fails, OverloadedError if the disk is full and other shards keep the memory of uploads,
        StoppingError once the stop signal is set: `stop`, or else that of the constructor. Committed objects
        stay.
        """
        with self._lock:
            one = UploadPass(
                epoch, stop or self._stop, self._settings(), on_object, more, is_urgent=is_urgent
            )
            self._budget.limit(one.settings.max_bytes_per_s, one.settings.max_requests_per_s)
            with ExitStack() as undo:
                undo.callback(self._end_in_logs)
                undo.callback(self._settle_soon, one)
                undo.callback(self._budget.end_sending, self._metadata.shard)
                undo.callback(one.give_up)
                undo.callback(self._keep_producers, one)
                try:
                    self._settle()
                    self._require_patience(one)
                    self._begin(candidates, one, idle_logs)
                    self._run(one)
                except StoreError as failure:
                    self._store_failure = failure
                    raise
            self._store_failure = None
            return one.report

    def note_more(self) -> None:
        """Let a pass that waits for the store call `more` now. Any thread."""
        # The pass names the object first, and looks at the flag then: one of both sees the other.
        self._has_more = True
        awaited = self._awaited
        if awaited is not None:
            awaited.nudge()

    def last_success_ms(self, tip: TopicIdPartition) -> int:
        """Wall time of the last commit with records of the partition since the start; -1 if there was none.
        Never waits."""
        return self._history.last_success_ms(tip)

    def failure_of(self, tip: TopicIdPartition) -> LogStoreError | None:
        """Why the last try to upload the partition failed, by its own fault or the store's; None if it did
        not. Never waits."""
        return self._store_failure or self._history.failure_of(tip)

    def _take_turns(self, candidates: Sequence[UploadCandidate], one: UploadPass) -> list[UploadCandidate]:
        """The candidates that no other uploader has. Raises StoppingError."""
        tips = [candidate.topic_id_partition for candidate in candidates]
        if self._has_precedence:
            taken = self._turns.take_first(tips, self)
        elif one.is_urgent:
            # Noted first: those that are taken are released if the wait ends early.
            self._taken.update(tips)
            self._turns.take_all(tips, self, one.stop)
            taken = set(tips)
        else:
            taken = self._turns.take(tips, self)
        self._taken |= taken
        if self._has_precedence:
            one.left_out = {
                candidate.topic_id_partition: candidate
                for candidate in candidates
                if candidate.topic_id_partition not in taken
            }
            one.report.left_out = {candidate.log.topic_partition for candidate in one.left_out.values()}
            one.report.has_more = bool(one.left_out)
        return [candidate for candidate in candidates if candidate.topic_id_partition in taken]

    def _release(self, tips: Collection[TopicIdPartition]) -> None:
        self._turns.release(tips, self)
        self._taken.difference_update(tips)

    def _keep_producers(self, one: UploadPass) -> None:
        for tip, upload in one.tails.items():
            producers = upload.producers
            # A pass that ended inside of a slice has followed batches that the next one follows again.
            if producers is not None and upload.error is None and producers.offset == upload.next_offset:
                self._followed.keep(tip, producers)

    def _settle(self) -> None:
        """Find out what became of the last commit, and after a failure whether the store answers. Raises
        StoreError."""
        if self._store_failure is not None or not self._is_settled:
            self._metadata.refresh()
            self._is_settled = True
            self._end_in_logs()

    def _require_patience(self, one: UploadPass) -> None:
        """Raise the failure of the last commit while the next pass by itself is not due. A store that takes
        objects and no commits, because of a policy for the head, would get an orphan from each."""
        if self._store_failure is None or one.is_urgent:
            return
        if self._clock.monotonic_s() < self._retry_at_s:
            raise self._store_failure

    def _note_refused_commit(self) -> None:
        # Not behind the first one, which may be a moment's trouble.
        self._retry_at_s = self._clock.monotonic_s() + self._retry_delay_s
        self._retry_delay_s = min(max(2 * self._retry_delay_s, FIRST_COMMIT_RETRY_S), MAX_COMMIT_RETRY_S)

    def _settle_soon(self, one: UploadPass) -> None:
        """Find out now what became of the last commit, by a few tries, so that its partitions do not wait for
        the next pass."""
        for attempt in range(SETTLE_TRY_COUNT):
            if self._is_settled or one.stop.is_set:
                return
            try:
                self._settle()
            except LogStoreError:
                self._clock.sleep(one.settings.put_backoff_ms * 2**attempt / 1000)

    def _end_in_logs(self) -> None:
        """Tell the logs that nothing of them is on its way."""
        for log in self._uploading:
            self._end_in_log(log, is_settled=self._is_settled)
        if self._is_settled:
            self._uploading.clear()
            self._turns.release(self._taken, self)
            self._taken.clear()

    def _end_in_log(self, log: UnifiedLog, *, is_settled: bool) -> None:
        # If the disk hangs, the log keeps its segments until the end of a later upload.
        with suppress(DataDirectoryError):
            self._in_log(log, lambda: log.end_upload(is_settled=is_settled))

    def _in_log(self, log: UnifiedLog, work: Callable[[], Result]) -> Result:
        return in_log(self._disk, log, work)

    def _begin(
        self, candidates: Sequence[UploadCandidate], one: UploadPass, idle_logs: Sequence[UnifiedLog] = ()
    ) -> None:
        """Begin the uploads of candidates of which nothing is on its way. Raises NotOwnerError, StoreError,
        StoppingError."""
        mine = self._take_turns(candidates, one)
        idle = self._turns.take(map(_tip_of, idle_logs), self)
        self._taken |= idle
        logs = [*(candidate.log for candidate in mine), *(log for log in idle_logs if _tip_of(log) in idle)]
        refusals = commit_local_beginnings(self._metadata, logs, one.epoch)
        self._release(idle)
        # Why a loss before the data of a partition could not be put on record.
        refused_gaps = {refusal.partition: refusal.reason for refusal in refusals}
        state = self._metadata.state()
        if not one.is_urgent:
            self._history.keep_only([candidate.topic_id_partition for candidate in mine])
        for candidate in mine:
            tip = candidate.topic_id_partition
            one.candidates[tip] = candidate
            partition = state.partition(tip)
            if tip in refused_gaps:
                refused = RefusedUpload(candidate.log.topic_partition, "", refused_gaps[tip])
                one.report.refused.append(refused)
                continue
            pausing = None if one.is_urgent else self._history.pausing(tip)
            if pausing is not None:
                self._report_failure(one, candidate, pausing)
                continue
            try:
                # A commit of unknown outcome may have landed after all.
                log, tiered_end_offset = candidate.log, partition.tiered_end_offset
                self._in_log(log, partial(log.update_tiered_end_offset, tiered_end_offset))
                self._uploading.append(log)
                upload = self._in_log(log, partial(self._upload_of, candidate, partition, one))
            except Exception as failure:  # noqa: BLE001 - it is the partition's alone
                error = upload_error(candidate, failure)
                self._history.note_end(tip, error)
                self._report_failure(one, candidate, error)
                continue
            if not upload.is_finished:
                one.uploads[tip] = upload
            elif tip not in one.tails:
                # The other uploader need not wait for a partition without anything to upload.
                self._end_in_log(candidate.log, is_settled=True)
                self._uploading.remove(candidate.log)
                self._release({tip})
        self._note_pressure(one)

    def _upload_of(
        self, candidate: UploadCandidate, partition: TieredPartition, one: UploadPass
    ) -> PartitionUpload:
        """The upload of a candidate. Raises LogStoreError."""
        tip, offset = candidate.topic_id_partition, partition.tiered_end_offset
        if not candidate.is_tail:
            return PartitionUpload(candidate, offset, one.stop, disk=self._disk)
        producers = self._followed.take(tip, offset)
        if producers is not None:
            producers.note_log_start(partition.log_start_offset)
        one.tails[tip] = upload = PartitionUpload(candidate, offset, one.stop, producers, self._disk)
        return upload

    def _join(self, one: UploadPass) -> None:
        """Take up what has become ready since the pass began. Raises as `_begin` does."""
        self._has_more = False
        if one.failure is not None:
            return
        found = {candidate.topic_id_partition: candidate for candidate in one.more()}
        fresh = {tip: candidate for tip, candidate in found.items() if tip not in one.candidates}
        if fresh:
            self._begin([*(one.left_out | fresh).values()], one)
        for tip in found.keys() - fresh.keys():
            upload = one.tails.get(tip)
            if upload is not None and one.may_extend(upload):
                try:
                    self._in_log(upload.candidate.log, upload.extend)
                except Exception as failure:  # noqa: BLE001 - it is the partition's alone
                    upload.error = upload_error(upload.candidate, failure)
                one.uploads[tip] = upload
        self._end_uploads(one)

    def _note_pressure(self, one: UploadPass) -> None:
        """Note which log directories are short of free space."""
        waiting_bytes: dict[str, int] = {}
        for upload in one.uploads.values():
            path = log_directory(upload)
            waiting_bytes[path] = waiting_bytes.get(path, 0) + upload.waiting_bytes
        free_bytes = {path: self._builder.free_bytes(path) for path in waiting_bytes}
        least_bytes = max(one.settings.max_object_bytes, one.settings.short_below_bytes)
        one.pressed = pressed_directories(waiting_bytes, free_bytes, least_bytes)

    def _run(self, one: UploadPass) -> None:
        """Build, send and commit objects until nothing is left to do. Raises as `upload` does."""
        while True:
            self._join(one)
            while len(one.puts) >= self._most_puts(one):
                self._commit_oldest(one)
            put = self._build_next(one)
            if put is not None:
                one.puts.append(put)
                self._run_beside(put.run)
            elif not one.puts:
                break
            else:
                self._await_oldest(one)
            if one.puts[0].is_done or (put is None and not self._has_more):
                self._commit_oldest(one)
        if one.failure is not None:
            raise one.failure

    def _most_puts(self, one: UploadPass) -> int:
        """The objects that may be on their way now."""
        if not one.puts or self._store_failure is not None:
            return 1
        return self._budget.object_count(self._metadata.shard, one.settings.put_count)

    def _await_oldest(self, one: UploadPass) -> None:
        """Wait for the oldest object, or until there is more to upload."""
        self._awaited = one.puts[0]
        try:
            self._awaited.wait_while(lambda: not self._has_more)
        finally:
            self._awaited = None

    def _build_next(self, one: UploadPass) -> ObjectPut | None:
        """The next object that is worth it; None if there is none now."""
        settings = one.settings
        while one.uploads and one.failure is None:
            one.stop.check()
            if self._turns.is_wanted(self):
                one.report.has_more = True
                return None
            waiting = one.waiting()
            if not one.is_urgent:
                if not is_object_due(waiting, settings.max_object_bytes, self._clock.now_ms()):
                    return None
                if one.is_bounded:
                    one.report.has_more = True
                    return None
            spool = self._builder.spool(self._free_place(one))
            room = self._room(one, spool)
            if room is None:
                return None
            with room:
                shares = plan_object(waiting, room.object_bytes)
                begins = {share.topic_id_partition: one.begin_of(share) for share in shares}
                try:
                    writer = self._builder.build(
                        shares,
                        one.uploads,
                        spool,
                        epoch=one.epoch,
                        room=room,
                        read_bytes=settings.read_bytes,
                    )
                except BrokenCopyError as broken:
                    writer = None
                    one.begin_again(begins, broken)
                self._end_uploads(one)
                if writer is not None:
                    one.built_count += 1
                    return self._put_of(writer, one)
        return None

    def _room(self, one: UploadPass, spool: ObjectWriterSettings) -> ObjectRoom | None:
        """Room for the next object; None if the disk is full, and objects of this pass on their way have the
        memory that it needs. Waits for those of other shards. Raises OverloadedError if they take too long,
        StoppingError."""
        object_bytes, begin_s = one.settings.max_object_bytes, self._clock.monotonic_s()
        while True:
            room = self._builder.room(spool, object_bytes)
            if one.puts and (room is None or room.object_bytes < object_bytes):
                if room is not None:
                    room.end()
                return None
            if room is not None:
                return room
            one.stop.check()
            waited_s = self._clock.monotonic_s() - begin_s
            if waited_s >= one.settings.stall_ms / 1000:
                raise OverloadedError(
                    "the disk has no room for scratch files, and uploads of other shards have had the memory"
                    " for too long; free space on the disk, or find out why the store does not answer",
                    directory=spool.spool_directory,
                    waited_s=round(waited_s),
                )
            self._clock.sleep(_LOOK_S)

    def _put_of(self, writer: ObjectWriter, one: UploadPass) -> ObjectPut:
        settings = one.settings
        put = ObjectPut(
            self._clock,
            self._store,
            self._metadata.layout,
            writer,
            self._budget,
            one.stop,
            PutSettings(PutAttempts(settings.put_attempts, settings.put_backoff_ms), settings.stall_ms),
        )
        self._places[self._free_place(one)] = put
        return put

    def _free_place(self, one: UploadPass) -> int:
        """The first place without an object. Raises StoreUnavailableError if as many objects as may be on
        their way were given up and hang still: each has a thread and memory."""
        for place, put in list(self._places.items()):
            if put not in one.puts and not put.is_lingering:
                del self._places[place]
        lingering_count = sum(put.is_lingering for put in self._places.values())
        if lingering_count >= one.settings.put_count:
            raise StoreUnavailableError(
                "earlier uploads hang in their requests, and nothing more is sent before one of them ends;"
                " find out why the store does not answer; a restart helps only once it does",
                hanging=lingering_count,
                store=self._store.url,
            )
        return next(place for place in itertools.count() if place not in self._places)

    def _end_uploads(self, one: UploadPass) -> None:
        """Let go of the partitions of which everything was copied, or which failed."""
        for tip, upload in list(one.uploads.items()):
            if upload.is_finished:
                del one.uploads[tip]
                if upload.error is not None:
                    upload.error = upload_error(upload.candidate, upload.error)
                self._history.note_end(tip, upload.error)
                if upload.error is not None:
                    self._report_failure(one, upload.candidate, upload.error)

    def _report_failure(self, one: UploadPass, candidate: UploadCandidate, error: LogStoreError) -> None:
        last_success_ms = self._history.last_success_ms(candidate.topic_id_partition)
        one.report.failed.append(FailedUpload(candidate.log.topic_partition, error, last_success_ms))

    def _commit_oldest(self, one: UploadPass) -> None:
        """Wait for the oldest object; commit it, and those behind it that are stored by then."""
        stored: list[ObjectPut] = []
        with ExitStack() as ended:
            while one.puts and (not stored or one.puts[0].is_done):
                put = one.puts.popleft()
                ended.callback(put.close)
                tips = {entry.topic_id_partition for entry in put.finished.entries}
                try:
                    if one.lost.isdisjoint(tips):
                        put.wait()
                        stored.append(put)
                        continue
                except StoreError as error:
                    one.failure = one.failure or error
                one.lost |= tips
            if stored:
                self._commit([put.finished for put in stored], one)

    def _commit(self, objects: Sequence[FinishedObject], one: UploadPass) -> None:
        self._budget.take_request(self._metadata.shard, one.stop.check)
        # Until the outcome is known the tiered ends may be old, and a pass would send the same records again.
        self._is_settled = False
        additions = [(finished.ref, finished.entries) for finished in objects]
        try:
            outcome = self._metadata.add(additions, one.epoch)
        except StoreError:
            self._note_refused_commit()
            raise
        self._is_settled, self._store_failure, self._retry_delay_s = True, None, 0.0
        state, report = self._metadata.state(), one.report
        refused = {(name, tip): reason for name, tip, reason in outcome.refused}
        answers: list[tuple[UploadCandidate, str | None]] = []
        for ref, entries, _ in objects:
            if any((ref.name, entry.topic_id_partition) not in refused for entry in entries):
                report.object_names.append(ref.name)
                report.object_bytes += ref.size_bytes
            for entry in entries:
                tip = entry.topic_id_partition
                log = one.candidates[tip].log
                knows_end = self._tell_end(log, state.partition(tip).tiered_end_offset)
                reason = refused.get((ref.name, tip))
                if reason is None:
                    report.slice_count += 1
                    report.data_bytes += entry.data_bytes
                    self._history.note_success(tip)
                elif tip not in one.refused:
                    # The slices behind it do not begin at the tiered end either: the next pass uploads them.
                    one.refused.add(tip)
                    one.uploads.pop(tip, None)
                    report.refused.append(RefusedUpload(log.topic_partition, ref.name, reason))
                if knows_end:
                    answers.append((one.candidates[tip], reason))
        # Partitions take turns to be the first one: its callers send more first.
        first = state.seq % max(1, len(answers))
        for candidate, reason in (*answers[first:], *answers[:first]):
            candidate.on_tiered(reason)
        one.on_object(report)

    def _tell_end(self, log: UnifiedLog, tiered_end_offset: int) -> bool:
        """Tell the log its tiered end; False if its disk hangs: a later upload begins with that. Raises
        DataDirectoryError if the log is not the one that was uploaded."""
        try:
            self._in_log(log, partial(log.update_tiered_end_offset, tiered_end_offset))
        except DataDirectoryError:
            if not self._disk.is_silent(log.local_log.log_dir):
                raise
            return False
        return True


def _tip_of(log: UnifiedLog) -> TopicIdPartition:
    return TopicIdPartition(log.topic_id, log.topic_partition.partition)
