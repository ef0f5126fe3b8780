"""Proves for a shard, from the objects alone, that its compacted partitions are as the metadata log says.

Of each partition with a `compacted_upto` the keys below it are found (`unique_keys`): none may have two
records. Then the key stream of each slice is compared with the slice's data (`key_stream_proof`), also of
slices that are not compacted yet: the next compaction goes by it, and a record that it lacks would be lost.
What was carried or merged into a key stream is proved by that, too.

Several partitions, then several slices, are at work at the same time. Objects may be replaced meanwhile: a
partition is looked at again as it is then, and a slice that is no longer live is left out. Damage is read
again, because a connection may have garbled it; damage that stays is a finding, and the proof goes on.
Nothing is written.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from stratalog.base.errors import (
    CorruptRecordError,
    InvalidConfigError,
    LogStoreError,
    ObjectArchivedError,
    ObjectNotFoundError,
    StoreCorruptError,
    StoreNotUsableError,
    UnknownTopicOrPartitionError,
    UnsupportedOperationError,
)
from stratalog.base.types import TopicIdPartition
from stratalog.compaction.proof.key_stream_proof import key_stream_fault
from stratalog.compaction.proof.proof_means import ProofMeans
from stratalog.compaction.proof.proof_report import (
    ProofFault,
    ProofFinding,
    ProofReport,
    ProvedPartition,
)
from stratalog.compaction.proof.record_fates import RecordFates
from stratalog.compaction.proof.unique_keys import FoundKeys, find_keys
from stratalog.log.log_config import LogConfig
from stratalog.remote.lanes import in_lanes
from stratalog.remote.metadata.catalog.catalog import Catalog
from stratalog.remote.metadata.catalog.topic_entry import TopicEntry
from stratalog.remote.metadata.head.page_loader import RunAll, run_in_order
from stratalog.remote.metadata.shard.live_slice import LiveSlice
from stratalog.remote.metadata.shard.metadata_log import MetadataLog
from stratalog.remote.metadata.shard.tiered_partition import TieredPartition
from stratalog.remote.objects.key_stream import KeyHashing
from stratalog.remote.restore.metadata_scrub import newest_state, unread_shard_finding

_ATTEMPTS = 3
"""How often a partition or a slice is read before what is wrong with it is a finding."""
_DAMAGE = (
    CorruptRecordError,
    ObjectArchivedError,
    ObjectNotFoundError,
    StoreCorruptError,
    StoreNotUsableError,
    UnsupportedOperationError,
)


class ChosenPartition(NamedTuple):
    """A partition to prove, and its topic."""

    tip: TopicIdPartition
    topic: TopicEntry


class CompactionProof:
    """Proves one shard. Thread-safe: it keeps nothing between calls."""

    def __init__(
        self,
        means: ProofMeans,
        metadata: MetadataLog,
        catalog: Catalog,
        run_all: RunAll = run_in_order,
        lane_count: int = 1,
    ) -> None:
        """`run_all` runs `lane_count` functions, each of which hashes a slice or merges the keys of a
        partition at a time."""
        self._means = means
        self._metadata = metadata
        self._catalog = catalog
        self._run_all = run_all
        self._lane_count = lane_count

    def choose(self, topics: Collection[str]) -> list[ChosenPartition]:
        """The partitions of these topics (of all, without any) that are compacted, or were. Raises
        UnknownTopicOrPartitionError."""
        known = self._catalog.topics()
        for name in topics:
            if name not in known:
                raise UnknownTopicOrPartitionError(
                    "the store has no topic of this name; correct it", topic=name
                )
        entries = {entry.topic_id: entry for name, entry in known.items() if not topics or name in topics}
        chosen = [
            ChosenPartition(tip, entries[tip.topic_id])
            for tip, row in self._metadata.state().partitions.items()
            if tip.topic_id in entries and (row.compacted_upto or _is_compacted(entries[tip.topic_id]))
        ]
        return sorted(chosen, key=lambda one: (one.topic.name, one.tip.partition))

    def size_bytes(self, chosen: Sequence[ChosenPartition]) -> int:
        """The data of these partitions, which the progress counts up to."""
        partitions = self._metadata.state().partitions
        return sum(partitions[one.tip].tiered_bytes for one in chosen)

    def run(
        self,
        chosen: Sequence[ChosenPartition],
        on_progress: Callable[[ProofReport], None],
        *,
        reads_data: bool = True,
    ) -> ProofReport:
        """Prove the partitions; calls `on_progress`, one call at a time, after each step. Without
        `reads_data` key streams are trusted, and only slices without a usable one are read.

        Raises StoreUnavailableError, StoreAccessDeniedError, and OSError for a full disk.
        """
        report = ProofReport()

        def note(_: object, done: ProofReport) -> None:
            nonlocal report
            report = report.plus(done)
            on_progress(report)

        steps = self._partition_steps(chosen, counts_bytes=not reads_data)
        if reads_data:
            steps = itertools.chain(steps, self._slice_steps(chosen))
        in_lanes(self._run_all, steps, lambda step: step(), note, self._lane_count)
        return report._replace(partitions=tuple(sorted(report.partitions)))

    def _partition_steps(
        self, chosen: Sequence[ChosenPartition], *, counts_bytes: bool
    ) -> Iterator[Callable[[], ProofReport]]:
        for one in chosen:
            yield partial(self._prove_partition, one, counts_bytes=counts_bytes)

    def _slice_steps(self, chosen: Sequence[ChosenPartition]) -> Iterator[Callable[[], ProofReport]]:
        state = self._metadata.state()
        for one in chosen:
            partition = state.partition(one.tip)
            fates = RecordFates(self._means.reads, partition.slices, partition.open_transactions)
            for live in partition.slices_from(0):
                yield partial(self._prove_key_stream, one.topic, fates, live)

    def _prove_partition(self, one: ChosenPartition, *, counts_bytes: bool) -> ProofReport:
        damage: LogStoreError | None = None
        state = self._metadata.state()
        for _ in range(_ATTEMPTS):
            partition = state.partition(one.tip)
            try:
                fates = RecordFates(self._means.reads, partition.slices, partition.open_transactions)
                found = find_keys(self._means, _hashing_of(one.topic), fates, partition)
                report = _found_report(one, partition, found)
                return report._replace(done_bytes=partition.tiered_bytes if counts_bytes else 0)
            except _DAMAGE as fault:
                damage = fault
                # Its objects may have been replaced since the shard was opened.
                state = newest_state(self._metadata)
        assert damage is not None
        return ProofReport.of_finding(
            _damage_finding(
                damage, one.topic.name, one.tip.partition, "", state.partition(one.tip).log_start_offset
            )
        )

    def _prove_key_stream(self, topic: TopicEntry, fates: RecordFates, live: LiveSlice) -> ProofReport:
        entry = live.entry
        done = ProofReport(done_bytes=entry.data_bytes)
        stream, hashing = entry.key_stream, _hashing_of(topic)
        if stream is None or not entry.record_count or not hashing.made(stream):
            return done
        damage: LogStoreError | None = None
        for _ in range(_ATTEMPTS):
            try:
                fault = key_stream_fault(self._means, hashing, fates, live)
            except _DAMAGE as found:
                damage = found
                continue
            done = done._replace(key_stream_count=1, record_count=entry.record_count)
            if fault is None:
                return done
            return done.plus(
                ProofReport.of_finding(
                    ProofFinding(
                        kind=ProofFault.KEY_STREAM,
                        topic=entry.topic,
                        partition=entry.partition,
                        object_name=live.object_name,
                        offset=fault.offset,
                        reason=fault.reason,
                    )
                )
            )
        assert damage is not None
        if isinstance(damage, ObjectNotFoundError) and not self._is_live(live):
            return done
        return done.plus(
            ProofReport.of_finding(
                _damage_finding(damage, entry.topic, entry.partition, live.object_name, live.base_offset)
            )
        )

    def _is_live(self, live: LiveSlice) -> bool:
        return live.object_name in newest_state(self._metadata).objects


def unread_shard_report(shard: int, damage: LogStoreError) -> ProofReport:
    """The report on a shard that cannot be opened, because of one of `SHARD_DAMAGE`: a finding without a
    topic. It names the key of the object at fault."""
    found = unread_shard_finding(shard, damage)
    return ProofReport.of_finding(
        ProofFinding(
            kind=ProofFault(found.kind.value),
            topic="",
            partition=-1,
            object_name=found.object_name,
            offset=-1,
            reason=f"no partition of shard {shard} is proved: {damage}",
        )
    )


def _is_compacted(topic: TopicEntry) -> bool:
    """Whether a topic says so itself. A default of its server's is not in the store."""
    try:
        return LogConfig.in_force(topic.config, LogConfig()).is_compacted
    except InvalidConfigError:
        return False


def _hashing_of(topic: TopicEntry) -> KeyHashing:
    """The way in which key streams are made by what a topic says itself."""
    try:
        rule = LogConfig.in_force(topic.config, LogConfig()).version_rule
    except InvalidConfigError:
        rule = None
    return KeyHashing(topic.hash_key, rule)


def _found_report(one: ChosenPartition, partition: TieredPartition, found: FoundKeys) -> ProofReport:
    upto = partition.compacted_upto
    name, number = one.topic.name, one.tip.partition
    proved = ProvedPartition(
        topic=name,
        partition=number,
        log_start_offset=partition.log_start_offset,
        compacted_upto=upto,
        tiered_end_offset=partition.tiered_end_offset,
        slice_count=found.slice_count,
        hashed_slice_count=found.hashed_slice_count,
        key_count=found.key_count,
        repeated_count=found.repeated_count,
        size_bytes=partition.tiered_bytes,
        dirty_bytes=sum(
            live.entry.data_bytes for live in partition.slices_from(upto) if live.end_offset > upto
        ),
    )
    findings = tuple(
        ProofFinding(
            kind=ProofFault.REPEATED_KEY,
            topic=name,
            partition=number,
            object_name=older.object_name,
            offset=older.offset,
            later_object_name=later.object_name,
            later_offset=later.offset,
        )
        for older, later in found.repeated
    )
    return ProofReport(
        partitions=(proved,),
        finding_count=found.repeated_count,
        findings=findings,
        counts={ProofFault.REPEATED_KEY: found.repeated_count} if found.repeated_count else {},
    )


def _damage_finding(
    damage: LogStoreError, topic: str, partition: int, object_name: str, offset: int
) -> ProofFinding:
    is_missing = isinstance(damage, ObjectNotFoundError)
    return ProofFinding(
        kind=ProofFault.MISSING if is_missing else ProofFault.DAMAGED,
        topic=topic,
        partition=partition,
        object_name=object_name,
        offset=offset,
        reason=str(damage),
    )
