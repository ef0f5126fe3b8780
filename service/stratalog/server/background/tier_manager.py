"""Moves data between the tiers and out of them: uploads, retention, deletion, compaction, folding.

Each pass looks at the current state and does what is due, and remembers nothing: the next pass makes up for a
failed one. `PassRegistry` logs and keeps the outcomes. `PassRounds` keeps the shards of a pass apart, and
`DiskCalls` the log directories; a shard that another server has taken over is left out.

Deletion always goes in this order: the log start is committed, then local segments are deleted, then, after
the grace, objects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from stratalog.base.clock import Clock
from stratalog.base.disk_calls import DiskCalls
from stratalog.base.errors import (
    InvalidRequestError,
    LogStoreError,
    NotOwnerError,
    PreconditionFailedError,
    StoppingError,
    StoreCorruptError,
    StoreError,
)
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import Durability, TopicPartition
from stratalog.log.unified_log import UnifiedLog
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.retention.remote_retention import ExplainedPartition, RetentionReport
from stratalog.remote.tier.collector import CollectReport
from stratalog.remote.tier.upload_plan import WaitingTail, tails_to_roll
from stratalog.remote.tier.upload_report import RefusedUpload
from stratalog.server.background.pass_outcome import Backlog, PassOutcome
from stratalog.server.background.pass_rounds import PassRounds, unless_fenced
from stratalog.server.background.shard_tier import ShardTier
from stratalog.server.background.tail_commits import TailCommits
from stratalog.server.background.tier_drops import TierDrops
from stratalog.server.background.tier_outcomes import (
    collection_outcome,
    refused_error,
    retention_outcome,
    upload_outcome,
)
from stratalog.server.background.upload_candidate import candidate_of, may_upload
from stratalog.server.background.upload_tracker import UploadTracker
from stratalog.server.operations.operation import Operation
from stratalog.server.operations.operation_results import FailedPartition, Uploaded
from stratalog.server.partitions.foreign_shard import ForeignShard
from stratalog.server.partitions.hosted_partition import HostedPartition
from stratalog.server.partitions.hosted_shard import HostedShard
from stratalog.server.partitions.partition_registry import HostedTopic, PartitionRegistry
from stratalog.server.partitions.scratch_space import scratch_error
from stratalog.server.topics.topic_manager import FollowedCatalog, TopicManager

R = TypeVar("R")

PASS_S = 60.0
"""Time after which a pass of uploads ends, even if more is due."""
LOG_WORK_S = 5.0
"""Time after which a pass leaves the other logs of a slow directory to the next one."""
UPLOAD_TRY_COUNT = 3
"""Tries of an upload that a caller waits for, while the metadata moves under each of them."""
COLLECTION_HANG_S = 1800.0
"""A collector deletes dropped files for four minutes (`CollectorSettings.max_pass_ms`), and has other work,
too."""


class _Pass(NamedTuple):
    """The result of a pass of the uploader, and the failures of single partitions."""

    uploaded: Uploaded
    failures: list[LogStoreError]
    refused: list[RefusedUpload]
    """Slices that the metadata refused because it had moved; the next pass tries again."""
    has_more: bool
    """More is due now."""

    def plus(self, later: _Pass) -> _Pass:
        """Both together."""
        return _Pass(
            self.uploaded.plus(later.uploaded),
            self.failures + later.failures,
            self.refused + later.refused,
            self.has_more or later.has_more,
        )


class TierWaits(NamedTuple):
    """The parts that wait for what may hang, so that the rest goes on. Thread-safe."""

    rounds: PassRounds[int]
    """Keeps the shards of a pass apart."""
    disk_calls: DiskCalls
    """Waits for the disks of log directories."""


class TierManager:
    """The background work on the tiered partitions of one server. Thread-safe: the components are, and two
    looks at the heads at once wake readers twice. Every method may take the network for long.
    """

    def __init__(
        self,
        clock: Clock,
        catalog: Catalog,
        tiers: Iterable[ShardTier],
        registry: PartitionRegistry,
        topics: TopicManager,
        waits: TierWaits,
        foreign: Sequence[ForeignShard] = (),
    ) -> None:
        """`foreign`: the shards of other servers, whose owners it follows."""
        self._clock = clock
        self._catalog = catalog
        self._tiers = tuple(tiers)
        self._registry = registry
        self._topics = topics
        self._rounds = waits.rounds
        self._disk_calls = waits.disk_calls
        self._foreign = tuple(foreign)
        self.drops = TierDrops(registry, topics, self._tiers, waits.rounds)
        self._shown_seqs = [tier.shard.metadata.state().seq for tier in self._tiers]
        """For each shard the newest commit that has woken the readers of a followed one. The pass does not go
        by its own look alone: a reader that misses an object reads the head, too."""

    @property
    def commits(self) -> list[TailCommits]:
        """The commits of waiting tails, of each shard."""
        return [tier.uploads.tails for tier in self._tiers]

    def upload(self, topics: Collection[str], operation: Operation, *, delete_local: bool) -> PassOutcome:
        """`upload_now` as an operation."""
        return upload_outcome(self.upload_now(topics, delete_local=delete_local, operation=operation))

    def upload_now(
        self, topics: Collection[str], *, delete_local: bool, operation: Operation | None = None
    ) -> Uploaded:
        """Roll the active segments of the named topics (all if none is named) and upload the rolled ones.

        All partitions are tried, then the first failure is raised, with the result of the others in its
        fields. A partition that is offline or on a failed disk, or that another server has taken over, fails
        if its topic is named, and is left out otherwise; so is a topic whose uploads are paused or switched
        off, which raises InvalidRequestError if it is named. Raises UnknownTopicOrPartitionError,
        NotOwnerError, also if other servers own all shards, StoreError, DataDirectoryError;
        PreconditionFailedError if the metadata moved under each of a few tries; StoppingError between two
        objects or reads.
        """
        tracker = UploadTracker(operation, [] if topics else self._unserved())
        named = [self._registry.topic(name) for name in topics]
        for topic in named:
            _require_uploads(topic)
        self._require_a_shard()
        partitions = self._tiered_partitions(topics)
        failures = [offline.error() for topic in named for offline in topic.offline_partitions]
        failures += [failed.failure for topic in named for failed in topic.failed_partitions]
        for shard in {one.shard for topic in named for one in topic.partitions}:
            _collect(failures, shard.leader_epoch)
        uploading = [one for one in partitions if may_upload(one)]
        tracker.check()
        self._each_log(uploading, UnifiedLog.roll, failures, tracker)
        last = self._upload(uploading, tracker)
        uploaded = last.uploaded
        refused_count = 0
        # A pass ends early for a tail that callers wait for.
        while last.has_more or (last.refused and refused_count < UPLOAD_TRY_COUNT - 1):
            refused_count += bool(last.refused)
            last = self._upload(uploading, tracker)
            uploaded = uploaded.plus(last.uploaded)
        failures += [*last.failures, *map(refused_error, last.refused)]
        deleted_count = self._delete_local(partitions, failures, tracker) if delete_local else 0
        uploaded = uploaded._replace(local_segments_deleted=deleted_count)
        if failures:
            raise _with_what_was_uploaded(failures[0], uploaded)
        return uploaded

    def _delete_local(
        self, partitions: Collection[HostedPartition], failures: list[LogStoreError], tracker: UploadTracker
    ) -> int:
        """Delete the local segments that the store has, and return their number. Those of a shard stay where
        the store may have lost them, by looks at its head and at the catalog now. Notes the failures. Raises
        StoppingError."""
        counts: list[int] = []
        # A store that does not answer has lost nothing.
        with suppress(StoreError):
            self._topics.follow_catalog()
        for shard in {one.shard for one in partitions}:
            with suppress(StoreError):
                shard.refresh()
            if shard.contact.may_have_lost_data:
                failures.append(_last_copies(shard))
        partitions = [one for one in partitions if not one.shard.contact.may_have_lost_data]

        def delete(log: UnifiedLog) -> None:
            counts.append(log.retention.delete_local_segments(ignore_retention=True))

        try:
            self._each_log(partitions, delete, failures, tracker)
        finally:
            tracker.note_deleted(sum(counts))
        return sum(counts)

    def upload_pass(self) -> PassOutcome:
        """Upload what is due, periodically: roll the active segments whose records have waited long enough,
        then upload rolled segments. While more is due, each shard goes on for a minute. The next pass tries
        again what could not be uploaded.
        """
        done = self._rounds.run("upload", self._works(self._upload_due))
        whole = _Pass(Uploaded(), [], [], has_more=False)
        for one in done.results.values():
            whole = whole if one is None else whole.plus(one)
        outcome = upload_outcome(whole.uploaded, whole.failures, (one.reason for one in whole.refused))
        return outcome._replace(failed_shards=done.failures)

    def _works(self, work: Callable[[ShardTier], R]) -> Mapping[int, Callable[[], R | None]]:
        """The work on each shard that this server owns, by number."""
        return {
            tier.shard.metadata.shard: unless_fenced(tier, work)
            for tier in self._tiers
            if not tier.shard.is_fenced
        }

    def _require_a_shard(self) -> None:
        """Raise NotOwnerError if other servers own all shards."""
        if all(tier.shard.is_fenced for tier in self._tiers):
            self._tiers[0].shard.leader_epoch()

    def _upload_due(self, tier: ShardTier) -> _Pass:
        end_s = self._clock.monotonic_s() + PASS_S
        whole = _Pass(Uploaded(), [], [], has_more=False)
        while True:
            partitions = [
                one
                for one in self._tiered_partitions((), tier)
                if may_upload(one) and not _is_with_tails(one)
            ]
            failures = self._roll_tails(tier, partitions)
            done = self._upload_of(tier, partitions, UploadTracker(None, []), is_urgent=False)
            # Of failures that last the newest are enough.
            whole = _Pass(
                whole.uploaded.plus(done.uploaded), failures + done.failures, done.refused, done.has_more
            )
            if not done.has_more or self._clock.monotonic_s() >= end_s:
                return whole

    def _roll_tails(self, tier: ShardTier, partitions: Iterable[HostedPartition]) -> list[LogStoreError]:
        """Roll the active segments whose records have waited for their upload long enough; returns the
        failures."""
        partition_of = {one.topic_id_partition: one for one in partitions}
        tails = [
            WaitingTail(tip, since_ms, one.log.local_log.config.copy_age_ms)
            for tip, one in partition_of.items()
            if (since_ms := one.log.reader.tail_since_ms) is not None
        ]
        failures: list[LogStoreError] = []
        due = [partition_of[tip] for tip in tails_to_roll(tails, self._clock.now_ms())]
        self._each_log(due, UnifiedLog.roll, failures)
        return failures

    def remote_retention_pass(self) -> PassOutcome:
        """Move the log start of tiered topics by their retention, if their logs have the catalog's current
        configuration. Raises PreconditionFailedError (another commit saw a newer catalog, which the next pass
        reads), StoreError.
        """
        followed = self._topics.follow_catalog()
        works = self._works(lambda tier: self._retain_in(tier, (), followed))
        done = self._rounds.run("remote-retention", works)
        reports = [report for report in done.results.values() if report is not None]
        return retention_outcome(reports)._replace(failed_shards=done.failures)

    def retain(self, topics: Collection[str], stop: StopSignal) -> list[RetentionReport]:
        """Move the log start of the named tiered topics (all if none is named), as `remote_retention_pass`;
        returns a report for each shard. Raises NotOwnerError if other servers own all shards, and
        StoppingError between two shards; all shards are tried, then the first failure is raised."""
        self._require_a_shard()
        followed = self._topics.follow_catalog()
        reports: list[RetentionReport] = []
        failures: list[LogStoreError] = []
        for retain_in in self._works(lambda tier: self._retain_in(tier, topics, followed)).values():
            stop.check()
            report = _collect(failures, retain_in)
            if report is not None:
                reports.append(report)
        if failures:
            raise failures[0]
        return reports

    def _retain_in(
        self, tier: ShardTier, topics: Collection[str], followed: FollowedCatalog
    ) -> RetentionReport | None:
        """Move log starts of one shard; None if it has no partition of the topics."""
        partitions = _retained_in(tier, followed.topics, topics)
        if not partitions:
            return None
        try:
            report = _retain_partitions(tier, partitions, followed.seq)
        except PreconditionFailedError:
            # One topic was altered, and another actor has used its new configuration. The others are as they
            # were: judge all of them by the catalog of now.
            followed = self._topics.follow_catalog()
            partitions = _retained_in(tier, followed.topics, topics)
            report = _retain_partitions(tier, partitions, followed.seq)
        moved = {advanced.topic_partition for advanced in report.advanced}
        for partition in partitions:
            if partition.topic_partition in moved:
                partition.signal.notify()
        return report

    def explain_retention(
        self, partitions: Collection[HostedPartition]
    ) -> dict[TopicPartition, ExplainedPartition | LogStoreError]:
        """Explain what `retain`, and the deletion of local segments behind it, would do now with those of
        these partitions that are tiered and whose topics the catalog confirms. Changes nothing. Raises
        StoreError, NotOwnerError."""
        confirmed = {topic.topic_id for topic in self._topics.follow_catalog().topics}
        found: dict[TopicPartition, ExplainedPartition | LogStoreError] = {}
        for tier in self._tiers:
            chosen = [
                one
                for one in partitions
                if one.shard is tier.shard
                and one.is_tiered
                and one.topic_id_partition.topic_id in confirmed
                and one.offline() is None
            ]
            if chosen and not tier.shard.is_fenced:
                explained = tier.retention.explain([partition.log for partition in chosen])
                found.update(zip((one.topic_partition for one in chosen), explained, strict=True))
        return found

    def collect_pass(self) -> PassOutcome:
        """Delete what the store no longer needs, in the shards that this server owns. Raises StoreError,
        StoppingError."""
        works = self._works(lambda tier: tier.collector.run())
        done = self._rounds.run("collector", works, hang_s=COLLECTION_HANG_S)
        whole = CollectReport()
        for report in done.results.values():
            whole = whole if report is None else whole.plus(report)
        return collection_outcome(whole)._replace(failed_shards=done.failures)

    def fold_pass(self) -> PassOutcome:
        """Fold the heads that have outgrown their bounds. Raises StoreError."""
        done = self._rounds.run("fold", self._works(lambda tier: tier.shard.metadata.fold_if_needed()))
        folds = [self._catalog.fold_if_needed(), *done.results.values()]
        states = [tier.shard.metadata.state() for tier in self._tiers if not tier.shard.is_fenced]
        return PassOutcome(
            {"heads": sum(seq is not None for seq in folds)},
            backlog=Backlog(sum(state.seq - state.folded_seq for state in states)),
            failed_shards=done.failures,
        )

    def refresh_pass(self) -> PassOutcome:
        """Read the heads, notice another owner, then follow the catalog. Raises StoreError after it has asked
        for every head, and, if none answers, before all else.
        """
        shards: list[HostedShard | ForeignShard] = [*(tier.shard for tier in self._tiers), *self._foreign]
        done = self._rounds.run("head-refresh", {one.metadata.shard: one.refresh for one in shards})
        self._topics.follow_catalog()
        for number, tier in enumerate(self._tiers):
            seq = tier.shard.metadata.state().seq
            if tier.shard.is_followed and seq != self._shown_seqs[number]:
                self._notify_readers(tier)
            self._shown_seqs[number] = seq
        return PassOutcome(failed_shards=done.failures)

    def _notify_readers(self, tier: ShardTier) -> None:
        """Wake the readers of a followed shard, whose head has news."""
        for partition in self._registry.partitions():
            if partition.shard is tier.shard:
                partition.signal.notify()

    def _partitions(self, topics: Collection[str]) -> list[HostedPartition]:
        if not topics:
            return list(self._registry.partitions())
        return [partition for name in topics for partition in self._registry.topic(name).partitions]

    def _tiered_partitions(
        self, topics: Collection[str], tier: ShardTier | None = None
    ) -> list[HostedPartition]:
        """The partitions of these topics, of one shard or of all that this server owns."""
        return [
            one
            for one in self._partitions(topics)
            if one.is_tiered
            and one.offline() is None
            and not one.shard.is_fenced
            and (tier is None or one.shard is tier.shard)
        ]

    def _unserved(self) -> list[FailedPartition]:
        """The partitions that an upload of all topics leaves out."""
        return [
            FailedPartition.offline(one.topic_partition, one.path, one.reason)
            for topic in self._registry.topics()
            if topic.config is None or topic.config.remote_storage_enable
            for one in topic.unserved_partitions
        ]

    def _upload(self, partitions: Collection[HostedPartition], tracker: UploadTracker) -> _Pass:
        """Upload of all shards, one after the other, urgently; returns the failures of partitions and
        shards. Raises StoppingError, and InvalidRequestError and the like for the whole."""
        tracker.begin(partitions)
        whole = _Pass(Uploaded(), [], [], has_more=False)
        for tier in self._tiers:
            chosen = [one for one in partitions if one.shard is tier.shard]
            if not chosen and tier.shard.is_fenced:
                continue
            try:
                whole = whole.plus(self._upload_of(tier, chosen, tracker, is_urgent=True))
            except NotOwnerError as error:
                tier.shard.refresh()
                whole.failures.append(error)
            except StoppingError:
                raise
            except LogStoreError as error:
                whole.failures.append(error)
        return whole

    def _upload_of(
        self,
        tier: ShardTier,
        partitions: Collection[HostedPartition],
        tracker: UploadTracker,
        *,
        is_urgent: bool,
    ) -> _Pass:
        """Fsync rolled segments of a shard and upload them; returns the failures of single partitions. Those
        in a log directory that hangs are left out."""
        failures: list[LogStoreError] = []
        # The bucket never holds what the disk could lose, and appends at `os` leave the fsync to this.
        partitions = self._each_log(partitions, _flush_rolled, failures, tracker if is_urgent else None)
        # Their uploads are paused or switched off, but their disks may have lost records all the same.
        chosen = {one.topic_partition for one in partitions}
        idle = [one.log for one in self._tiered_partitions((), tier) if one.topic_partition not in chosen]
        try:
            report = tier.uploads.segments.upload(
                [candidate_of(self._catalog, one) for one in partitions],
                epoch=tier.shard.leader_epoch(),
                idle_logs=idle,
                stop=tracker.stop,
                on_object=tracker.note_objects,
                is_urgent=is_urgent,
            )
        except OSError as failure:
            raise scratch_error(failure) from failure
        tracker.end_report(report)
        failures += [failed.error for failed in report.failed]
        uploaded = Uploaded(report.object_count, report.slice_count, report.data_bytes)
        return _Pass(uploaded, failures, list(report.refused), report.has_more)

    def _each_log(
        self,
        partitions: Collection[HostedPartition],
        work: Callable[[UnifiedLog], object],
        failures: list[LogStoreError],
        owed_to: UploadTracker | None = None,
    ) -> list[HostedPartition]:
        """Do some work on each log, in each log directory by itself; returns the partitions where that went
        well, none of a directory that does not answer. For a caller it goes on as long as a directory gets
        on, until its operation is stopped; a pass leaves what takes longer to the next one, because other
        directories wait for it. Notes the failures. Raises StoppingError."""
        if owed_to is None:
            is_over = partial(_is_over, self._clock, self._clock.monotonic_s() + LOG_WORK_S)
        else:
            is_over = partial(_is_stopped, owed_to.stop)
        works: dict[str, _LogWork] = {}
        for one in partitions:
            works.setdefault(one.log_dir, _LogWork(work, is_over)).partitions.append(one)
        answers = self._disk_calls.run_each(
            {path: one.run for path, one in works.items()}, lambda path: works[path].done_count
        )
        for path, silence in answers.silences.items():
            works[path].is_left = True
            failures.append(silence)
        if owed_to is not None:
            owed_to.check()
        answered = [works[path] for path in answers.results]
        failures += [error for one in answered for error in one.failures]
        well = {topic_partition for one in answered for topic_partition in one.well}
        return [one for one in partitions if one.topic_partition in well]


class _LogWork:
    """Some work on the logs of a log directory. One thread runs it; others may look at what it has done, and
    end it before its next log."""

    def __init__(self, work: Callable[[UnifiedLog], object], is_over: Callable[[], bool]) -> None:
        """Ends early once `is_over`."""
        self.partitions: list[HostedPartition] = []
        self.well: list[TopicPartition] = []
        """Where it went well."""
        self.failures: list[LogStoreError] = []
        self.is_left = False
        """Nothing waits for it any more."""
        self._work = work
        self._is_over = is_over

    @property
    def done_count(self) -> int:
        """The logs that are done."""
        return len(self.well) + len(self.failures)

    def run(self) -> None:
        """Do the work. Failures of logs are noted."""
        for one in self.partitions:
            if self.is_left or self._is_over():
                break
            if _collect(self.failures, partial(_done, self._work, one.log)):
                self.well.append(one.topic_partition)


def _is_over(clock: Clock, end_s: float) -> bool:
    return clock.monotonic_s() >= end_s


def _is_stopped(stop: StopSignal | None) -> bool:
    return stop is not None and stop.is_set


def _done(work: Callable[[UnifiedLog], object], log: UnifiedLog) -> bool:
    work(log)
    return True


def _flush_rolled(log: UnifiedLog) -> None:
    log.flusher.flush_rolled()
    # An append that hangs has it, and the upload would wait for it.
    with log.lock:
        pass


def _is_with_tails(partition: HostedPartition) -> bool:
    """Whether `TailCommits` has uploaded all that is rolled, as it does where consumers wait for it."""
    log = partition.log
    is_at_object = log.local_log.config.min_durability is Durability.OBJECT
    return is_at_object and log.local_log.segments.active.base_offset <= log.offsets.tiered_end_offset


def _require_uploads(topic: HostedTopic) -> None:
    """Raise InvalidRequestError if uploads of the topic are paused or switched off."""
    if topic.config is None or not topic.config.remote_storage_enable:
        return
    if topic.config.remote_log_copy_disable:
        raise InvalidRequestError(
            "remote.log.copy.disable is true, so nothing of the topic is uploaded; alter the topic first",
            topic=topic.name,
        )
    if topic.config.remote_copy_pause:
        raise InvalidRequestError(
            "uploads of the topic are paused; `stratalog tier resume` ends the pause", topic=topic.name
        )


def _retained_in(
    tier: ShardTier, topics: Iterable[HostedTopic], names: Collection[str]
) -> list[HostedPartition]:
    """The partitions of the shard that retention looks at, of the named topics or of all."""
    return [
        partition
        for topic in topics
        if not names or topic.name in names
        for partition in topic.partitions
        if partition.shard is tier.shard and partition.offline() is None
    ]


def _last_copies(shard: HostedShard) -> StoreError:
    reason = shard.contact.failure
    return StoreCorruptError(
        "local segments stay, because the store may have lost their records: the bucket is gone, or a head is"
        " lost or damaged; mend the store first",
        shard=shard.metadata.shard,
        reason="the catalog cannot be read" if reason is None else reason.message,
    )


def _with_what_was_uploaded(failure: LogStoreError, uploaded: Uploaded) -> LogStoreError:
    """The failure, with the result of the other partitions in its fields."""
    failure.fields.update(
        uploaded_objects=uploaded.object_count,
        uploaded_slices=uploaded.slice_count,
        uploaded_bytes=uploaded.data_bytes,
        local_segments_deleted=uploaded.local_segments_deleted,
    )
    return failure


def _retain_partitions(
    tier: ShardTier, partitions: Sequence[HostedPartition], catalog_seq: int
) -> RetentionReport:
    logs = [partition.log for partition in partitions]
    return tier.retention.run(logs, epoch=tier.shard.leader_epoch(), catalog_seq=catalog_seq)


def _collect(failures: list[LogStoreError], work: Callable[[], R]) -> R | None:
    """The result of `work`; None if it failed, after its error was added to `failures`. Raises
    StoppingError."""
    try:
        return work()
    except StoppingError:
        raise
    except LogStoreError as error:
        failures.append(error)
        return None
