"""Audits a store: the driver checks the metadata, tasks read all objects and prove what is compacted.

    driver   documents, tiling of slices, objects that are missing         `TierVerification.survey`
    tasks    checksums, order of offsets, directories, key streams         `TierVerification.verify_object`
    tasks    no key twice below `compacted_upto`, key streams of the data  `CompactionProof`

Nothing is written. Objects may be replaced meanwhile; that is no finding. A shard whose metadata cannot be
read is one, and the other shards are audited.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from stratalog.base.errors import LogStoreError
from stratalog.base.stop_signal import StopSignal
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.proof.compaction_proof import CompactionProof
from stratalog.compaction.proof.proof_report import ProofReport
from stratalog.compaction.tier_verification import ObjectSlices, TierVerification, VerificationReport
from stratalog.pipeline.jobs.cluster import Cluster, shares
from stratalog.pipeline.jobs.shard_view import StoreView, open_view
from stratalog.pipeline.jobs.slice_means import proof_means
from stratalog.pipeline.jobs.task_place import OpenPlace, TaskMeans
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.restore.metadata_scrub import SHARD_DAMAGE, unread_shard_finding

_OBJECTS_AT_ONCE = 20_000
"""Objects whose slices the driver holds at a time."""


class AuditReport(NamedTuple):
    """The result of an audit."""

    verification: VerificationReport = VerificationReport()
    proof: ProofReport = ProofReport()

    @property
    def finding_count(self) -> int:
        return self.verification.finding_count + self.proof.finding_count

    def plus(self, other: AuditReport) -> AuditReport:
        """Both together."""
        return AuditReport(self.verification.plus(other.verification), self.proof.plus(other.proof))


class _Task(NamedTuple):
    """The part of a shard that one task reads."""

    shard: int
    objects: tuple[ObjectSlices, ...] = ()
    partitions: tuple[TopicIdPartition, ...] = ()
    """Those whose compaction is proved."""
    reads_data: bool = True


def audit_store(
    cluster: Cluster, open_place: OpenPlace, topics: Collection[str], *, reads_data: bool = True
) -> AuditReport:
    """Audit the topics, or all without any. Without `reads_data` objects are only listed, and key streams
    are trusted. Raises UnknownTopicOrPartitionError, StoreError if the store cannot be read, LogStoreError if
    the cluster gives up."""
    report = AuditReport()
    with open_place() as means:
        view = open_view(means)
        known = view.topics(topics)
        topic_ids = frozenset(entry.topic_id for entry in known.values()) if topics else None
        for number in range(view.shard_count):
            try:
                metadata = view.shard(number)
                found, objects = TierVerification(means.store, metadata, view.catalog).survey(
                    topic_ids, StopSignal(), reads_data=reads_data
                )
                report = report.plus(AuditReport(found))
                chosen = [one.tip for one in _proof(means, metadata, view).choose(topics)]
                for tasks in _tasks(cluster, number, chosen, objects, reads_data=reads_data):
                    for done in _in_order(cluster, open_place, tasks):
                        report = report.plus(done)
            except SHARD_DAMAGE as damage:
                finding = unread_shard_finding(number, damage)
                report = report.plus(AuditReport(VerificationReport().with_findings([finding])))
    proof = report.proof._replace(partitions=tuple(sorted(report.proof.partitions)))
    return report._replace(proof=proof)


def _tasks(
    cluster: Cluster,
    shard: int,
    chosen: Sequence[TopicIdPartition],
    objects: Iterator[ObjectSlices],
    *,
    reads_data: bool,
) -> Iterator[Sequence[_Task]]:
    """The tasks of a shard, some at a time, so that the driver holds few slices."""
    yield [_Task(shard, partitions=tuple(part), reads_data=reads_data) for part in shares(chosen, cluster)]
    if reads_data:
        for batch in _batches(objects):
            yield [_Task(shard, objects=tuple(part)) for part in shares(batch, cluster)]


def _batches(objects: Iterator[ObjectSlices]) -> Iterator[list[ObjectSlices]]:
    while batch := [item for item, _ in zip(objects, range(_OBJECTS_AT_ONCE), strict=False)]:
        yield batch


def _in_order(cluster: Cluster, open_place: OpenPlace, tasks: Sequence[_Task]) -> list[AuditReport]:
    if not tasks:
        return []
    done = cluster.each(partial(_audit, open_place), tasks)
    for one in done:
        if isinstance(one, LogStoreError):
            raise one
    return [one for one in done if isinstance(one, AuditReport)]


def _audit(open_place: OpenPlace, task: _Task) -> AuditReport | LogStoreError:
    """Read a part of a shard, on its machine."""
    try:
        with open_place() as means:
            view = open_view(means)
            metadata = view.shard(task.shard)
            verification = TierVerification(means.store, metadata, view.catalog)
            verified = VerificationReport()
            for item in task.objects:
                verified = verified.plus(verification.verify_object(item))
            proof = _proof(means, metadata, view)
            wanted = set(task.partitions)
            chosen = [one for one in proof.choose(()) if one.tip in wanted] if wanted else []
            proved = proof.run(chosen, lambda _: None, reads_data=task.reads_data)
    except LogStoreError as error:
        return error
    # A view of a mapping cannot be pickled.
    return AuditReport(
        verified._replace(counts=dict(verified.counts)), proved._replace(counts=dict(proved.counts))
    )


def _proof(means: TaskMeans, metadata: MetadataLog, view: StoreView) -> CompactionProof:
    return CompactionProof(proof_means(means, metadata.shard), metadata, view.catalog)
