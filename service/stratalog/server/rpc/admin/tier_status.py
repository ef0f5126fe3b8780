"""The answer of TierStatus: the contents of each shard and its contact with the store, the passes, and what
each topic has in the store and waiting for upload.
"""

from __future__ import annotations

from operator import attrgetter, itemgetter
from typing import NamedTuple

from stratalog.compaction.plan.shard_survey import data_bytes_of
from stratalog.server.background.pass_registry import MAX_ERROR_LENGTH, PassStatus
from stratalog.server.background.upload_tracker import pending_upload_bytes
from stratalog.server.copy_lag import partition_lag
from stratalog.server.engine.storage_engine import StorageEngine
from stratalog.server.partitions.foreign_shard import ForeignShard
from stratalog.server.partitions.free_space import FreeSpace
from stratalog.server.partitions.hosted_shard import HostedShard
from stratalog.server.partitions.offline_partition import OfflinePartition
from stratalog.server.partitions.partition_registry import HostedTopic, PartitionRegistry
from stratalog.server.partitions.shard_set import ShardSet
from stratalog.server.partitions.store_trouble import StoreTrouble
from stratalog.server.rpc.admin.admin_convert import UNKNOWN, offline_partition_message
from stratalog.server.rpc.paging import PageCursor, number_and_text, number_and_text_of
from stratalog.v1 import tier_pb2

StatusItem = HostedTopic | OfflinePartition


class StatusPlace(NamedTuple):
    """The place of a topic, or of a partition of it that is offline, in the status."""

    topic: str
    partition: int
    """-1 for the topic itself, which comes before its partitions."""

    def __str__(self) -> str:
        return number_and_text(self.partition, self.topic)


def status_place_of(text: str) -> StatusPlace:
    """The place whose `str()` is the text. Raises ValueError."""
    partition, topic = number_and_text_of(text)
    return StatusPlace(topic, partition)


def tier_status_message(
    request: tier_pb2.TierStatusRequest, engine: StorageEngine, now_ms: int
) -> tier_pb2.TierStatusResponse:
    """A page of the tier status by the metadata in memory, without a request to the store. It looks at no
    other topics. Any thread may call it. Raises InvalidRequestError for the page."""
    cursor = PageCursor(request, "tier status", status_place_of)
    page = cursor.page(_placed_items(engine.topics.registry), itemgetter(0))
    message = tier_pb2.TierStatusResponse(
        store_url=engine.tier.store.url,
        store_id=str(engine.tier.identity.store_id),
        time_ms=now_ms,
        next_page_token=page.next_page_token,
    )
    if cursor.after is None:
        message.store_remarks.extend(engine.tier.upkeep.store_remarks)
        message.shards.extend(_shard_messages(engine.tier.shards))
        message.passes.extend(map(_pass_message, engine.passes.statuses()))
        message.excluded_partition_count = len(engine.tier.compaction.exclusions())
        message.short_log_dirs.extend(_short_messages(engine.local.pressure.space))
    for _, item in page.items:
        if isinstance(item, OfflinePartition):
            message.offline_partitions.append(offline_partition_message(item))
        else:
            message.topics.append(_topic_message(item, now_ms, engine))
    return message


def _short_messages(space: FreeSpace) -> list[tier_pb2.ShortLogDir]:
    """The log directories that are short of space, by path."""
    return [
        tier_pb2.ShortLogDir(
            path=path, free_bytes=space.enough_bytes - missing_bytes, enough_bytes=space.enough_bytes
        )
        for path, missing_bytes in sorted(space.shortages.items())
    ]


def _placed_items(registry: PartitionRegistry) -> list[tuple[StatusPlace, StatusItem]]:
    """The tiered topics and all offline partitions, by place."""
    placed: list[tuple[StatusPlace, StatusItem]] = []
    for topic in registry.topics():
        if topic.config is not None and topic.config.remote_storage_enable:
            placed.append((StatusPlace(topic.name, UNKNOWN), topic))
        placed += [(StatusPlace(*one.topic_partition), one) for one in topic.unserved_partitions]
    return placed


def _shard_messages(shards: ShardSet) -> list[tier_pb2.ShardStatus]:
    """All shards of the store, by number."""
    found = [_own_shard_message(shard) for shard in shards]
    for foreign in shards.foreign:
        message = _shard_message(foreign)
        message.epoch = foreign.owner.epoch
        message.foreign = True
        found.append(message)
    return sorted(found, key=attrgetter("shard"))


def _own_shard_message(shard: HostedShard) -> tier_pb2.ShardStatus:
    message, contact = _shard_message(shard), shard.contact
    message.epoch = shard.claimed.epoch
    message.foreign = shard.is_followed
    message.deletion_stopped = contact.is_clock_wrong
    message.last_answer_ms = contact.last_answer_ms
    message.silence_ms = contact.silence_ms
    message.disk_appends_refused = contact.is_too_silent
    failure = contact.failure
    if failure is not None:
        message.store_trouble = StoreTrouble.of(failure).value
        message.store_failure = str(failure)[:MAX_ERROR_LENGTH]
    return message


def _shard_message(shard: HostedShard | ForeignShard) -> tier_pb2.ShardStatus:
    """The contents of a shard, and the owner that is not this server."""
    state, compared = shard.metadata.state(), shard.metadata.compared_clocks
    live, waiting = tuple(state.objects.values()), state.waiting_files
    message = tier_pb2.ShardStatus(
        shard=shard.metadata.shard,
        commit_count=state.seq,
        live_object_count=len(live),
        live_bytes=sum(one.ref.size_bytes for one in live),
        dead_bytes=sum(data_bytes_of(one) - one.live_bytes for one in live),
        live_slice_count=sum(one.live_slices for one in live),
        dropped_object_count=waiting.file_count,
        dropped_bytes=waiting.size_bytes,
        clock_skew_ms=compared.skew_ms,
        clock_checked_ms=compared.at_ms,
        last_answer_ms=UNKNOWN,
        silence_ms=UNKNOWN,
        claim_time_ms=state.claims[-1].time_ms if state.claims else UNKNOWN,
    )
    takeover = shard.takeover
    if takeover is not None:
        message.takeover.owner = takeover.owner
        message.takeover.epoch = takeover.epoch
        message.takeover.time_ms = takeover.time_ms
        message.takeover.endpoint = takeover.endpoint
    return message


def _pass_message(status: PassStatus) -> tier_pb2.PassStatus:
    outcome = status.last_outcome
    return tier_pb2.PassStatus(
        name=status.name,
        running_since_ms=status.running_since_ms,
        last_begin_ms=status.last_begin_ms,
        last_end_ms=status.last_end_ms,
        last_success_ms=status.last_success_ms,
        last_work_ms=status.last_work_ms,
        turn_count=status.turn_count,
        failed_turn_count=status.failed_turn_count,
        consecutive_failure_count=status.consecutive_failure_count,
        last_outcome="" if outcome is None else outcome.text,
        last_error=status.last_error,
        last_done={} if outcome is None else outcome.done,
        last_refusals={} if outcome is None else outcome.refusals,
        total_done=status.total_done,
        total_refusals=status.total_refusals,
        backlog=tier_pb2.PassBacklog(
            piece_count=status.backlog.count,
            size_bytes=status.backlog.size_bytes,
            record_count=status.backlog.record_count,
            oldest_ms=status.backlog.oldest_ms,
        ),
    )


def _topic_message(topic: HostedTopic, now_ms: int, engine: StorageEngine) -> tier_pb2.TieredTopicStatus:
    disk_calls, silent = engine.local.disk_calls, set[str]()
    message = tier_pb2.TieredTopicStatus(
        topic=topic.name,
        lag_ms=UNKNOWN,
        paused=topic.config is not None and topic.config.remote_copy_pause,
        copy_disabled=topic.config is not None and topic.config.remote_log_copy_disable,
        last_upload_ms=UNKNOWN,
        oldest_partition=UNKNOWN,
        oldest_partition_upload_ms=UNKNOWN,
    )
    for partition in topic.all_partitions:
        state = partition.tier_state()
        if state is not None and state.slices:
            message.tiered_partition_count += 1
            message.slice_count += len(state.slices)
            message.tiered_bytes += state.tiered_bytes
        if isinstance(partition, OfflinePartition) or partition.offline() is not None:
            continue
        uploaded_ms = engine.tier.upkeep.last_upload_ms(partition)
        message.last_upload_ms = max(message.last_upload_ms, uploaded_ms)
        if not partition.log.local_log.config.is_copied:
            # As in Kafka: nothing waits for an upload that nothing will begin.
            continue
        former_lag_ms = message.lag_ms
        if disk_calls.is_silent(partition.log_dir):
            silent.add(partition.log_dir)
        message.pending_upload_bytes += pending_upload_bytes(partition)
        lag = partition_lag(partition, uploaded_ms)
        waiting = lag.closed.plus(lag.tails)
        message.lag_record_count += waiting.record_count
        message.lag_bytes += waiting.size_bytes
        if waiting.record_count:
            message.lag_ms = max(message.lag_ms, now_ms - waiting.oldest_ms, 0)
        if message.lag_ms > former_lag_ms:
            message.oldest_partition = partition.topic_partition.partition
            message.oldest_partition_upload_ms = uploaded_ms
    message.silent_log_dirs.extend(sorted(silent))
    return message
