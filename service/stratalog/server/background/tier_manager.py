"""Moves data between the tiers and out of them: uploads, retention, deletion, compaction, folding.

Each pass looks at the current state and does what is due, and remembers nothing: the next pass makes up for a
failed one. `PassRegistry` logs and keeps the outcomes.

Deletion always goes in this order: the log start is committed, then local segments are deleted, then, after
the grace, objects.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from stratalog.base.clock import Clock
from stratalog.base.errors import (
    InvalidRequestError,
    LogStoreError,
    NotOwnerError,
    PreconditionFailedError,
)
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import Durability, TopicPartition
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.shard.shard_judge import CLOCK, NOT_FINALIZED
from stratalog.remote.retention.remote_retention import ExplainedPartition, RetentionReport
from stratalog.remote.tier.collector import CollectReport
from stratalog.remote.tier.upload_plan import WaitingTail, tails_to_roll
from stratalog.remote.tier.uploader import RefusedUpload
from stratalog.server.background.pass_outcome import Backlog, PassOutcome
from stratalog.server.background.scratch_space import scratch_error
from stratalog.server.background.shard_tier import ShardTier
from stratalog.server.background.tail_commits import TailCommits
from stratalog.server.background.tier_drops import TierDrops
from stratalog.server.background.tier_outcomes import (
    collection_outcome,
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
from stratalog.server.topics.topic_manager import TopicManager

R = TypeVar("R")

PASS_S = 60.0
"""Time after which a pass of uploads ends, even if more is due."""
UPLOAD_TRY_COUNT = 3
"""Tries of an upload that a caller waits for, while the metadata moves under each of them."""


class _Pass(NamedTuple):
    """The result of a pass of the uploader, and the failures of single partitions."""

    uploaded: Uploaded
    failures: list[LogStoreError]
    refused: list[RefusedUpload]
    """Slices that the metadata refused because it had moved; the next pass tries again."""
    has_more: bool
    """More is due now."""


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
        foreign: Sequence[ForeignShard] = (),
    ) -> None:
        """`foreign`: the shards of other servers, whose owners it follows."""
        self._clock = clock
        self._catalog = catalog
        self._tiers = tuple(tiers)
        self._registry = registry
        self._topics = topics
        self._foreign = tuple(foreign)
        self.drops = TierDrops(registry, topics, self._tiers)
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
        fields. A partition that is offline or on a failed disk fails if its topic is named, and is left out
        otherwise; so is a topic whose uploads are paused or switched off, which raises InvalidRequestError if
        it is named. Raises UnknownTopicOrPartitionError, NotOwnerError, StoreError, DataDirectoryError;
        PreconditionFailedError if the metadata moved under each of a few tries; StoppingError between two
        objects or reads.
        """
        tracker = UploadTracker(operation, [] if topics else self._unserved())
        named = [self._registry.topic(name) for name in topics]
        for topic in named:
            _require_uploads(topic)
        partitions = self._tiered_partitions(topics)
        failures = [offline.error() for topic in named for offline in topic.offline_partitions]
        failures += [failed.failure for topic in named for failed in topic.failed_partitions]
        uploading = [one for one in partitions if may_upload(one)]
        for partition in uploading:
            tracker.check()
            partition.shard.leader_epoch()
            _collect(failures, partition.log.roll)
        last = self._upload(uploading, tracker)
        uploaded = last.uploaded
        refused_count = 0
        # A pass ends early for a tail that callers wait for.
        while last.has_more or (last.refused and refused_count < UPLOAD_TRY_COUNT - 1):
            refused_count += bool(last.refused)
            last = self._upload(uploading, tracker)
            uploaded = uploaded.plus(last.uploaded)
        failures += [*last.failures, *map(_refused_error, last.refused)]
        deleted_count = 0
        if delete_local:
            for partition in partitions:
                tracker.check()
                delete = partial(partition.log.retention.delete_local_segments, ignore_retention=True)
                deleted_count += _collect(failures, delete) or 0
                tracker.note_deleted(deleted_count)
        uploaded = uploaded._replace(local_segments_deleted=deleted_count)
        if failures:
            raise _with_what_was_uploaded(failures[0], uploaded)
        return uploaded

    def upload_pass(self) -> PassOutcome:
        """Upload what is due, periodically: roll the active segments whose records have waited long enough,
        then upload rolled segments. While more is due, goes on for a minute. The next pass tries again what
        could not be uploaded.
        """
        end_s = self._clock.monotonic_s() + PASS_S
        uploaded = Uploaded()
        while True:
            partitions = [
                one for one in self._tiered_partitions(()) if may_upload(one) and not _is_with_tails(one)
            ]
            failures = self._roll_tails(partitions)
            done = self._upload(partitions, UploadTracker(None, []), is_urgent=False)
            uploaded = uploaded.plus(done.uploaded)
            if not done.has_more or self._clock.monotonic_s() >= end_s:
                break
        return upload_outcome(uploaded, failures + done.failures, (one.reason for one in done.refused))

    def _roll_tails(self, partitions: Iterable[HostedPartition]) -> list[LogStoreError]:
        """Roll the active segments whose records have waited for their upload long enough; returns the
        failures."""
        partition_of = {one.topic_id_partition: one for one in partitions}
        tails = [
            WaitingTail(tip, since_ms, one.log.local_log.config.remote_copy_max_age_ms)
            for tip, one in partition_of.items()
            if (since_ms := one.log.reader.tail_since_ms) is not None
        ]
        failures: list[LogStoreError] = []
        for tip in tails_to_roll(tails, self._clock.now_ms()):
            _collect(failures, partition_of[tip].log.roll)
        return failures

    def remote_retention_pass(self) -> PassOutcome:
        """Move the log start of tiered topics by their retention, if their logs have the catalog's current
        configuration. Raises NotOwnerError, PreconditionFailedError (another commit saw a newer catalog,
        which the next pass reads), StoreError.
        """
        return retention_outcome(self.retain((), StopSignal()))

    def retain(self, topics: Collection[str], stop: StopSignal) -> list[RetentionReport]:
        """Move the log start of the named tiered topics (all if none is named), as `remote_retention_pass`;
        returns a report for each shard. Also raises StoppingError, between two shards."""
        followed = self._topics.follow_catalog()
        reports: list[RetentionReport] = []
        for tier in self._tiers:
            partitions = _retained_in(tier, followed.topics, topics)
            if not partitions or tier.shard.is_fenced:
                continue
            stop.check()
            try:
                report = _retain_partitions(tier, partitions, followed.seq)
            except PreconditionFailedError:
                # One topic was altered, and another actor has used its new configuration. The others are as
                # they were: judge all of them by the catalog of now.
                followed = self._topics.follow_catalog()
                partitions = _retained_in(tier, followed.topics, topics)
                report = _retain_partitions(tier, partitions, followed.seq)
            reports.append(report)
            moved = {advanced.topic_partition for advanced in report.advanced}
            for partition in partitions:
                if partition.topic_partition in moved:
                    partition.signal.notify()
        return reports

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
            if chosen:
                tier.shard.leader_epoch()
                explained = tier.retention.explain([partition.log for partition in chosen])
                found.update(zip((one.topic_partition for one in chosen), explained, strict=True))
        return found

    def collect_pass(self) -> PassOutcome:
        """Delete what the store no longer needs, in the shards that this server owns. Raises StoreError,
        StoppingError."""
        report = CollectReport()
        for tier in self._tiers:
            if not tier.shard.is_fenced:
                report = report.plus(tier.collector.run())
        return collection_outcome(report)

    def fold_pass(self) -> PassOutcome:
        """Fold the heads that have outgrown their bounds. Raises StoreError after it has tried all of
        them."""
        logs = [tier.shard.metadata for tier in self._tiers if not tier.shard.is_fenced]
        failures: list[LogStoreError] = []
        tries = [self._catalog.fold_if_needed, *(log.fold_if_needed for log in logs)]
        folds = [_collect(failures, fold) for fold in tries]
        if failures:
            raise failures[0]
        folded_count = sum(seq is not None for seq in folds)
        states = [log.state() for log in logs]
        return PassOutcome(
            {"heads": folded_count}, backlog=Backlog(sum(state.seq - state.folded_seq for state in states))
        )

    def refresh_pass(self) -> PassOutcome:
        """Read the heads, notice another owner, then follow the catalog. Raises StoreError after it has asked
        for every head, and, for the head of another server's shard, after all else.
        """
        failures = _refresh([tier.shard for tier in self._tiers])
        foreign_failures = _refresh(self._foreign)
        if failures:
            raise failures[0]
        self._topics.follow_catalog()
        for number, tier in enumerate(self._tiers):
            seq = tier.shard.metadata.state().seq
            if tier.shard.is_followed and seq != self._shown_seqs[number]:
                self._notify_readers(tier)
            self._shown_seqs[number] = seq
        if foreign_failures:
            raise foreign_failures[0]
        return PassOutcome()

    def _notify_readers(self, tier: ShardTier) -> None:
        """Wake the readers of a followed shard, whose head has news."""
        for partition in self._registry.partitions():
            if partition.shard is tier.shard:
                partition.signal.notify()

    def _partitions(self, topics: Collection[str]) -> list[HostedPartition]:
        if not topics:
            return list(self._registry.partitions())
        return [partition for name in topics for partition in self._registry.topic(name).partitions]

    def _tiered_partitions(self, topics: Collection[str]) -> list[HostedPartition]:
        return [one for one in self._partitions(topics) if one.is_tiered and one.offline() is None]

    def _unserved(self) -> list[FailedPartition]:
        """The partitions that an upload of all topics leaves out."""
        return [
            FailedPartition.offline(one.topic_partition, one.path, one.reason)
            for topic in self._registry.topics()
            if topic.config is None or topic.config.remote_storage_enable
            for one in topic.unserved_partitions
        ]

    def _upload(
        self, partitions: Collection[HostedPartition], tracker: UploadTracker, *, is_urgent: bool = True
    ) -> _Pass:
        """Fsync rolled segments and upload them; returns the failures of single partitions."""
        uploaded = Uploaded()
        failures: list[LogStoreError] = []
        refused: list[RefusedUpload] = []
        has_more = False
        tracker.begin(partitions)
        # The bucket never holds what the disk could lose, and appends at `os` leave the fsync to this.
        partitions = [
            one for one in partitions if _collect(failures, one.log.flusher.flush_rolled) is not None
        ]
        # Their uploads are paused or switched off, but their disks may have lost records all the same.
        chosen = {one.topic_partition for one in partitions}
        idle = [one for one in self._tiered_partitions(()) if one.topic_partition not in chosen]
        try:
            for tier in self._tiers:
                candidates = [
                    candidate_of(self._catalog, one) for one in partitions if one.shard is tier.shard
                ]
                report = tier.uploads.segments.upload(
                    candidates,
                    epoch=tier.shard.leader_epoch(),
                    idle_logs=[one.log for one in idle if one.shard is tier.shard],
                    stop=tracker.stop,
                    on_object=tracker.note_objects,
                    is_urgent=is_urgent,
                )
                tracker.end_report(report)
                has_more = has_more or report.has_more
                failures += [failed.error for failed in report.failed]
                refused += report.refused
                uploaded = uploaded.plus(Uploaded(report.object_count, report.slice_count, report.data_bytes))
        except NotOwnerError:
            for tier in self._tiers:
                tier.shard.refresh()
            raise
        except OSError as failure:
            raise scratch_error(failure) from failure
        return _Pass(uploaded, failures, refused, has_more)


def _refresh(shards: Iterable[HostedShard | ForeignShard]) -> list[LogStoreError]:
    """Read the heads of all of these shards; returns the failures."""
    failures: list[LogStoreError] = []
    for shard in shards:
        _collect(failures, shard.refresh)
    return failures


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


def _refused_error(refused: RefusedUpload) -> PreconditionFailedError:
    if refused.reason == CLOCK:
        return PreconditionFailedError(
            "records are lost that never reached the object store, and a loss is recorded only while the"
            " clocks of this server and of the store agree; set the clock",
            **refused.topic_partition.error_fields,
        )
    if refused.reason == NOT_FINALIZED:
        return PreconditionFailedError(
            "records are lost that never reached the object store, and the finalized metadata version cannot"
            " say so: nothing of the partition is uploaded before `stratalog tier finalize`",
            **refused.topic_partition.error_fields,
        )
    return PreconditionFailedError(
        "the metadata refused an uploaded slice, the next pass tries again: " + refused.reason,
        **refused.topic_partition.error_fields,
        object=refused.object_name,
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
    """The result of `work`; None if it failed, after its error was added to `failures`."""
    try:
        return work()
    except LogStoreError as error:
        failures.append(error)
        return None
