"""Audits a store: the driver checks the metadata, tasks read all objects and prove what is compacted.

    driver   documents, tiling of slices, objects that are missing         `TierVerification.survey`
    tasks    checksums, order of offsets, directories, key streams         `TierVerification.verify_object`
    tasks    no key twice below `compacted_upto`, key streams of the data  `CompactionProof`

Nothing is written. Objects may be replaced meanwhile; that is no finding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
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
            metadata = view.shard(number)
            found, objects = TierVerification(means.store, metadata, view.catalog).survey(
                topic_ids, StopSignal()
            )
            report = report.plus(AuditReport(verification=found))
            chosen = _proof(means, metadata, view).choose(topics)
            tasks: Iterable[_Task] = (
                _Task(number, partitions=tuple(part), reads_data=reads_data)
                for part in shares([one.tip for one in chosen], cluster)
            )
            for done in _in_order(cluster, open_place, tasks):
                report = report.plus(done)
            if reads_data:
                for batch in _batches(objects):
                    parts = (_Task(number, objects=tuple(part)) for part in shares(batch, cluster))
                    for done in _in_order(cluster, open_place, parts):
                        report = report.plus(done)
    proof = report.proof._replace(partitions=tuple(sorted(report.proof.partitions)))
    return report._replace(proof=proof)


def _batches(objects: Iterator[ObjectSlices]) -> Iterator[list[ObjectSlices]]:
    while batch := [item for item, _ in zip(objects, range(_OBJECTS_AT_ONCE), strict=False)]:
        yield batch


def _in_order(cluster: Cluster, open_place: OpenPlace, tasks: Iterable[_Task]) -> list[AuditReport]:
    given = list(tasks)
    if not given:
        return []
    done = cluster.each(partial(_audit, open_place), given)
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
